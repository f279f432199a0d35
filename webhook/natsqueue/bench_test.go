package natsqueue

import (
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook/internal/bench"
	"github.com/hookferry/analytics/webhook/store"
)

// BenchmarkStore gives each store a stream of its own.
func BenchmarkStore(b *testing.B) {
	bench.Store(b, func(b *testing.B) store.Store {
		c := Config{Stream: nameOf(b.TempDir()), Logger: slog.New(slog.DiscardHandler)}
		return openOn(b, connect(b, os.Getenv("NATS_URL")), c)
	})
}

// openApart is openDefault with a server in another process.
func openApart(b *testing.B) *Store {
	_, url := bench.Start(b, serverVariable+"=1")
	return openOn(b, connect(b, url), Config{Logger: slog.New(slog.DiscardHandler)})
}

// BenchmarkDeliveries runs the server and the receiver as processes of this machine.
func BenchmarkDeliveries(b *testing.B) {
	bench.Deliveries(b, func(b *testing.B) store.Store { return openApart(b) })
}

// BenchmarkOrdered runs a server for each store, and the receivers, as processes of this machine.
func BenchmarkOrdered(b *testing.B) {
	bench.Ordered(b, func(b *testing.B) store.Store { return openApart(b) })
}

// BenchmarkBatches runs a server for each store, and the receiver, as processes of this machine.
func BenchmarkBatches(b *testing.B) {
	bench.Batches(b, func(b *testing.B) store.Store { return openApart(b) }, nil)
}

// BenchmarkReplicated is BenchmarkDeliveries with three servers in this process. Each server
// stores all deliveries.
func BenchmarkReplicated(b *testing.B) {
	bench.Deliveries(b, func(b *testing.B) store.Store {
		return openOn(b, connect(b, startCluster(b)), Config{Replicas: 3, Logger: slog.New(slog.DiscardHandler)})
	})
}

// startCluster starts three servers, until the benchmark ends, and returns their URLs.
func startCluster(b *testing.B) string {
	var routes []*url.URL
	for range 3 {
		routes = append(routes, &url.URL{Scheme: "nats-route", Host: fmt.Sprint("127.0.0.1:", testkit.Port(b))})
	}
	var all []*server.Server
	var urls []string
	for i, route := range routes {
		name := fmt.Sprint("s", i)
		port, _ := strconv.Atoi(route.Port())
		s, err := server.NewServer(&server.Options{
			ServerName: name, Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: b.TempDir(),
			Cluster: server.ClusterOpts{Name: "bench", Host: "127.0.0.1", Port: port},
			Routes:  routes, NoSigs: true, NoLog: true, MaxPayload: maxPayload,
		})
		if err != nil {
			b.Fatal(err)
		}
		s.Start()
		b.Cleanup(func() { stop(s) })
		all = append(all, s)
	}
	testkit.Until(b, "the cluster has a leader of all servers", func() bool {
		return slices.ContainsFunc(all, func(s *server.Server) bool {
			return s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == len(all)
		})
	})
	for _, s := range all {
		urls = append(urls, s.ClientURL())
	}
	return strings.Join(urls, ",")
}

func BenchmarkIdleLatency(b *testing.B) { bench.IdleLatency(b, openApart(b)) }

var backlog = flag.Int("backlog", 1000, "how many deliveries wait in BenchmarkBacklog")

// fill puts the backlog. Half of the waiting deliveries are each due at a different time.
func fill(b *testing.B, s *Store) {
	due := time.Now().Add(time.Hour)
	for left := *backlog; left > 0; left -= 1000 {
		ds := make([]store.Delivery, min(left, 1000))
		for i := range ds {
			ds[i] = store.Delivery{Destination: "waits", ID: fmt.Sprint(left - i), Type: "track", Body: bench.Body, Accepted: time.Now(), Due: due}
			if i%2 == 0 {
				ds[i].Due = due.Add(time.Duration(i) * time.Minute)
			}
		}
		mustPut(b, s, ds...)
	}
}

// reportHeap reports the heap of this process at the end, as the benchmark's loop resets metrics.
func reportHeap(b *testing.B) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.Cleanup(func() { b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "heap-MB") })
}

// BenchmarkBacklog is BenchmarkDeliveries with a backlog. It also reports the heap of this process with
// the backlog.
func BenchmarkBacklog(b *testing.B) {
	bench.Deliveries(b, func(b *testing.B) store.Store {
		s := openApart(b)
		fill(b, s)
		reportHeap(b)
		return s
	})
}

// BenchmarkList reads pages of 50, with a backlog of which half are dead letters. It also reports
// how long a node that opens the store needs until it knows the dead letters.
func BenchmarkList(b *testing.B) {
	s := openApart(b)
	n := *backlog / 2
	for left := n; left > 0; left -= 1000 {
		ds := deliveries("dead", left, min(left, 1000))
		for i := range ds {
			ds[i].Body = bench.Body
		}
		mustPut(b, s, ds...)
		settle(b, s, store.Bury, fetch(b, s, len(ds), "dead")...)
	}
	reportHeap(b)
	fill(b, s)
	all := func(after uint64, max int) []store.Record {
		page, _, err := s.List(b.Context(), store.Query{}, after, max)
		if err != nil || len(page) != max {
			b.Fatalf("List = %d, %v; want %d", len(page), err, max)
		}
		return page
	}
	last := all(0, 1)[0]
	oldest, _, err := s.List(b.Context(), store.Query{Oldest: true}, 0, n)
	if err != nil {
		b.Fatal(err)
	}
	for name, list := range map[string]func(){
		"page=first": func() { all(0, 50) },
		"page=last":  func() { all(oldest[min(len(oldest), 60)-1].Seq, 50) },
		"page=of-one-destination": func() {
			if page, _, err := s.List(b.Context(), store.Query{Destinations: []string{"dead"}}, 0, 50); err != nil || len(page) != 50 {
				b.Fatalf("List = %d, %v; want 50", len(page), err)
			}
		},
		"get": func() {
			if _, err := s.Get(b.Context(), last.Ref()); err != nil {
				b.Fatal(err)
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				list()
			}
		})
	}
	b.Run("dead-letters-known", func(b *testing.B) {
		for b.Loop() {
			again := openOn(b, s.conn.nc, Config{Logger: slog.New(slog.DiscardHandler)})
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			if c, err := again.Count(b.Context()); err != nil || c.Dead != n {
				b.Fatalf("Count = %+v, %v; want %d dead letters", c, err, n)
			}
			s = again
		}
	})
}
