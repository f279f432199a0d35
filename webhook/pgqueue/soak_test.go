//go:build unix

package pgqueue

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/internal/bench"
)

var soak = flag.Duration("soak", time.Second, "how long BenchmarkSoak delivers")

// BenchmarkSoak delivers at full rate for -soak, and prints what a delivery costs
// the database and this process, and what is left in the tables by then.
func BenchmarkSoak(b *testing.B) {
	q := openDefault(b, b.TempDir()).(*Queue)
	l := bench.NewLoad(b, q, 10, 64)
	l.Bare(1000)
	l.Forward(1000)
	for b.Loop() {
		soakFor(b, q, l, *soak)
	}
	b.ReportMetric(0, "ns/op")
}

// soakFor has rounds of deliveries, and a shorter one of bare requests after
// each.
func soakFor(b *testing.B, q *Queue, l *bench.Load, d time.Duration) {
	const round, bare = 100_000, 10_000
	var ours, theirs, our, their time.Duration // in all, and since the last line
	n, m, rounds := 0, 0, 0
	b.Log(bloat(b, q))
	before := costs(b, q)
	for ours+our < d {
		our += l.Forward(round)
		their += l.Bare(bare)
		rounds++
		if our < time.Minute && ours+our < d {
			continue
		}
		n, m = n+rounds*round, m+rounds*bare
		ours, theirs = ours+our, theirs+their
		b.Logf("%v: %.0f deliveries/s, %.2f x bare; %s", ours.Round(time.Second), float64(rounds*round)/our.Seconds(),
			their.Seconds()/our.Seconds()*round/bare, bloat(b, q))
		our, their, rounds = 0, 0, 0
	}
	after := costs(b, q)
	per := func(name string, before, after float64) { b.ReportMetric((after-before)/float64(n), name+"/delivery") }
	b.ReportMetric(float64(n)/ours.Seconds(), "deliveries/s")
	b.ReportMetric(theirs.Seconds()/float64(m)*float64(n)/ours.Seconds(), "x_bare")
	per("WAL-B", before.wal, after.wal)
	per("commits", before.commits, after.commits)
	per("db-cpu-µs", before.database, after.database)
	per("cpu-µs", before.process, after.process-float64(m)*bareCPU(b, l))
}

// A cost is what was spent so far: bytes of WAL, commits, and microseconds of the
// processors.
type cost struct{ wal, commits, database, process float64 }

func costs(b *testing.B, q *Queue) (c cost) {
	b.Helper()
	err := q.pool.QueryRow(context.Background(), `SELECT pg_current_wal_lsn() - '0/0'::pg_lsn,
	(SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())`).Scan(&c.wal, &c.commits)
	if err != nil {
		b.Fatal(err)
	}
	c.database, c.process = float64(server.CPU().Microseconds()), processCPU(b)
	return c
}

func processCPU(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(time.Duration(u.Utime.Nano() + u.Stime.Nano()).Microseconds())
}

// bareCPU returns the microseconds that a bare request takes of this process.
func bareCPU(b *testing.B, l *bench.Load) float64 {
	b.Helper()
	const n = 10_000
	before := processCPU(b)
	l.Bare(n)
	return (processCPU(b) - before) / n
}

// bloat says how large the tables are, with their indexes, and what is dead in
// them, and the heap of this process.
func bloat(b *testing.B, q *Queue) string {
	b.Helper()
	rows, err := q.pool.Query(context.Background(), `SELECT relname, pg_table_size(relid) / 1048576, pg_indexes_size(relid) / 1048576,
	pg_stat_get_live_tuples(relid), pg_stat_get_dead_tuples(relid)
FROM pg_stat_user_tables WHERE schemaname = $1 AND pg_total_relation_size(relid) > 1048576 ORDER BY relname`, q.config.Schema)
	if err != nil {
		b.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (string, error) {
		var (
			name                       string
			table, indexes, live, dead int64
		)
		err := r.Scan(&name, &table, &indexes, &live, &dead)
		return fmt.Sprintf("%s %d + %d MB, %d live, %d dead", name, table, indexes, live, dead), err
	})
	if err != nil {
		b.Fatal(err)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return fmt.Sprintf("heap %d MB; %s", m.HeapSys>>20, strings.Join(lines, "; "))
}
