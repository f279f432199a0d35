package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A rawNetwork lets a test serve the receiver's end of each connection byte by byte.
type rawNetwork struct {
	serve func(c net.Conn) // nil: reads everything and answers nothing
	open  atomic.Int32     // connections that the forwarder has not closed
	far   sync.WaitGroup   // goroutines that serve the receiver's ends
}

type rawConn struct {
	net.Conn
	close func() error
}

func (c *rawConn) Close() error { return c.close() }

func (w *rawNetwork) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	w.open.Add(1)
	w.far.Go(func() {
		defer far.Close()
		if w.serve != nil {
			w.serve(far)
		}
		io.Copy(io.Discard, far)
	})
	return &rawConn{near, sync.OnceValue(func() error {
		w.open.Add(-1)
		return near.Close()
	})}, nil
}

// startOn starts a forwarder on w, in a bubble. stop checks that the forwarder stops within 10 s
// and leaves no connection open.
func startOn(t *testing.T, w *rawNetwork, url string) (f *webhook.Forwarder, stop func()) {
	f, err := webhook.New(webhook.Config{Store: testkit.Must(memqueue.Open(memqueue.Config{})), Destinations: crm(url), DialContext: w.dial})
	must(t, err)
	run := make(chan error, 1)
	go func() { run <- f.Run(context.Background()) }()
	return f, func() {
		begin := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := f.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown() = %v, want nil", err)
		}
		if err := <-run; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if d := time.Since(begin); d > 10*time.Second {
			t.Errorf("Shutdown and Run took %v, want at most 10 s", d)
		}
		w.far.Wait()
		if n := w.open.Load(); n != 0 {
			t.Errorf("%d connections are left open, want none", n)
		}
	}
}

// After an answer of 101, the body is the connection itself, and no timeout of the request ends it.
// So the forwarder must close the connection.
func TestSwitchingProtocolsLeavesNoConnectionOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &rawNetwork{serve: func(c net.Conn) {
			c.Read(make([]byte, 4096))
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
		}}
		f, stop := startOn(t, w, hook)
		must(t, f.Forward(t.Context(), "crm", call("m1")))
		time.Sleep(time.Minute)
		if s := f.Stats(); s.Retried < 3 {
			t.Errorf("Stats() = %+v after a minute, want at least 3 retried", s)
		}
		stop()
	})
}

// If a kept connection ends while a request is on it, the forwarder resends the request at once on
// a new connection, in the same attempt. Stats counts it as Resent.
func TestRequestIsResentWhenAKeptConnectionEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh", step.Answer(200), step.Close(), step.Answer(200), step.Reset(), step.Reset(), step.Answer(200))
		r.start(webhook.Config{Destinations: crm(hook)})
		for i, want := range []webhook.Stats{
			{Counters: webhook.Counters{Delivered: 1}, Accepted: 1},
			{Counters: webhook.Counters{Delivered: 2}, Accepted: 2, Resent: 1},
			{Counters: webhook.Counters{Delivered: 3, Retried: 1}, Accepted: 3, Resent: 2}, // the new connection ends as well
		} {
			r.track(fmt.Sprint("m", i))
			time.Sleep(2 * time.Second)
			want.Dead = map[webhook.Reason]int64{}
			got := r.Stats()
			got.Latency = webhook.Latency{}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("Stats() = %+v, want %+v", got, want)
			}
		}
		if n := len(recv.Requests()); n != 6 {
			t.Errorf("got %d requests, want 6", n)
		}
	})
}

func TestSilentReceiverGetsABoundedNumberOfConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &rawNetwork{}
		f, stop := startOn(t, w, "https://crm.example/")
		for i := range 50 {
			must(t, f.Forward(t.Context(), "crm", call(fmt.Sprint("m", i))))
		}
		for range 10 {
			time.Sleep(time.Minute)
			if n := w.open.Load(); n > 64 {
				t.Errorf("%d connections are open, want at most 64", n)
			}
		}
		stop()
	})
}

