//go:build unix

package pgqueue

import (
	"context"
	"flag"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/tenants/tenantstest"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/store"
)

func openDefault(t testing.TB, dir string) *Store {
	return openOn(t, pool(t), Config{Schema: schemaOf(dir), Logger: slog.New(slog.DiscardHandler)})
}

func BenchmarkStore(b *testing.B) {
	bench.Store(b, func(b *testing.B) store.Store { return openDefault(b, b.TempDir()) })
}

// BenchmarkDeliveries runs PostgreSQL and the receiver as processes of this machine.
func BenchmarkDeliveries(b *testing.B) {
	bench.Deliveries(b, func(b *testing.B) store.Store { return openDefault(b, b.TempDir()) })
}

// BenchmarkOrdered runs PostgreSQL and the receivers as processes of this machine.
func BenchmarkOrdered(b *testing.B) {
	bench.Ordered(b, func(b *testing.B) store.Store { return openDefault(b, b.TempDir()) })
}

// BenchmarkBatches runs PostgreSQL and the receiver as processes of this machine.
func BenchmarkBatches(b *testing.B) {
	bench.Batches(b, func(b *testing.B) store.Store { return openDefault(b, b.TempDir()) }, nil)
}

func BenchmarkIdleLatency(b *testing.B) {
	bench.IdleLatency(b, openDefault(b, b.TempDir()))
}

var backlog = flag.Int("backlog", 1000, "how many deliveries wait in BenchmarkBacklog")

// BenchmarkBacklog is BenchmarkDeliveries with a backlog. Half of the waiting deliveries have a
// row of their own.
func BenchmarkBacklog(b *testing.B) {
	bench.Deliveries(b, func(b *testing.B) store.Store {
		q := openDefault(b, b.TempDir())
		due := time.Now().Add(time.Hour)
		for left := *backlog; left > 0; left -= 1000 {
			ds := make([]store.Delivery, min(left, 1000))
			for i := range ds {
				ds[i] = deliveries("waits", left-i, 1)[0]
				ds[i].Due, ds[i].Body = due, bench.Body
				if i%2 == 0 {
					ds[i].Due = due.Add(time.Duration(i) * time.Minute)
				}
			}
			if n, err := putSome(context.Background(), q, ds...); n != len(ds) || err != nil {
				b.Fatalf("Put = %d, %v; want %d", n, err, len(ds))
			}
		}
		return q
	})
}

// BenchmarkPutTx reports the median time of a transaction that inserts a row. It measures
// transactions with and without PutTx in turn.
func BenchmarkPutTx(b *testing.B) {
	q := openDefault(b, b.TempDir())
	defer q.Close()
	ctx := context.Background()
	if _, err := q.db.pool.Exec(ctx, "CREATE TABLE "+q.db.schema+".orders (id bigint PRIMARY KEY)"); err != nil {
		b.Fatal(err)
	}
	var took [2][]time.Duration
	n := 0
	for b.Loop() {
		for with := range took {
			n++
			ds := deliveries("crm", n, 1)
			ds[0].Body = bench.Body
			begin := time.Now()
			err := pgx.BeginFunc(ctx, q.db.pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO "+q.db.schema+".orders VALUES ($1)", n)
				if err == nil && with == 1 {
					_, err = putInTx(ctx, q, tx, puts(ds...))
				}
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
			took[with] = append(took[with], time.Since(begin))
		}
	}
	median := func(ds []time.Duration) float64 {
		slices.Sort(ds)
		return ds[len(ds)/2].Seconds() * 1000
	}
	b.ReportMetric(median(took[0]), "p50-ms-without")
	b.ReportMetric(median(took[1]), "p50-ms-with")
	b.ReportMetric(0, "ns/op")
}

// TENANTS=100000 go test -run '^$' -bench Tenants -benchtime 1x .
func BenchmarkTenants(b *testing.B) {
	dir := b.TempDir()
	tenantstest.Bench(b, true, func() tenantstest.Store { return openDefault(b, dir) })
}
