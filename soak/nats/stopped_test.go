package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/natsqueue"
)

// longestAnswer bounds how long an answer of the collector may take: its own limit of 4 seconds,
// and one second more for a busy machine.
const longestAnswer = 5 * time.Second

// soon bounds how long it may take until calls are accepted without one of the servers. The client
// notices a silent server after 15 seconds of pings, an election takes 10 seconds, and a busy
// machine needs more.
const soon = time.Minute

// One of three servers stops, or falls silent with its connections open. This is the leader of the
// stream, another server, or the server to which the collector is connected. Meanwhile the
// collector answers every call in time, with 200, or with 503 and Retry-After. Soon it accepts
// calls again, and they are delivered. Every call that got 200 is delivered.
func TestServerStopped(t *testing.T) {
	length, seed := soakenv.Long(t, "nats-stopped")
	r := rand.New(rand.NewPCG(seed, 1))
	c := startCluster(t, 3)
	clients := make(map[*testServer]*link)
	var urls []string
	for _, s := range c {
		l := newLink(t)
		l.lead(strings.TrimPrefix(s.url(), "nats://"))
		clients[s] = l
		urls = append(urls, "nats://"+l.ln.Addr().String())
	}
	nc, err := nats.Connect(strings.Join(urls, ","), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
		nats.MaxReconnects(-1), nats.Timeout(10*time.Second), nats.PingInterval(5*time.Second)) // the options of hookferry serve
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	s, err := natsqueue.Open(t.Context(), nc, natsqueue.Config{Stream: "STOPPED", Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	calls := &callLedger{accepted: make(map[string]bool), delivered: make(map[string]bool), latest: make(map[int]answers)}
	receiver := httptest.NewServer(calls)
	defer receiver.Close()
	f, err := webhook.New(webhook.Config{
		Store: s, Logger: slog.New(slog.DiscardHandler),
		Destinations: []webhook.Destination{{ID: "crm", Secret: "shh", Endpoints: []webhook.Endpoint{{URL: receiver.URL}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }() // ended below
	h, err := collector.New(collector.Config{
		Forwarder: f, Sources: collector.Keys(map[string]collector.Source{"key": {Destinations: []string{"crm"}}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()

	stop := make(chan struct{})
	var senders sync.WaitGroup
	for sender := range 4 {
		senders.Go(func() {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-tick.C:
				case <-stop:
					return
				}
				if err := calls.send(server.URL, fmt.Sprintf("%d-%d", sender, n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	flows := func() {
		t.Helper()
		accepted, delivered := calls.count()
		testkit.Until(t, "calls are accepted and delivered", func() bool {
			a, d := calls.count()
			return a >= accepted+100 && d >= delivered+100
		})
	}
	leader := func() *testServer { return c.leader(t, "STOPPED") }
	servers := []struct {
		name string
		pick func() *testServer
	}{
		{"the leader", leader},
		{"another", func() *testServer { return c[(slices.Index(c, leader())+1+r.IntN(2))%3] }},
		{"the one that the collector is connected to", func() *testServer {
			return c[slices.IndexFunc(c, func(s *testServer) bool { return clients[s].ln.Addr().String() == nc.ConnectedAddr() })]
		}},
	}
	for end := time.Now().Add(length); ; {
		for _, silent := range []bool{false, true} {
			for _, server := range servers {
				flows()
				calls.take()
				s := server.pick()
				back := func() { s.up(t) }
				if silent {
					heal := s.partition()
					clients[s].gate.Lock()
					back = func() {
						clients[s].gate.Unlock()
						heal()
					}
				} else {
					s.down()
				}
				began := time.Now()
				flows() // over the other two servers
				took := time.Since(began)
				if took > soon {
					t.Errorf("%s stopped, silent %v: calls flowed again after %v, want at most %v", server.name, silent, took, soon)
				}
				wait(t.Context(), time.Duration(5000+r.IntN(5000))*time.Millisecond)
				t.Logf("%s stopped, silent %v: %v; calls flowed again after %v", server.name, silent, calls.take(), took)
				back()
				flows()
				t.Logf("%s is back: %v", server.name, calls.take())
			}
		}
		if time.Now().After(end) {
			break
		}
	}
	close(stop)
	senders.Wait()
	testkit.Until(t, "every accepted call is delivered", func() bool {
		calls.mu.Lock()
		defer calls.mu.Unlock()
		for id := range calls.accepted {
			if !calls.delivered[id] {
				return false
			}
		}
		return true
	})
	if err := f.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A callLedger records which calls a collector has accepted, and which ones were delivered.
type callLedger struct {
	mu                  sync.Mutex
	accepted, delivered map[string]bool
	latest              map[int]answers // since the latest take, by status
}

// answers counts the answers with one status since the latest take.
type answers struct {
	N       int
	Longest time.Duration
}

// send makes a call. It returns an error if the answer is late, or is neither 200 nor 503 with
// Retry-After.
func (l *callLedger) send(url, id string) error {
	body := fmt.Sprintf(`{"batch":[{"type":"track","userId":"u","event":"Sent","messageId":%q}]}`, id)
	req, err := http.NewRequest(http.MethodPost, url+"/v1/batch", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.SetBasicAuth("key", "")
	began := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.latest[resp.StatusCode]
	l.latest[resp.StatusCode] = answers{a.N + 1, max(a.Longest, took)}
	if resp.StatusCode == http.StatusOK {
		l.accepted[id] = true
	} else if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		return fmt.Errorf("answer %s with Retry-After %q, want 200, or 503 with Retry-After", resp.Status, resp.Header.Get("Retry-After"))
	}
	if took > longestAnswer {
		return fmt.Errorf("answer %s after %v, want at most %v", resp.Status, took, longestAnswer)
	}
	return nil
}

// ServeHTTP receives webhooks.
func (l *callLedger) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	var event struct{ MessageID string }
	if json.NewDecoder(r.Body).Decode(&event) != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delivered[event.MessageID] = true
}

// take returns the answers since the previous take, by status.
func (l *callLedger) take() map[int]answers {
	l.mu.Lock()
	defer l.mu.Unlock()
	latest := l.latest
	l.latest = make(map[int]answers)
	return latest
}

func (l *callLedger) count() (accepted, delivered int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.accepted), len(l.delivered)
}
