//go:build unix

package pgqueue

import (
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook/store"
)

// List misses no delivery whose chunk upkeep moves to another partition during the list, even twice. The
// deliveries keep their numbers.
func TestListFindsChunksThatMove(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer q.Close()
	const n = 4 * chunkPage
	ds := deliveries("crm", 0, n)
	for i := range ds {
		ds[i].Due = time.Now().Add(time.Hour + time.Duration(i)*time.Hour) // in a chunk of its own
	}
	putAll(t, q, ds...)
	crm := store.Query{Destinations: []string{"crm"}}
	seqs := make(map[string]uint64)
	for _, d := range listAll(t, q, crm) {
		seqs[d.ID] = d.Seq
	}
	from := 0
	move := func() {
		t.Helper()
		var part int
		if err := q.db.pool.QueryRow(t.Context(), q.db.in("SELECT chunk_part FROM S.state")).Scan(&part); err != nil {
			t.Fatal(err)
		}
		for range 12 { // fills the partition
			ds := deliveries("big", from, 100)
			from += len(ds)
			for i := range ds {
				ds[i].Body = make([]byte, 8<<10)
			}
			putAll(t, q, ds...)
		}
		settleAll(t, q, store.Done, fetchUntil(t, q, 1200, "big"))
		if _, err := q.db.pool.Exec(t.Context(), q.db.in("UPDATE S.state SET chunk_since = chunk_since - interval '1 hour'")); err != nil {
			t.Fatal(err)
		}
		testkit.Until(t, "upkeep moves the chunks", func() bool {
			if err := q.maintainer.upkeep(t.Context()); err != nil {
				t.Fatal(err)
			}
			var left int
			if err := q.db.pool.QueryRow(t.Context(), q.db.in("SELECT count(*) FROM S.chunk WHERE part = $1"), part).Scan(&left); err != nil {
				t.Fatal(err)
			}
			return left == 0
		})
	}
	got := make(map[string]int)
	for page, err := range store.PagesOf(t.Context(), q, crm, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 { // the last one
			break
		}
		d := page[0]
		if d.Seq == 0 || d.Seq != seqs[d.ID] {
			t.Errorf("%s has the number %d, and had %d before", d.ID, d.Seq, seqs[d.ID])
		}
		if got[d.ID]++; len(got) == 1 || len(got) == 2*chunkPage {
			move()
		}
	}
	for i := range ds {
		if got[ds[i].ID] != 1 {
			t.Errorf("List has returned delivery %d %d times, want once", i, got[ds[i].ID])
		}
	}
}
