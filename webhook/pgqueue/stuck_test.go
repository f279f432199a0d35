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

	"github.com/hookferry/analytics/webhook/store"
)

// While a transaction that has put a delivery is open, a Put of the same delivery waits for the
// end of the transaction. A Put of other deliveries does not wait.
func TestPutWaitsForTransactionWithSameDelivery(t *testing.T) {
	for _, commit := range []bool{true, false} {
		t.Run(fmt.Sprint("commit=", commit), func(t *testing.T) {
			createVirtualDatabase(t) // in a bubble a Put that waits for the server does not time out
			synctest.Test(t, func(t *testing.T) {
				q := openVirtual(t, address(t), pgx.QueryExecModeCacheStatement, Config{Schema: schemaOf(t.TempDir()), Poll: time.Hour, Claim: time.Hour})
				defer q.Close()
				ctx := t.Context()
				tx, err := q.db.pool.Begin(ctx)
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback(ctx)
				same := deliveries("crm", 0, 3)
				if n, err := putInTx(ctx, q, tx, puts(same...)); n != 3 || err != nil {
					t.Fatalf("PutTx = %d, %v; want 3", n, err)
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
				go put(short) // sends its result to ended
				var wg sync.WaitGroup
				for i := range 100 {
					wg.Go(func() { putAll(t, q, deliveries("crm", 10+i, 1)...) })
				}
				wg.Wait()
				cancel()
				if r := <-ended; !errors.Is(r.err, context.Canceled) {
					t.Errorf("cancelled Put = %d, %v; want context.Canceled", r.n, r.err)
				}

				go put(ctx) // sends its result to ended
				// When the next Put returns, the one above waits for the transaction.
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
				settleAll(t, q, store.Done, got)
				wantWaiting(t, q, 0)
			})
		})
	}
}

// Close gives up on a database that hangs after writeTimeout, even if Config.Claim is longer.
func TestCloseGivesUpOnHangingDatabase(t *testing.T) {
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
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+q.db.schema+".node"); err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close = %v, want context.DeadlineExceeded", err)
	}
}
