//go:build unix

package pgqueue

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/store"
)

var historyFlag = flag.Duration("history", 0, "the History of BenchmarkSoak, at least a minute")

// BenchmarkSoak delivers at full rate, in one short round or for as long as the soak
// command says. It reports the cost of a delivery to the database and to this process, and
// the sizes of the tables. With -history, deliveries are kept for so long, and it reports how
// long pages of 50 take.
func BenchmarkSoak(b *testing.B) {
	q := openOn(b, pool(b), Config{Schema: schemaOf(b.TempDir()), History: *historyFlag, Logger: slog.New(slog.DiscardHandler)})
	l := bench.NewLoad(b, q, 10, 64)
	round, length := 2000, time.Duration(1)
	if soakenv.On() {
		round = 100_000
		length, _ = soakenv.Long(b, "postgres-soak")
	}
	l.Bare(1000)
	l.Forward(1000)
	for b.Loop() {
		soakFor(b, q, l, round, length)
	}
	b.ReportMetric(0, "ns/op")
}

// soakFor delivers in rounds. After each round it sends a tenth as many bare requests.
func soakFor(b *testing.B, q *Store, l *bench.Load, round int, d time.Duration) {
	bare := round / 10
	var deliverTotal, bareTotal, deliverTime, bareTime time.Duration // in all, and since the last log line
	n, m, rounds := 0, 0, 0
	b.Log(bloat(b, q))
	before := costs(b, q)
	for deliverTotal+deliverTime < d {
		deliverTime += l.Forward(round)
		bareTime += l.Bare(bare)
		rounds++
		if deliverTime < time.Minute && deliverTotal+deliverTime < d {
			continue
		}
		n, m = n+rounds*round, m+rounds*bare
		deliverTotal, bareTotal = deliverTotal+deliverTime, bareTotal+bareTime
		b.Logf("%v: %.0f deliveries/s, %.2f x bare; %s%s", deliverTotal.Round(time.Second), float64(rounds*round)/deliverTime.Seconds(),
			bareTime.Seconds()/deliverTime.Seconds()*float64(round/bare), pages(b, q), bloat(b, q))
		deliverTime, bareTime, rounds = 0, 0, 0
	}
	after := costs(b, q)
	per := func(name string, before, after float64) { b.ReportMetric((after-before)/float64(n), name+"/delivery") }
	b.ReportMetric(float64(n)/deliverTotal.Seconds(), "deliveries/s")
	b.ReportMetric(bareTotal.Seconds()/float64(m)*float64(n)/deliverTotal.Seconds(), "x_bare")
	per("WAL-B", before.wal, after.wal)
	per("commits", before.commits, after.commits)
	per("db-cpu-µs", before.database, after.database)
	per("cpu-µs", before.process, after.process-float64(m)*bareCPU(b, l))
}

// pages returns a text with how much is kept, and how long a page of the 50 latest deliveries of a
// destination takes.
func pages(b *testing.B, q *Store) string {
	b.Helper()
	if *historyFlag == 0 {
		return ""
	}
	c, err := q.Count(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	took := make([]time.Duration, 200)
	for i := range took {
		began := time.Now()
		rs, _, err := q.List(b.Context(), store.Query{Destinations: []string{"d0"}}, 0, 50)
		if took[i] = time.Since(began); err != nil || len(rs) != 50 {
			b.Fatalf("List = %d, %v; want 50", len(rs), err)
		}
	}
	slices.Sort(took)
	return fmt.Sprintf("%d kept, %d MB, and %d not; a page: p50 %v, p99 %v; ", c.Delivered, c.DeliveredBytes>>20, q.Unkept(), took[100].Round(10*time.Microsecond), took[198].Round(10*time.Microsecond))
}

// A cost counts the resources used so far: bytes of WAL, commits, and microseconds of
// processor time of the database and of this process.
type cost struct{ wal, commits, database, process float64 }

func costs(b *testing.B, q *Store) (c cost) {
	b.Helper()
	err := q.db.pool.QueryRow(context.Background(), `SELECT pg_current_wal_lsn() - '0/0'::pg_lsn,
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

// bareCPU returns the microseconds of processor time that a bare request costs this process.
func bareCPU(b *testing.B, l *bench.Load) float64 {
	b.Helper()
	const n = 10_000
	before := processCPU(b)
	l.Bare(n)
	return (processCPU(b) - before) / n
}

// bloat returns a text with the heap size of this process. For each table it has the sizes of
// the table and its indexes, and the numbers of live and dead rows.
func bloat(b *testing.B, q *Store) string {
	b.Helper()
	rows, err := q.db.pool.Query(context.Background(), `SELECT relname, pg_table_size(relid) / 1048576, pg_indexes_size(relid) / 1048576,
	pg_stat_get_live_tuples(relid), pg_stat_get_dead_tuples(relid)
FROM pg_stat_user_tables WHERE schemaname = $1 AND pg_total_relation_size(relid) > 1048576 ORDER BY relname`, q.db.config.Schema)
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