// The forwarder detects that an HTTP/2 connection is dead although it was never closed, and makes a
// new one.
func TestADeadHTTP2ConnectionIsReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const hook = "https://crm.example/"
		recv := r.network.Receiver(hook, "shh")
		recv.SetTLS(webhooktest.TLS{HTTP2: true})
		var dead atomic.Bool
		dials := 0
		f, err := webhook.New(webhook.Config{
			Store: r.queue, Destinations: crm(hook), TLSClientConfig: r.network.TLSClientConfig(),
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := r.network.DialContext(ctx, network, addr)
				if dials++; dials > 1 || err != nil {
					return c, err
				}
				return &lossyConn{Conn: c, dead: &dead}, nil
			},
		})
		must(t, err)
		run := make(chan error, 1)
		go func() { run <- f.Run(context.Background()) }()
		f.Forward(t.Context(), "crm", call("first"))
		if reqs, err := recv.Wait(t.Context(), 1); err != nil || reqs[0].Proto != "HTTP/2.0" {
			t.Fatalf("Wait() = %v, %v; want a request by HTTP/2.0", reqs, err)
		}
		dead.Store(true)
		for i := range 20 {
			f.Forward(t.Context(), "crm", call(fmt.Sprint("m", i)))
		}
		time.Sleep(2 * time.Minute)
		if s := f.Stats(); s.Delivered != 21 {
			t.Errorf("Stats() = %+v after two minutes and %d connections, want 21 delivered", s, dials)
		}
		f.Shutdown(context.Background())
		<-run
	})
}

// A lossyConn drops everything that is written to it once dead is set.
type lossyConn struct {
	net.Conn
	dead *atomic.Bool
}

func (c *lossyConn) Write(p []byte) (int, error) {
	if c.dead.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Two destinations that get a delivery at the same time get one worker each.
func TestEveryLaneGetsAWorker(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver("http://hang.example/", "", step.Answer(200), step.Hang())
		fine := r.network.Receiver("http://fine.example/", "")
		r.start(webhook.Config{Destinations: []webhook.Destination{
			{ID: "hang", Endpoints: []webhook.Endpoint{{URL: "http://hang.example/"}}},
			{ID: "fine", Endpoints: []webhook.Endpoint{{URL: "http://fine.example/"}}},
		}})
		r.Forward(t.Context(), "hang", call("1")) // leaves one idle worker
		synctest.Wait()
		begin := time.Now()
		r.ForwardEvents(t.Context(), []string{"hang", "fine"}, eventOf(t, "2"))
		fine.Wait(t.Context(), 1)
		if d := time.Since(begin); d > 0 {
			t.Errorf("the delivery took %v beside a destination that hangs, want no time", d)
		}
	})
}

func TestHangingEndpointDoesNotDelayTheOther(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const good, bad = "http://good.example/", "http://bad.example/"
		r.network.Receiver(good, "")
		r.network.Receiver(bad, "", step.Hang())
		r.start(webhook.Config{Destinations: crm(good, bad)})
		begin := time.Now()
		for i := range 1000 {
			r.track(fmt.Sprint("m", i))
		}
		time.Sleep(time.Second) // outcomes are stored together
		if s := r.Stats(); s.Delivered != 1000 || time.Since(begin) > time.Second {
			t.Errorf("Stats() = %+v after %v, want 1000 delivered at once", s, time.Since(begin))
		}
	})
}

