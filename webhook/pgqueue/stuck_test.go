//go:build unix

package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

// While a transaction has put a delivery and goes on, a Put of the same delivery waits for
// its end. No other Put does.
func TestPutBesideTransaction(t *testing.T) {
	for _, commit := range []bool{true, false} {
		t.Run(fmt.Sprint("commit=", commit), func(t *testing.T) {
			makeVirtual(t) // in a bubble no Put waits for so long that it gives up
			synctest.Test(t, func(t *testing.T) {
				q := openVirtual(t, address(t), pgx.QueryExecModeCacheStatement, Config{Schema: schemaOf(t.TempDir()), Poll: time.Hour, Claim: time.Hour})
				defer q.Close()
				ctx := t.Context()
				tx, err := q.pool.Begin(ctx)
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback(ctx)
				same := deliveries("crm", 0, 3)
				if n, err := q.PutTx(ctx, tx, same); n != 3 || err != nil {
					t.Fatalf("PutTx = %d, %v", n, err)
				}

				type result struct {
					n   int
					err error
				}
				ended := make(chan result, 1)
				put := func(ctx context.Context) {
					n, err := putSome(ctx, q, same[1])
					ended <- result{n, err}
				}
				short, cancel := context.WithCancel(ctx)
				go put(short) // is received below
				var wg sync.WaitGroup
				for i := range 100 {
					wg.Go(func() { putAll(t, q, deliveries("crm", 10+i, 1)...) })
				}
				wg.Wait()
				cancel()
				if r := <-ended; !errors.Is(r.err, context.Canceled) {
					t.Errorf("Put that was cancelled = %d, %v", r.n, r.err)
				}

				go put(ctx) // is received below
				// It waits by the time that a later Put is done.
				putAll(t, q, deliveries("crm", 1000, 1)...)
				want := 1
				if commit {
					want = 0
					err = tx.Commit(ctx)
				} else {
					err = tx.Rollback(ctx)
				}
				if err != nil {
					t.Fatal(err)
				}
				if r := <-ended; r.n != want || r.err != nil {
					t.Errorf("Put after the transaction = %d, %v, want %d", r.n, r.err, want)
				}
				got := fetchUntil(t, q, 102+map[bool]int{true: 2}[commit], "crm")
				settleAll(t, q, webhook.Done, got)
				waits(t, q, 0)
			})
		})
	}
}

// Close waits for a database that hangs as long as for a transaction, however long a
// claim lasts.
func TestCloseBesideHang(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), Claim: time.Hour})
	if q.farewell != writeTimeout {
		t.Errorf("Close may take %v with a Claim of an hour, want %v", q.farewell, writeTimeout)
	}
	q.farewell = 100 * time.Millisecond
	tx, err := pool(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+q.schema+".node"); err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close = %v, want that there was no time", err)
	}
}
