//go:build unix

package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook"
)

// A Put of what a transaction has put that goes on waits for its end, and no other
// Put does.
func TestPutBesideTransaction(t *testing.T) {
	for _, commit := range []bool{true, false} {
		t.Run(fmt.Sprint("commit=", commit), func(t *testing.T) {
			q := openWith(t, Config{Schema: schemaOf(t.TempDir()), Poll: time.Hour})
			defer q.Close()
			ctx := t.Context()
			tx, err := q.pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(ctx)
			same := deliveries("crm", 0, 3)
			if n, err := q.PutTx(ctx, tx, same...); n != 3 || err != nil {
				t.Fatalf("PutTx = %d, %v", n, err)
			}

			type result struct {
				n   int
				err error
			}
			ended := make(chan result, 1)
			put := func(ctx context.Context) {
				n, err := q.Put(ctx, same[1])
				ended <- result{n, err}
			}
			short, cancel := context.WithCancel(ctx)
			go put(short) // is received below
			begin := time.Now()
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() { putAll(t, q, deliveries("crm", 10+i, 1)...) })
			}
			wg.Wait()
			if took := time.Since(begin); took >= writeTimeout {
				t.Errorf("other puts took %v", took)
			}
			cancel()
			if r := <-ended; !errors.Is(r.err, context.Canceled) {
				t.Errorf("Put that was cancelled = %d, %v", r.n, r.err)
			}

			go put(ctx) // is received below
			// It has come to wait when others are done that came later.
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
			got := leaseUntil(t, q, 102+map[bool]int{true: 2}[commit])
			settleAll(t, q, webhook.Done, got)
			if c, err := q.Count(ctx); err != nil || c.Waiting != 0 {
				t.Errorf("Count = %+v, %v; want nothing", c, err)
			}
		})
	}
}

// Close waits for a database that hangs as long as for a transaction, however long a
// claim lasts.
func TestCloseBesideHang(t *testing.T) {
	c := newCutter(t)
	p, err := pgxpool.New(t.Context(), "host="+c.dir+" user=test dbname=postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	q, err := Open(t.Context(), p, &Config{Schema: schemaOf(t.TempDir()), Claim: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if q.farewell != writeTimeout {
		t.Errorf("Close may take %v with a Claim of an hour, want %v", q.farewell, writeTimeout)
	}
	q.farewell = 100 * time.Millisecond
	c.gate.Lock()
	defer c.gate.Unlock()
	closed := make(chan error, 1)
	go func() { closed <- q.Close() }()
	select {
	case err := <-closed:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close = %v, want that there was no time", err)
		}
	case <-time.After(patience):
		t.Error("Close hangs")
	}
}