// A delivery is done once the quick endpoint has answered. The request to the slow endpoint still
// runs to its end.
func TestASlowEndpointOfTwoIsNotCutOff(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const quick, slow = "http://quick.example/", "http://slow.example/"
		r.network.Receiver(quick, "shh")
		var began atomic.Int32 // requests to the slow endpoint
		recv := r.network.Receiver(slow, "shh", webhooktest.Do(func(q *webhooktest.Request) step.Step {
			began.Add(1)
			return step.Answer(200).After(3 * time.Second)
		}))
		r.start(webhook.Config{Destinations: crm(quick, slow)})
		for i := range 10 {
			r.track(fmt.Sprint("m", i))
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if accepted, _ := recv.Conns(); began.Load() != 10 || len(recv.Requests()) != 10 || accepted != 10 {
			t.Errorf("got %d requests on %d connections, want 10 on 10", len(recv.Requests()), accepted)
		}
		if _, open := recv.Conns(); open != 10 {
			t.Errorf("%d of 10 connections are still open, want all, as none is cut off", open)
		}
	})
}

// Destinations that hang are soon limited to one slot each. The other slots are free for other
// destinations.
func TestHangingDestinationsLoseTheirSlots(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		var ds []webhook.Destination
		for i := range 16 {
			u := fmt.Sprintf("http://h%d.example/", i)
			r.network.Receiver(u, "", step.Hang())
			ds = append(ds, webhook.Destination{ID: fmt.Sprint("h", i), MaxConcurrent: 4, Endpoints: []webhook.Endpoint{{URL: u}}})
		}
		fine := r.network.Receiver("http://fine.example/", "")
		ds = append(ds, webhook.Destination{ID: "fine", Endpoints: []webhook.Endpoint{{URL: "http://fine.example/"}}})
		r.start(webhook.Config{MaxInFlight: 64, Destinations: ds})
		for i := range 400 {
			for k := range 16 {
				r.Forward(t.Context(), fmt.Sprint("h", k), call(fmt.Sprint(i)))
			}
		}
		time.Sleep(21 * time.Second)
		for i := range 60 {
			begin := time.Now()
			r.Forward(t.Context(), "fine", call(fmt.Sprint("f", i)))
			fine.Wait(t.Context(), i+1)
			if d := time.Since(begin); d > 0 {
				t.Errorf("delivery %d took %v beside destinations that hang, want no time", i, d)
			}
			time.Sleep(300 * time.Millisecond)
		}
	})
}

func TestADestinationThatRecoversGetsItsSlotsBack(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "", step.Hang())
		r.start(webhook.Config{Destinations: crm(hook)})
		for i := range 3000 {
			r.track(fmt.Sprint("m", i))
		}
		time.Sleep(2 * time.Minute)
		before := len(recv.Requests())
		time.Sleep(time.Minute)
		if n := len(recv.Requests()) - before; n > 10 {
			t.Errorf("got %d requests in a minute to a destination that hangs, want at most 10", n)
		}
		recv.SetScript(step.Answer(200).After(100 * time.Millisecond))
		begin := time.Now()
		for r.Stats().Delivered == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		if d := time.Since(begin); d > 36*time.Second {
			t.Errorf("the first delivery after the recovery took %v, want a probe within 36 s", d)
		}
		for _, most := range []int{4 + 8, 16 + 32, 64 + 64, 128} { // the rate grows step by step
			before := len(recv.Requests())
			time.Sleep(200 * time.Millisecond)
			if n := len(recv.Requests()) - before; n > most {
				t.Errorf("got %d requests in 200 ms during the recovery, want at most %d", n, most)
			}
		}
		before = int(r.Stats().Delivered)
		time.Sleep(time.Second)
		if n := int(r.Stats().Delivered) - before; n < 600 {
			t.Errorf("got %d deliveries in a second after the recovery, want at least 600 of the possible 640", n)
		}
	})
}

func TestRunAfterShutdownDoesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "")
		f, err := webhook.New(webhook.Config{Store: r.queue, Destinations: crm(hook), DialContext: r.network.DialContext})
		must(t, err)
		f.Forward(t.Context(), "crm", call("m1"))
		if err := f.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown() = %v, want nil", err)
		}
		r.queue.Close()
		if err := f.Run(t.Context()); err != nil || len(recv.Requests()) != 0 {
			t.Errorf("Run() after Shutdown = %v with %d requests, want nil and no request", err, len(recv.Requests()))
		}
	})
}

