package uuid

import (
	"regexp"
	"strings"
	"testing"
)

// Each id is a random UUID, version 4: all its bits vary, except those of the version and variant.
func TestAppendWritesRandomIDs(t *testing.T) {
	whole := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := make(map[string]bool)
	var ones [128]int
	for range 1000 {
		id := string(Append([]byte("x")))[1:]
		if !whole.MatchString(id) || seen[id] {
			t.Fatalf("Append = %q, want a well-formed id that is new", id)
		}
		seen[id] = true
		for i, c := range strings.ReplaceAll(id, "-", "") {
			n := strings.IndexRune("0123456789abcdef", c)
			for bit := range 4 {
				ones[4*i+bit] += n >> (3 - bit) & 1
			}
		}
	}
	for i, n := range ones {
		fixed := 48 <= i && i < 52 || i == 64 || i == 65
		if varies := 300 < n && n < 700; varies == fixed {
			t.Errorf("bit %d is 1 in %d of 1000 ids; want it to vary: %t", i, n, !fixed)
		}
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	buf := make([]byte, 0, Size)
	if n := testing.AllocsPerRun(100, func() { buf = Append(buf[:0]) }); n != 0 {
		t.Errorf("Append allocates %v times, want 0", n)
	}
}

func BenchmarkAppend(b *testing.B) {
	b.ReportAllocs()
	buf := make([]byte, 0, Size)
	for b.Loop() {
		buf = Append(buf[:0])
	}
}
