//go:build unix

package pgqueue

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/store"
)

// A List whose time is over returns what it has found, and where the next one goes on. Together such pages
// are the whole list.
func TestListEndsWithItsTime(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer q.Close()
	const n = 3 * fewRows
	ds := make([]store.Delivery, n)
	for i := range ds { // each is in a row of its own
		ds[i] = store.Delivery{Destination: fmt.Sprint("d", i), ID: fmt.Sprint(i), Type: []string{"rare", "usual"}[min(i, 1)], Body: []byte("{}"), Accepted: q.Now(), Due: q.Now().Add(time.Hour)}
	}
	putAll(t, q, ds...)
	pages, found := 0, 0
	for after, more := uint64(0), true; more; pages++ {
		l := listing{Listing: store.Listing{Query: &store.Query{Type: "rare"}, After: after, Max: 10}, store: q}
		if err := pgx.BeginFunc(t.Context(), q.db.pool, func(tx pgx.Tx) error {
			l.tx = tx
			return l.run(t.Context())
		}); err != nil {
			t.Fatal(err)
		}
		found, after, more = found+len(l.Page), l.Next, l.Next != 0
	}
	if pages < 3 || found != 1 {
		t.Errorf("%d pages have %d rare deliveries, want three pages or more, and one delivery", pages, found)
	}
}