// A settleAway is a store whose Settle fails while away is set, as on a full disk.
type settleAway struct {
	webhook.Store
	away atomic.Bool
}

func (q *settleAway) Settle(ctx context.Context, ss []store.Settlement) (int, error) {
	if q.away.Load() {
		return 0, errAway
	}
	time.Sleep(time.Millisecond) // leaves time for a fetch between two calls
	return q.Store.Settle(ctx, ss)
}

func TestNothingIsRepeatedWhileSettlingFails(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		q := &settleAway{Store: r.queue}
		r.queue = q
		recv := r.network.Receiver(hook, "", step.Answer(200).After(time.Second))
		r.start(webhook.Config{Destinations: crm(hook)})
		for i := range 4 {
			r.track(fmt.Sprint("m", i))
		}
		synctest.Wait()
		q.away.Store(true) // with four attempts in flight
		time.Sleep(time.Hour)
		if n := len(recv.Requests()); n != 4 {
			t.Errorf("got %d requests for 4 deliveries that were all answered by 200, want 4", n)
		}
		q.away.Store(false)
		time.Sleep(time.Minute)
		if s := r.Stats(); s.Delivered != 4 {
			t.Errorf("Stats() = %+v, want 4 delivered", s)
		}
	})
}

// A settleHangs is a store whose Settle blocks until hang is closed.
type settleHangs struct {
	webhook.Store
	hang chan struct{}
}

func (q *settleHangs) Settle(ctx context.Context, ss []store.Settlement) (int, error) {
	select {
	case <-q.hang:
		return q.Store.Settle(ctx, ss)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// A body counts towards MaxBytesInFlight until its outcome is stored. So a store that settles
// slowly does not make the memory grow.
func TestBodiesCountUntilTheirOutcomeIsStored(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		q := &settleHangs{Store: r.queue, hang: make(chan struct{})}
		r.queue = q
		recv := r.network.Receiver(hook, "")
		r.start(webhook.Config{Destinations: crm(hook), MaxBytesInFlight: 200_000})
		for i := range 100 {
			err := r.Forward(t.Context(), "crm", &analytics.Track{UserId: "u1", Event: "e", MessageId: fmt.Sprint("m", i),
				Properties: map[string]any{"text": strings.Repeat("x", 10_000)}})
			must(t, err)
		}
		time.Sleep(time.Second)
		if n := len(recv.Requests()); n < 10 || n > 22 {
			t.Errorf("got %d requests with bodies of 10,000 bytes, want 10 to 22, as the bound is 200,000 bytes", n)
		}
		close(q.hang)
		time.Sleep(time.Minute)
		if s := r.Stats(); s.Delivered != 100 {
			t.Errorf("Stats() = %+v, want 100 delivered", s)
		}
	})
}

func TestMaxConcurrentHoldsFromTheStart(t *testing.T) {
	for _, looked := range []bool{true, false} {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.network.Receiver(hook, "", step.Answer(200).After(time.Second))
			d := webhook.Destination{ID: "crm", MaxConcurrent: 2, Endpoints: []webhook.Endpoint{{URL: hook}}}
			c := webhook.Config{Destinations: []webhook.Destination{d}}
			if looked {
				c = webhook.Config{Directory: lookup(func(context.Context, string) (*webhook.Destination, error) {
					time.Sleep(10 * time.Millisecond) // as a database would take
					return &d, nil
				})}
			}
			f, err := webhook.New(webhook.Config{Store: r.queue, Destinations: crm(hook)})
			must(t, err)
			for i := range 100 { // a backlog from before the start
				f.Forward(t.Context(), "crm", call(fmt.Sprint("m", i)))
			}
			r.start(c)
			time.Sleep(500 * time.Millisecond)
			if n := len(recv.Requests()); n == 0 || n > 2 {
				t.Errorf("with a Directory %v: got %d requests in half a second, want 1 or 2", looked, n)
			}
			time.Sleep(10 * time.Second)
			if n := len(recv.Requests()); n < 16 {
				t.Errorf("with a Directory %v: got %d requests in ten seconds, want at least 16", looked, n)
			}
		})
	}
}

