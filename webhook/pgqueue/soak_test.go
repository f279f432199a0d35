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
	"sync"
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
// long pages of 50 take beside the deliveries. Once the history is full, the first third of
// the time that is left is compared with the last third.
func BenchmarkSoak(b *testing.B) {
	q := openOn(b, pool(b), Config{Schema: schemaOf(b.TempDir()), History: *historyFlag, Logger: slog.New(slog.DiscardHandler)})
	l := bench.NewLoad(b, q, 10, 64)
	round, length := 2000, time.Duration(1)
	if soakenv.On() {
		round = 100_000
		length, _ = soakenv.Long(b, "postgres-soak")
	}
	if *historyFlag > 0 {
		l.Bodies = bodies
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
	var full []minute // since the history is full
	b.Log(bloat(b, q))
	before := costs(b, q)
	p := startPager(b, q)
	defer p.stop()
	for deliverTotal+deliverTime < d {
		deliverTime += l.Forward(round)
		bareTime += l.Bare(bare)
		rounds++
		if deliverTime < time.Minute && deliverTotal+deliverTime < d {
			continue
		}
		n, m = n+rounds*round, m+rounds*bare
		deliverTotal, bareTotal = deliverTotal+deliverTime, bareTotal+bareTime
		text := ""
		if *historyFlag > 0 {
			now := p.minute(b, q)
			text = now.String()
			if deliverTotal > *historyFlag*9/7 { // every partition has been in use, and one was emptied
				full = append(full, now)
			}
		}
		b.Logf("%v: %.0f deliveries/s, %.2f x bare; %s%s", deliverTotal.Round(time.Second), float64(rounds*round)/deliverTime.Seconds(),
			bareTime.Seconds()/deliverTime.Seconds()*float64(round/bare), text, bloat(b, q))
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
	if third := len(full) / 3; third > 0 {
		for name, some := range map[string][]minute{"first": full[:third], "last": full[len(full)-third:]} {
			m := middle(some)
			b.ReportMetric(m.p99.Seconds()*1e3, "page-p99-ms-"+name)
			b.ReportMetric(float64(m.disk>>20), "MB-"+name)
			b.ReportMetric(float64(m.disk)/float64(m.kept), "B/kept-"+name)
		}
	}
}

// A minute has what was seen in a part of a soak with a history.
type minute struct {
	kept, keptBytes, unkept int64
	disk, wal               int64 // bytes of the history's tables with their indexes, and of the log's files
	pages                   int
	p50, p99, longest       time.Duration
}

func (m minute) String() string {
	return fmt.Sprintf("%d kept, %d MB, and %d not; its tables %d MB, WAL files %d MB; %d pages: p50 %v, p99 %v, longest %v; ",
		m.kept, m.keptBytes>>20, m.unkept, m.disk>>20, m.wal>>20, m.pages, m.p50, m.p99, m.longest)
}

// middle returns the medians of what is compared.
func middle(ms []minute) (m minute) {
	median := func(of func(minute) int64) int64 {
		var all []int64
		for _, m := range ms {
			all = append(all, of(m))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	m.kept = median(func(m minute) int64 { return m.kept })
	m.disk = median(func(m minute) int64 { return m.disk })
	m.p99 = time.Duration(median(func(m minute) int64 { return int64(m.p99) }))
	return m
}

// A pager reads pages of a history beside the deliveries, 20 a second: the latest 50 of a destination,
// and the oldest.
type pager struct {
	stop func()

	mu   sync.Mutex
	took []time.Duration // since the last minute
}

func startPager(b *testing.B, q *Store) *pager {
	ctx, cancel := context.WithCancel(b.Context())
	p := &pager{stop: cancel}
	if *historyFlag == 0 {
		return p
	}
	var wg sync.WaitGroup
	p.stop = func() { cancel(); wg.Wait() }
	wg.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			began := time.Now()
			_, _, err := q.List(ctx, store.Query{Destinations: []string{fmt.Sprint("d", n%10)}, Oldest: n%20 >= 10}, 0, 50)
			took := time.Since(began)
			if err != nil {
				if ctx.Err() == nil {
					b.Errorf("List = %v", err)
				}
				return
			}
			p.mu.Lock()
			p.took = append(p.took, took)
			p.mu.Unlock()
		}
	})
	return p
}

// minute returns what was seen since the last one.
func (p *pager) minute(b *testing.B, q *Store) (m minute) {
	b.Helper()
	c, err := q.Count(b.Context())
	if err == nil {
		err = q.db.pool.QueryRow(b.Context(), `SELECT (SELECT coalesce(sum(pg_total_relation_size(relid)), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = $1 AND relname LIKE 'kept%'),
	(SELECT sum(size)::bigint FROM pg_ls_waldir())`, q.db.config.Schema).Scan(&m.disk, &m.wal)
	}
	if err != nil {
		b.Fatal(err)
	}
	p.mu.Lock()
	took := p.took
	p.took = nil
	p.mu.Unlock()
	m.kept, m.keptBytes, m.unkept, m.pages = int64(c.Delivered), c.DeliveredBytes, q.Unkept(), len(took)
	if slices.Sort(took); len(took) > 0 {
		m.p50, m.p99, m.longest = took[len(took)/2].Round(10*time.Microsecond), took[len(took)*99/100].Round(10*time.Microsecond), took[len(took)-1].Round(10*time.Microsecond)
	}
	return m
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
