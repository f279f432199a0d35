//go:build unix

package pgqueue

import (
	"context"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook/internal/bench"
)

// BenchmarkWaiting prints the bytes that the tables and their indexes need for a delivery
// that waits, including its body of 450 bytes and the key by which its put is recognised:
// put in batches of 100 (together), and one by one (alone).
func BenchmarkWaiting(b *testing.B) {
	for _, tt := range []struct {
		name  string
		batch int
	}{{"together", 100}, {"alone", 1}} {
		b.Run(tt.name, func(b *testing.B) {
			// It measures what is stored, which need not be on the disk.
			q := openDefault(b, b.TempDir())
			defer q.Close()
			if _, err := q.pool.Exec(b.Context(), "ALTER ROLE test SET synchronous_commit = off"); err != nil {
				b.Fatal(err)
			}
			defer q.pool.Exec(context.Background(), "ALTER ROLE test RESET synchronous_commit")
			q.pool.Reset()
			ctx := context.Background()
			const n = 5000
			next := 0
			size := func() (v float64) {
				if err := q.pool.QueryRow(ctx, "SELECT sum(pg_total_relation_size(c.oid))::float8 FROM pg_class c WHERE relkind = 'r' AND relnamespace = $1::regnamespace", q.config.Schema).Scan(&v); err != nil {
					b.Fatal(err)
				}
				return v
			}
			for b.Loop() {
				before := size()
				for end := next + n; next < end; next += tt.batch {
					ds := deliveries("waits", next, tt.batch)
					for i := range ds {
						ds[i].Due = time.Now().Add(time.Hour)
						ds[i].Body = bench.Body
					}
					if _, err := putSome(ctx, q, ds...); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric((size()-before)/n, "B/waiting")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