func TestFailedLookupsDelayDeliveriesBySeconds(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "")
		var n atomic.Int32
		d := crm(hook)[0]
		r.start(webhook.Config{Poll: time.Hour, Directory: attempted(func(context.Context, string) (*webhook.Destination, error) {
			switch i := n.Add(1); {
			case i%100 == 0:
				return nil, errors.New("the database is away")
			case i%150 == 0:
				panic("hunter")
			}
			return &d, nil
		})})
		begin := time.Now()
		for i := range 1000 {
			r.track(fmt.Sprint("m", i))
		}
		recv.Wait(t.Context(), 1000)
		if d := time.Since(begin); d > 30*time.Second {
			t.Errorf("1,000 deliveries took %v although only 2 %% of the lookups fail, want at most 30 s", d)
		}
	})
}

// Each probe of an unknown destination costs a settlement. So their number shows that waiting
// deliveries cost little.
func TestUnknownDestinationIsProbedAtMostTwiceAMinute(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		seen := watch(r)
		r.start(webhook.Config{Directory: lookup(func(context.Context, string) (*webhook.Destination, error) {
			return nil, webhook.ErrUnknownDestination
		})})
		for i := range 500 {
			r.track(fmt.Sprint("m", i))
		}
		time.Sleep(24 * time.Hour)
		seen.mu.Lock()
		n := len(seen.settled)
		seen.mu.Unlock()
		if n > 24*60*2+200 {
			t.Errorf("got %d settlements in a day, want at most %d", n, 24*60*2+200)
		}
		if s := r.Stats(); s.Retried != 0 || len(s.Dead) != 0 {
			t.Errorf("Stats() = %+v, want none retried or dead", s)
		}
	})
}

// However long the Retry-After of an endpoint is, the delivery gets a last attempt at the end of
// the retry window.
func TestRetryAfterIsCappedByTheRetryWindow(t *testing.T) {
	const a, b = "http://a.example/", "http://b.example/"
	inBubble(t, func(t *testing.T, r *rig) {
		throttled := r.network.Receiver(a, "", step.Answer(429).With("Retry-After", "8640000"), step.Answer(200))
		r.network.Receiver(b, "", step.Answer(503))
		r.start(webhook.Config{Destinations: crm(a, b)})
		r.track("m1")
		time.Sleep(5 * time.Hour)
		if n, s := len(throttled.Requests()), r.Stats(); n != 2 || s.Delivered != 1 {
			t.Errorf("got %d requests, Stats() = %+v; want 2 requests and 1 delivered", n, s)
		}
	})
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver(a, "", step.Answer(429).With("Retry-After", "8640000"))
		r.network.Receiver(b, "", step.Answer(503))
		var d atomic.Pointer[webhook.Destination]
		d.Store(&crm(a, b)[0])
		r.start(webhook.Config{Directory: lookup(func(context.Context, string) (*webhook.Destination, error) { return d.Load(), nil })})
		r.track("m1")
		synctest.Wait()
		d.Store(&crm(a)[0])
		time.Sleep(5 * time.Hour)
		if dead := r.dead(); len(dead) != 1 || dead[0].Reason != webhook.ReasonExpired {
			t.Errorf("got the dead letters %+v, want 1 with the reason %q", dead, webhook.ReasonExpired)
		}
	})
}

