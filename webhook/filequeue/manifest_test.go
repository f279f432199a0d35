package filequeue

import (
	"bytes"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/simdisk"
)

// A manifest is read as it was written. If any byte is changed, it has the same mark or an earlier
// one, or it is an error.
func TestManifest(t *testing.T) {
	d := simdisk.New(1)
	if err := writeManifest(d, mark{}); err != nil {
		t.Fatal(err)
	}
	m, err := readManifest(d)
	if err == nil {
		err = m.open(d)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	marks := []mark{{}, {segmentID{9, 1}, 99_999}, {segmentID{9, 1}, 100_000}, {segmentID{12, 0xfedcba9876543210}, 1}, {segmentID{13, 7}, 80}}
	for i, at := range marks {
		if i > 0 {
			m.set(at)
		}
		if got, err := readManifest(d); err != nil || got.mark != at {
			t.Fatalf("readManifest = %+v, %v; want %+v", got, err, at)
		}
		text := d.ReadFile(manifestName)
		other := simdisk.New(1)
		for at := range text {
			if text[at] == ' ' && at%61 > 0 {
				continue
			}
			changed := bytes.Clone(text)
			changed[at] ^= 1
			other.WriteFile(manifestName, changed)
			got, err := readManifest(other)
			switch {
			case err == nil && slices.Contains(marks[:i+1], got.mark):
			case at >= manifestPage || !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrVersion):
				t.Fatalf("with byte %d changed, readManifest = %+v, %v; want the mark, an earlier one, or an error about the first page", at, got, err)
			}
		}
	}
}

// The writes and syncs of marks fail at random; then the store is opened again, and now and then the
// machine has lost its power before. The manifest has a mark that was set. If nothing failed, it is
// the latest one that was synced, or a later one.
func TestMarksOnFailingDisk(t *testing.T) {
	for seed := range uint64(3000) {
		d := simdisk.New(seed)
		if err := writeManifest(d, mark{}); err != nil {
			t.Fatal(err)
		}
		set := map[mark]bool{{}: true}
		now := time.Now()
		for life := range uint32(8) {
			m, err := readManifest(d)
			if err == nil {
				err = m.open(d)
			}
			if err != nil || !set[m.mark] {
				t.Fatalf("seed %d, life %d: the mark is %+v, %v; want one that was set", seed, life, m, err)
			}
			fails := seed%3 > 0
			n := seed + uint64(life)
			d.OnOp(func(op simdisk.Op) error {
				if n = n*6364136223846793005 + 1442695040888963407; fails && op.Changes() && n>>63 == 0 {
					return syscall.EIO
				}
				return nil
			})
			marks := uint32(20)
			if fails {
				marks = uint32(seed/3%6) + 1
			}
			for i := range marks {
				if i%4 == 0 && !fails {
					clear(set)
				}
				at := mark{segmentID{100*life + i/4 + 1, uint64(i)/4 + 1}, int64(8 * (i + 1))}
				m.set(at)
				set[at] = true
				if i%4 == 2 {
					now = now.Add(time.Second)
					m.flush(now)
				}
			}
			m.close()
			d.OnOp(nil)
			if !fails || life%2 == 1 {
				d = d.Reboot(simdisk.Power)
			}
		}
	}
}
