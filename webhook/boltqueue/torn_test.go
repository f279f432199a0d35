package boltqueue

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/webhook"
)

// The last entry of either file of the journal may have been written in part, any of its
// sectors: it was acknowledged to nobody, and all before it is there. Below it is what
// was there in an earlier epoch.
func TestTornEntry(t *testing.T) {
	offsets := []int64{0, 1, 100, 487, 488, 489, 495, 496, 503, 504, 505, 507, 508, 511} // what is special
	for seed := range soak.Seeds(t, len(offsets)) {
		file, at := int(seed%2), int64(seed/2%sectorSize)
		if !soak.On() {
			at = offsets[seed-1]
		}
		t.Run(fmt.Sprintf("seed=%d/file=%d/offset=%d", seed, file, at), func(t *testing.T) { testTornEntry(t, file, at) })
	}
}

func testTornEntry(t *testing.T, file int, at int64) {
	path := filepath.Join(t.TempDir(), "queue.db")
	q, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	id := 0
	put := func(size int64) {
		t.Helper()
		id++
		body := bytes.Repeat([]byte{1}, int(size))
		if _, err := q.Put(t.Context(), webhook.Delivery{Destination: "a", ID: fmt.Sprintf("%6d", id), Due: time.Now(), Body: body}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 + file {
		put(20 * sectorSize)
		checkpointNow(t, q)
	}
	if q.journal != q.journals[file] {
		t.Fatalf("%s is written, want %s", q.journal.path, q.journals[file].path)
	}
	// The entry that is torn would begin at the offset.
	put(sectorSize)
	overhead := q.journal.off - entriesStart - sectorSize
	put(sectorSize + (at-q.journal.off-overhead+4*sectorSize)%sectorSize)
	if end := q.journal.off % sectorSize; end != entryStart(at)%sectorSize {
		t.Fatalf("the next entry begins at %d of a sector, want %d", end, entryStart(at)%sectorSize)
	}
	acknowledged, number, end := readJournals(path), q.journal.number, q.journal.off
	put(2 * sectorSize)
	whole := readJournals(path)
	first, last := end/sectorSize, (q.journal.off-1)/sectorSize
	n := last - first + 1
	for pattern := range 1 << n {
		torn := acknowledged
		b := bytes.Clone(acknowledged[file].b)
		for i := range n {
			if pattern&(1<<i) != 0 {
				s := (first + i) * sectorSize
				copy(b[s:s+sectorSize], whole[file].b[s:])
			}
		}
		torn[file].b = b
		want, wantOff := number, end
		if bytes.Equal(b, whole[file].b) {
			want, wantOff = q.journal.number, q.journal.off
		}
		c, err := readChain(torn, q.journal.epoch)
		if err != nil || c.number != want || c.off != wantOff {
			t.Errorf("with sectors %0*b of %d: the next entry is %d at %d, %v, want %d at %d", n, pattern, n, c.number, c.off, err, want, wantOff)
		}
	}
}