func TestAttemptLogIsRateLimited(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		var log lines
		var n atomic.Int32
		r.network.Receiver(hook, "shh", webhooktest.Do(func(*webhooktest.Request) step.Step {
			return step.Answer([]int{200, 503, 404}[n.Add(1)%3])
		}))
		r.start(webhook.Config{Destinations: crm(hook), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for i := range 2000 {
			r.track(fmt.Sprint("m", i))
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := strings.Count(log.String(), "\n"); n < 2 || n > 33 {
			t.Errorf("got %d log lines in ten seconds, want 2 to 33:\n%s", n, log.String())
		}
		if !strings.Contains(log.String(), "unlogged=") {
			t.Errorf("no line has the key unlogged, which counts the lines left out:\n%s", log.String())
		}
	})
}

// If an endpoint echoes the secrets of its request, they are redacted before the answer is stored.
func TestEchoedSecretsAreRedacted(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "shh", webhooktest.Do(func(q *webhooktest.Request) step.Step {
			return step.Answer(400).WithBody(fmt.Sprint("debug: ", q.URL, q.Header))
		}))
		d := crm("http://user:hunter2@crm.example/hook?key=hunter2")
		d[0].Endpoints[0].Headers = map[string]string{"X-Token": "hunter2"}
		r.start(webhook.Config{Destinations: d})
		d[0].Endpoints[0].Headers["X-Token"] = "changed by the caller"
		r.track("m1")
		synctest.Wait()
		answer := r.dead()[0].Attempts[0].Answer
		if !strings.Contains(answer, "[redacted]") || len(answer) > 256 ||
			strings.Contains(answer, "hunter2") || strings.Contains(answer, "dXNlcjpodW50ZXIy") || strings.Contains(answer, "changed") {
			t.Errorf("the stored answer is %q, want at most 256 bytes with the secrets redacted", answer)
		}
	})
}

// The endpoints of some destinations change their behaviour every few hours, mostly to a bad one.
// Each delivery must be taken or end as a dead letter. No attempt may last longer than the timeout
// or begin after the retry window. A healthy destination must not be delayed.
func TestReceiversThatMisbehaveForDays(t *testing.T) {
	for seed := range soakenv.Seeds(t, 2) {
		inBubble(t, func(t *testing.T, r *rig) {
			webhook.SeedJitter(seed)
			misbehave(t, r, rand.New(rand.NewPCG(seed, 0)))
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		})
	}
}

