// Package nats has the soaks of webhook/natsqueue that need only its exported names.
package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/soak/chaos"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/natsqueue"
	"github.com/hookferry/analytics/webhook/store"
)

// partitions is high enough that each of three processes owns some. With half as many, in one of
// two hundred runs a process owns none.
const partitions = 32

const stream = "CHAOS"

var shared = chaos.Store{Open: open, Lost: "another node has taken over a partition"}

func TestMain(m *testing.M) {
	mainServer()
	chaos.Main(shared)
	os.Exit(m.Run())
}

func connect(url string, options ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(url, append(options, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
}

func open(ctx context.Context, url string, log *slog.Logger) (webhook.Store, func(), error) {
	nc, err := connect(url)
	if err != nil {
		return nil, nil, err
	}
	q, err := natsqueue.Open(ctx, nc, natsqueue.Config{Stream: stream, Claim: 3 * time.Second, Partitions: partitions, Logger: log})
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return q, nc.Close, nil
}

// TestChaos kills processes that share a store, and restarts the server.
func TestChaos(t *testing.T) {
	length, seed := soakenv.Long(t, "nats-chaos")
	s := startServer(t)
	chaos.Run(t, shared, []string{s.url()}, length, seed, func(d time.Duration) {
		s.down()
		time.Sleep(d)
		s.up(t)
	})
}

// Each process uses a server of its own. The leader of the stream is cut off from the other two
// servers until the processes of these own all partitions. Messages that the leader sent meanwhile
// arrive afterwards.
func TestParted(t *testing.T) {
	length, seed := soakenv.Long(t, "nats-parted")
	c := startCluster(t, 3)
	var addresses []string
	for _, s := range c {
		addresses = append(addresses, s.url())
	}
	chaos.Run(t, shared, addresses, length, seed, func(time.Duration) {
		parted := c.leader(t, stream)
		other := c[0]
		if other == parted {
			other = c[1]
		}
		nc, err := connect(other.url())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		testkit.Until(t, "each process owns partitions", func() bool { return owners(nc) == 3 })
		began := time.Now()
		heal := parted.partition()
		defer heal()
		// The other servers may ask the parted server for messages until they notice that it is
		// silent.
		testkit.Until(t, "the other two processes own all partitions", func() bool { return owners(nc) == 2 })
		t.Logf("taken over after %v", time.Since(began))
	})
}

// owners returns how many processes own partitions of the stream, or 0 if the leader does not
// answer. It asks the leader, because the parted server might answer a direct get.
func owners(nc *nats.Conn) int {
	all := make(map[string]bool)
	for n := range partitions {
		m, err := nc.Request("$JS.API.STREAM.MSG.GET."+stream, fmt.Appendf(nil, `{"last_by_subj":"%s.%d.log.own"}`, stream, n), time.Second)
		if err != nil {
			return 0
		}
		var got struct {
			Message struct{ Data []byte }
		}
		// A record begins with a version, the length of the owner's id, and that id.
		if json.Unmarshal(m.Data, &got) != nil || len(got.Message.Data) < 2 || len(got.Message.Data) < 2+int(got.Message.Data[1]) {
			return 0
		}
		all[string(got.Message.Data[2:2+got.Message.Data[1]])] = true
	}
	return len(all)
}

// A cutDialer makes connections that a Cutter cuts.
type cutDialer struct{ *chaos.Cutter }

func (d cutDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return d.Conn(conn), nil
}

// TestCut cuts connections at random, so that answers of the server are lost. Each accepted
// delivery still ends once.
func TestCut(t *testing.T) {
	length, seed := soakenv.Long(t, "nats-cut")
	s := startServer(t)
	c := &chaos.Cutter{Least: 1000, Most: 8000}
	chaos.Cut(t, c, length, seed, func() (webhook.Store, func()) {
		nc, err := connect(s.url(), nats.SetCustomDialer(cutDialer{c}), nats.ReconnectWait(10*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		q, err := natsqueue.Open(t.Context(), nc, natsqueue.Config{Claim: 5 * time.Second, Partitions: 2})
		if err != nil {
			t.Fatal(err)
		}
		return q, nc.Close
	})
}

// TestLeaderKilled kills the leader of the stream under load, again and again. Each delivery is
// done once, and none is left.
func TestLeaderKilled(t *testing.T) {
	length, seed := soakenv.Long(t, "nats-leader")
	r := rand.New(rand.NewPCG(seed, 1))
	c := startCluster(t, 3)
	nc, err := connect(strings.Join([]string{c[0].url(), c[1].url(), c[2].url()}, ","))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	q, err := natsqueue.Open(t.Context(), nc, natsqueue.Config{Stream: "LEADER", Claim: 2 * time.Second, Partitions: 4, Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	const each = 5
	ctx := t.Context()
	var wg sync.WaitGroup
	over := make(chan struct{}) // closed after the last kill, when the server is up again
	put := make(chan int, 1)    // how many deliveries were put in all
	wg.Go(func() {
		for i := 0; ; i++ {
			ds := deliveries(fmt.Sprint("d", i%7), i*each, each)
			for {
				if err := chaos.Put(ctx, q, ds...); err == nil {
					break
				} else if ctx.Err() != nil {
					t.Error(err)
					return
				}
			}
			select {
			case <-over:
				put <- (i + 1) * each
				return
			default:
			}
		}
	})
	kills := 0
	wg.Go(func() {
		defer close(over)
		for end := time.Now().Add(length); ; {
			wait(ctx, time.Duration(r.IntN(5000))*time.Millisecond)
			dead := c.leader(t, "LEADER")
			dead.down()
			kills++
			wait(ctx, time.Duration(r.IntN(3000))*time.Millisecond)
			dead.up(t)
			if time.Now().After(end) {
				return
			}
		}
	})
	settled := make(map[string]int)
	tries := make(map[string]bool)
	for all := -1; len(settled) != all && ctx.Err() == nil; {
		select {
		case all = <-put:
		default:
		}
		ds, err := chaos.Fetch(ctx, q, 50, "d0", "d1", "d2", "d3", "d4", "d5", "d6")
		if err != nil || len(ds) == 0 {
			wait(ctx, 5*time.Millisecond)
			continue
		}
		ss := make([]store.Settlement, len(ds))
		for i, d := range ds {
			ss[i] = store.Settlement{Verdict: store.Done, Delivery: d}
			if id, _ := strconv.Atoi(d.ID); id%10 == 0 && !tries[d.ID] {
				tries[d.ID] = true
				ss[i].Verdict, ss[i].Delivery.Tries = store.Retry, 1
			}
		}
		chaos.Settle(ctx, q, ss)
		for i := range ss {
			if ss[i].Verdict == store.Done {
				settled[ss[i].Delivery.ID]++
			}
		}
	}
	wg.Wait()
	for id, n := range settled {
		if n != 1 {
			t.Errorf("delivery %s was done %d times, want once", id, n)
		}
	}
	var counts store.Counts
	testkit.Until(t, "the servers answer", func() bool {
		counts, err = q.Count(t.Context())
		return err == nil
	})
	if counts.Waiting != 0 {
		t.Errorf("Count = %+v, want 0 waiting", counts)
	}
	t.Logf("%d deliveries, %d kills", len(settled), kills)
}

func deliveries(destination string, from, n int) []webhook.Delivery {
	now := time.Now().Add(-time.Second)
	ds := make([]webhook.Delivery, n)
	for i := range ds {
		id := fmt.Sprint(from + i)
		ds[i] = webhook.Delivery{Destination: destination, ID: id, Type: "track", Body: []byte(id), Accepted: now, Due: now}
	}
	return ds
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
