package filequeue

import (
	"errors"
	"testing"

	"github.com/hookferry/analytics/internal/simdisk"
)

// A manifest is read as it was written. With any byte changed it is an error.
func TestManifest(t *testing.T) {
	for _, m := range []mark{{}, {segmentID{12, 0xfedcba9876543210}, 4711}} {
		d := simdisk.New(1)
		if err := writeManifest(d, m); err != nil {
			t.Fatal(err)
		}
		if got, err := readManifest(d); got != m || err != nil {
			t.Errorf("readManifest = %+v, %v; want %+v", got, err, m)
		}
		text := d.ReadFile(manifestName)
		for i := range text {
			changed := append([]byte{}, text...)
			changed[i] ^= 1
			d.WriteFile(manifestName, changed)
			if got, err := readManifest(d); got != (mark{}) || !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrVersion) {
				t.Errorf("readManifest of %q = %+v, %v; want no mark, and ErrDamaged or ErrVersion", changed, got, err)
			}
		}
	}
}
