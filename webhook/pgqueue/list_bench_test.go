//go:build unix

package pgqueue

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/store"
)

var listedFlag = flag.Int("listed", 1000, "how many deliveries wait and how many are dead in BenchmarkList, where ten times as many are kept; 1000000 for figures")

// BenchmarkList reports the median and the longest time of a page of 50, of each kind. One of 10,000
// destinations has 1 in 10,000 of the deliveries, and a hot one has half of them.
func BenchmarkList(b *testing.B) {
	q := openOn(b, pool(b), Config{Schema: schemaOf(b.TempDir()), History: 24 * time.Hour, Claim: time.Hour, Poll: time.Hour})
	defer q.Close()
	n := *listedFlag
	fillWaiting(b, q, n)
	fillSettled(b, q, n)
	one, hot, middle := []string{"d7"}, []string{"hot"}, q.Now().Add(-time.Duration(6*n)*time.Millisecond)
	last := listAll(b, q, store.Query{Destinations: one})
	id := ""
	for _, r := range last {
		if r.State == store.StateDelivered {
			id = r.ID // the oldest one
		}
	}
	for _, page := range []struct {
		name string
		q    store.Query
	}{
		{"one", store.Query{Destinations: one}}, {"hot", store.Query{Destinations: hot}}, {"all", store.Query{}}, {"all,oldest", store.Query{Oldest: true}},
		{"one,dead", store.Query{Destinations: one, States: []store.State{store.StateDead}}},
		{"hot,waiting", store.Query{Destinations: hot, States: []store.State{store.StateWaiting}}},
		{"all,delivered", store.Query{States: []store.State{store.StateDelivered}}},
		{"one,time", store.Query{Destinations: one, To: middle}}, {"all,time", store.Query{From: middle.Add(-time.Hour), To: middle}},
		{"all,time,oldest", store.Query{From: middle, Oldest: true}},
		{"one,id", store.Query{Destinations: one, ID: id}}, {"all,id,delivered", store.Query{ID: id, States: []store.State{store.StateDelivered}}},
		{"all,id", store.Query{ID: id}}, {"all,type", store.Query{Type: "rare"}},
	} {
		b.Run(page.name, func(b *testing.B) {
			var took []time.Duration
			listed, before := 0, costs(b, q)
			for b.Loop() {
				began := time.Now()
				rs, _, err := q.List(context.Background(), page.q, 0, 50)
				if err != nil {
					b.Fatal(err)
				}
				took, listed = append(took, time.Since(began)), len(rs)
			}
			after := costs(b, q)
			b.ReportMetric((after.database+after.process-before.database-before.process)/float64(len(took))/1e3, "cpu-ms")
			slices.Sort(took)
			b.ReportMetric(float64(listed), "listed")
			b.ReportMetric(took[len(took)/2].Seconds()*1e3, "p50-ms")
			b.ReportMetric(took[len(took)-1].Seconds()*1e3, "max-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// bodies are 1,000 different ones of 450 bytes, which compress as those of real events do.
var bodies = func() (all [][]byte) {
	r := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("Order Product Cart Checkout Viewed Added Completed Started blue green small large shoes shirt jacket summer winter sale")
	word := func() string { return words[r.IntN(len(words))] }
	for range 1000 {
		b := fmt.Appendf(nil, `{"version":1,"type":"track","messageId":"%016x-%016x","userId":"user-%d","event":"%s %s","properties":{"order":"%x","total":%d.%02d,"products":[`,
			r.Uint64(), r.Uint64(), r.IntN(1_000_000), word(), word(), r.Uint32(), r.IntN(500), r.IntN(100))
		for len(b) < 340 {
			b = fmt.Appendf(b, `{"sku":"%x","name":"%s %s %s","price":%d},`, r.Uint32(), word(), word(), word(), r.IntN(10_000))
		}
		b = fmt.Appendf(b, `{}]},"timestamp":"2026-01-02T03:%02d:%02d.%03dZ"`, r.IntN(60), r.IntN(60), r.IntN(1000))
		all = append(all, fmt.Appendf(b, "%*s", 450-len(b), "}"))
	}
	return all
}()

// BenchmarkHistory compares deliveries with a history to deliveries without, in turn. It reports WAL and
// processor time of the database for each delivery, and the size of a kept delivery on disk. Part of the
// disk are indexes.
func BenchmarkHistory(b *testing.B) {
	for _, destinations := range []int{1, 10, 1000} {
		b.Run(fmt.Sprint("destinations=", destinations), func(b *testing.B) {
			var loads [2]*bench.Load
			var stores [2]*Store
			for with := range loads {
				c := Config{Schema: schemaOf(fmt.Sprint(b.TempDir(), with)), Logger: slog.New(slog.DiscardHandler)}
				if with == 1 {
					c.History = 24 * time.Hour
				}
				stores[with] = openOn(b, pool(b), c)
				loads[with] = bench.NewLoad(b, stores[with], destinations, 64)
				loads[with].Bodies = bodies
				loads[with].Forward(bench.Batch)
			}
			var took [2]time.Duration
			var used [2]cost
			n := 0
			for b.Loop() {
				for with, l := range loads {
					before := costs(b, stores[with])
					took[with] += l.Forward(*bench.Round)
					after := costs(b, stores[with])
					used[with].wal += after.wal - before.wal
					used[with].database += after.database - before.database
				}
				n += *bench.Round
			}
			var size, kept int64
			err := stores[1].db.pool.QueryRow(b.Context(), stores[1].db.in(`SELECT sum(pg_total_relation_size(('S.kept_' || part)::regclass))::bigint,
	(SELECT sum(n) FROM S.kept) FROM S.ring`)).Scan(&size, &kept)
			if err != nil || kept != int64(n+bench.Batch) || stores[1].Unkept() != 0 {
				b.Errorf("%d of %d are kept, %d are not, %v", kept, n+bench.Batch, stores[1].Unkept(), err)
			}
			for with, name := range []string{"without", "with"} {
				b.ReportMetric(float64(n)/took[with].Seconds(), "deliveries/s-"+name)
				b.ReportMetric(used[with].wal/float64(n), "WAL-B-"+name)
				b.ReportMetric(used[with].database/float64(n), "db-cpu-µs-"+name)
			}
			b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "x-without")
			b.ReportMetric(float64(size)/float64(kept), "disk-B")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// destinationOf returns the destination of delivery i.
func destinationOf(i int) string {
	if i%2 == 0 {
		return "hot"
	}
	return fmt.Sprint("d", i/2%10_000)
}

// fillWaiting puts n deliveries.
func fillWaiting(b *testing.B, q *Store, n int) {
	from := q.Now().Add(-time.Duration(12*n) * time.Millisecond)
	for i := 0; i < n; i += 1000 {
		ds := make([]store.Delivery, min(n-i, 1000))
		for j := range ds {
			at := from.Add(time.Duration(i+j) * time.Millisecond)
			ds[j] = store.Delivery{Destination: destinationOf(i + j), ID: fmt.Sprint("wait-", i+j), Type: "track", Body: bench.Body, Accepted: at, Due: at.Add(48 * time.Hour)}
		}
		putAll(b, q, ds...)
	}
}

// fillSettled stores n dead letters and 10 n kept deliveries, as the transactions of settlements would.
func fillSettled(b *testing.B, q *Store, n int) {
	ctx := context.Background()
	var chunks, hot int64
	if err := q.db.pool.QueryRow(ctx, q.db.in("SELECT nextval('S.ids')")).Scan(&chunks); err != nil {
		b.Fatal(err)
	}
	from := q.Now().Add(-time.Duration(11*n) * time.Millisecond)
	for i := 0; i < 11*n; i += 1100 {
		batch := new(pgx.Batch)
		var rs []store.Record
		for j := i; j < min(i+1100, 11*n); j++ {
			to := destinationOf(j)
			hot++
			seq := hot // a put has 100 deliveries to the hot destination, or one to another
			if to != "hot" || hot%chunkItems >= 100 || hot < chunkItems {
				chunks++
				if seq = chunks * chunkItems; to == "hot" {
					hot = seq
				} else {
					hot--
				}
			}
			d := store.Delivery{
				Destination: to, ID: fmt.Sprint("kept-", j), Type: "track", User: fmt.Sprint("user-", seq%1000), Body: bodies[seq%1000],
				Accepted: from.Add(time.Duration(j) * time.Millisecond), Due: from, Seq: uint64(seq), Tries: 1,
				Attempts: []store.Attempt{{At: from, Took: store.Millis(time.Millisecond), Try: 1, Endpoint: "https://example.com/hook", Status: 200}},
			}
			if j%11 == 0 {
				t := settling{claimer: q.claimer, ended: make(map[*chunk]int)}
				t.bury(&d, &store.Settlement{Reason: store.ReasonExpired, At: from})
				for _, query := range t.batch.QueuedQueries {
					batch.Queue(query.SQL, query.Arguments...)
				}
				continue
			}
			rs = append(rs, store.Record{Delivery: d, At: from})
		}
		lost := q.claimer.history.queue(batch, rs)
		if err := q.db.pool.SendBatch(ctx, batch).Close(); err != nil || *lost != 0 {
			b.Fatalf("%d not kept, %v", *lost, err)
		}
	}
	exec(b, q.db.pool, q.db.config, fmt.Sprintf("SELECT setval('S.ids', %d)", chunks+1))
}