// misbehave runs one simulation with settings and scripts drawn from random.
func misbehave(t *testing.T, r *rig, random *rand.Rand) {
	var (
		ds    []webhook.Destination
		recvs []*webhooktest.Receiver
	)
	for i := range 1 + random.IntN(12) {
		d := webhook.Destination{ID: fmt.Sprint("d", i), Secret: "shh"}
		for k := range 1 + random.IntN(3) {
			scheme := "http"
			if random.IntN(4) == 0 {
				scheme = "https" // only a quarter, because handshakes take much processor time
			}
			u := fmt.Sprintf("%s://e%d.d%d.example/", scheme, k, i)
			recv := r.network.Receiver(u, "shh")
			if scheme == "https" {
				recv.SetTLS(webhooktest.TLS{HTTP2: random.IntN(2) == 0})
			}
			recvs = append(recvs, recv)
			d.Endpoints = append(d.Endpoints, webhook.Endpoint{URL: u})
		}
		ds = append(ds, d)
	}
	fine := r.network.Receiver("http://fine.example/", "")
	ds = append(ds, webhook.Destination{ID: "fine", Endpoints: []webhook.Endpoint{{URL: "http://fine.example/"}}})
	seen := &outcomes{t: t, first: make(map[string]time.Time), ended: make(map[string]webhook.Reason)}
	r.start(webhook.Config{Destinations: ds, MaxInFlight: 64, Observers: []webhook.Observer{seen}})

	hours, each := 5, 12
	if soakenv.On() {
		hours, each = 24, 50
	}
	healthy := 0
	for range hours {
		for _, recv := range recvs {
			if random.IntN(4) == 0 {
				recv.SetScript(misbehavingScript(random)...)
			}
		}
		for _, d := range ds[:len(ds)-1] {
			if random.IntN(3) == 0 {
				r.fill([]webhook.Destination{d}, random.IntN(each))
			}
		}
		for range 6 {
			time.Sleep(time.Duration(random.Int64N(int64(20 * time.Minute))))
			begin := time.Now()
			r.fill(ds[len(ds)-1:], 1)
			healthy++
			fine.Wait(t.Context(), healthy)
			if took := time.Since(begin); took > 0 {
				t.Errorf("a delivery to the healthy destination took %v, want no time", took)
			}
		}
	}
	for _, recv := range recvs {
		recv.SetScript(step.Answer(200))
	}
	time.Sleep(5 * time.Hour)
	synctest.Wait()

	arrived := make(map[string]bool)
	for _, recv := range append(recvs, fine) {
		for _, q := range recv.Requests() {
			if q.Signature != nil && recv != fine {
				t.Errorf("signature of a request to %s: %v, want it to verify", recv.URL, q.Signature)
			}
			arrived[fmt.Sprint(q.JSON["messageId"])] = true
		}
	}
	dead := make(map[string]webhook.Reason)
	for _, d := range r.dead() {
		dead[d.ID] = d.Reason
	}
	for id, reason := range seen.ended {
		if reason == "" && !arrived[id] || reason != dead[id] {
			t.Errorf("%s: ended with the reason %q, arrived: %v, reason of its dead letter: %q; want it to arrive, or the same reason twice", id, reason, arrived[id], dead[id])
		}
	}
	s, c := r.Stats(), r.counts()
	if len(seen.ended) != int(s.Accepted) || c != (store.Counts{Dead: len(dead)}) || len(r.Held()) > 0 {
		t.Errorf("%d of %d deliveries have ended, the store has %+v, Held() = %+v; want all ended and none held", len(seen.ended), s.Accepted, c, r.Held())
	}
	t.Logf("%d of %d were delivered, after %d more attempts", s.Delivered, s.Accepted, s.Retried)
}

// misbehavingScript returns random steps, most of them misbehaving.
func misbehavingScript(random *rand.Rand) (script []step.Step) {
	for range 1 + random.IntN(4) {
		var next step.Step
		switch random.IntN(6) {
		case 0:
			next = step.Answer([]int{200, 204, 404, 410, 500, 503}[random.IntN(6)])
		case 1:
			next = step.Answer(429).With("Retry-After", fmt.Sprint(random.IntN(20_000)))
		case 2:
			next = step.Answer(200).After(time.Duration(random.Int64N(int64(6 * time.Second))))
		default:
			next = misbehavingSteps[random.IntN(len(misbehavingSteps))].step
		}
		script = append(script, next.Times(1+random.IntN(30)))
	}
	return script
}

// outcomes is an Observer that checks attempts and records how deliveries ended.
type outcomes struct {
	t     *testing.T
	mu    sync.Mutex
	first map[string]time.Time      // time of the first attempt, by delivery id
	ended map[string]webhook.Reason // by delivery id
}

func (d *outcomes) Accepted(webhook.Accepted) {}

func (d *outcomes) Attempted(a webhook.Attempted) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.first[a.ID].IsZero() {
		d.first[a.ID] = a.At
	}
	if after := a.At.Sub(d.first[a.ID]); after > webhook.DefaultWindow || time.Duration(a.Took) > webhook.DefaultTimeout {
		d.t.Errorf("an attempt %v after the first took %v, want at most %v and %v", after, a.Took, webhook.DefaultWindow, webhook.DefaultTimeout)
	}
}

func (d *outcomes) Ended(e webhook.Record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, twice := d.ended[e.Delivery.ID]; twice {
		d.t.Errorf("%s ended twice, want once", e.Delivery.ID)
	}
	d.ended[e.Delivery.ID] = e.Reason
}
