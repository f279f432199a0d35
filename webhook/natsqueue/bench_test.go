package natsqueue

import (
	"context"
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

// BenchmarkBacklog is BenchmarkDeliveries with a backlog. Half of the waiting deliveries are each
// due at a different time. It also reports the heap of this process with the backlog.
func BenchmarkBacklog(b *testing.B) {
	bench.Deliveries(b, func(b *testing.B) store.Store {
		s := openApart(b)
		due := time.Now().Add(time.Hour)
		for left := *backlog; left > 0; left -= 1000 {
			ds := make([]store.Delivery, min(left, 1000))
			for i := range ds {
				ds[i] = store.Delivery{Destination: "waits", ID: fmt.Sprint(left - i), Type: "track", Body: bench.Body, Accepted: time.Now(), Due: due}
				if i%2 == 0 {
					ds[i].Due = due.Add(time.Duration(i) * time.Minute)
				}
			}
			ps, out := make([]store.Put, len(ds)), make([]store.Result, len(ds))
			for i := range ds {
				ps[i].Delivery = ds[i]
			}
			if err := s.Put(context.Background(), ps, out); err != nil || !out[0].Stored {
				b.Fatalf("Put = %v, %v; want stored", out[0], err)
			}
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.Cleanup(func() { b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "heap-MB") }) // at the end, as the benchmark's loop resets metrics
		return s
	})
}
