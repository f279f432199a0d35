//go:build unix

package pgqueue

import (
	"context"
	"flag"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/store"
)

// rotate puts a delivery with that number, and rotates the dedup window: the store forgets its
// older half.
func rotate(t *testing.T, q *Store, number int) {
	t.Helper()
	putAll(t, q, deliveries("rotates", number, 1)...)
	sql := "SELECT dedup_since FROM " + q.db.schema + ".state"
	var before, after time.Time
	if err := q.db.pool.QueryRow(t.Context(), sql).Scan(&before); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the dedup window is rotated", func() bool { // upkeep waits while an autovacuum has the table
		if err := q.maintainer.upkeep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := q.db.pool.QueryRow(t.Context(), sql).Scan(&after); err != nil {
			t.Fatal(err)
		}
		return after.After(before)
	})
}

// The store remembers a key until the dedup window has been rotated twice.
func TestKeyIsForgottenAfterTwoRotations(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), DedupMax: 2})
	defer q.Close()
	for i, step := range []struct {
		name   string
		n, new int
		rotate bool
	}{{"new", 10, 10, true}, {"after a rotation", 11, 1, true}, {"the first keys are forgotten", 11, 10, false}, {"all are known", 11, 0, false}} {
		if n, err := putSome(t.Context(), q, deliveries("crm", 0, step.n)...); n != step.new || err != nil {
			t.Errorf("%s: Put = %d, %v; want %d", step.name, n, err, step.new)
		}
		if step.rotate {
			rotate(t, q, i)
		}
	}
}

// PutTx adds keys to the newer half of the dedup window. A transaction with a snapshot from
// before the latest rotation cannot: PutTx fails with the SQLSTATE that says to try it again.
func TestPutTxAddsKeysToNewerHalfOfDedupWindow(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			c := Config{Schema: schemaOf(t.TempDir()), DedupMax: 2}
			a, b := openWith(t, c), openWith(t, c)
			defer a.Close()
			defer b.Close()
			begin := func() pgx.Tx {
				t.Helper()
				tx, err := b.db.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
				if err == nil {
					_, err = tx.Exec(t.Context(), "SELECT count(*) FROM pg_class") // takes a snapshot, unless the level is read committed
				}
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { tx.Rollback(context.Background()) })
				return tx
			}
			put := func(tx pgx.Tx, want int) {
				t.Helper()
				if n, err := putInTx(t.Context(), b, tx, puts(deliveries("crm", 0, 10)...)); n != want || err != nil {
					t.Fatalf("PutTx = %d, %v; want %d", n, err, want)
				}
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			rotate(t, a, 0)
			early := begin()
			put(begin(), 10)
			put(begin(), 0)
			rotate(t, a, 1)
			if level == pgx.ReadCommitted {
				put(early, 0)
			} else if n, err := putInTx(t.Context(), b, early, puts(deliveries("crm", 0, 10)...)); !hasCode(err, "40001") {
				t.Errorf("PutTx with a snapshot from before the rotation = %d, %v; want SQLSTATE 40001", n, err)
			}
			put(begin(), 0)
		})
	}
}

// A very large DedupMax is no error: the age alone bounds the dedup window.
func TestLargestDedupMax(t *testing.T) {
	q := openWith(t, Config{Schema: schemaOf(t.TempDir()), DedupMax: math.MaxInt})
	defer q.Close()
	putAll(t, q, deliveries("crm", 0, 1)...)
	if err := q.maintainer.upkeep(t.Context()); err != nil {
		t.Errorf("upkeep = %v, want nil", err)
	}
}

var remembered = flag.Int("remembered", 10_000, "how many puts are remembered in BenchmarkWindow")

// BenchmarkWindow reports the cost of a put to the database and to this process, with a dedup
// window of -remembered keys.
func BenchmarkWindow(b *testing.B) {
	q := openDefault(b, b.TempDir())
	defer q.Close()
	ctx := context.Background()
	for i := range 2 {
		for left := *remembered / 2; left > 0; left -= 500_000 {
			sql := fmt.Sprintf("INSERT INTO %s.dedup SELECT %d, gen_random_uuid() k FROM generate_series(1, $1) ORDER BY k", q.db.schema, i)
			if _, err := q.db.pool.Exec(ctx, sql, min(left, 500_000)); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Log(bloat(b, q))
	if _, err := q.db.pool.Exec(ctx, "CHECKPOINT"); err != nil {
		b.Fatal(err)
	}
	var id atomic.Int64
	puts := func(n int) {
		var wg sync.WaitGroup
		var left atomic.Int64
		left.Store(int64(n / 100))
		for w := range 16 {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					to := fmt.Sprint("d", w)
					ds := make([]store.Delivery, 100)
					from := int(id.Add(100))
					for i := range ds {
						ds[i] = deliveries(to, from+i, 1)[0]
						ds[i].Body = bench.Body
					}
					if n, err := putSome(ctx, q, ds...); n != len(ds) || err != nil {
						b.Errorf("Put = %d, %v; want %d", n, err, len(ds))
					}
				}
			})
		}
		wg.Wait()
	}
	each := min(*remembered, 100_000)
	puts(each / 5)
	before := costs(b, q)
	n := 0
	for b.Loop() {
		puts(each)
		n += each
	}
	after := costs(b, q)
	b.ReportMetric((after.wal-before.wal)/float64(n), "WAL-B/put")
	b.ReportMetric((after.database-before.database)/float64(n), "db-cpu-µs/put")
	b.ReportMetric((after.process-before.process)/float64(n), "cpu-µs/put")
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "puts/s")
	b.ReportMetric(0, "ns/op")
}
