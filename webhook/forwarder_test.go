package webhook_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A rig is a forwarder at work on a network in memory.
type rig struct {
	*webhook.Forwarder
	t       *testing.T
	network *webhooktest.Network
	queue   webhook.Store
	config  webhook.Config
	run     chan error
	events  atomic.Int64 // made by fill
}

// inBubble calls test in a synctest bubble with a network and a queue of its
// own. What test starts is ended after it.
func inBubble(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	webhook.SeedJitter(1)
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, network: webhooktest.NewNetwork(), queue: memqueue.New(memqueue.Config{})}
		defer r.network.Close()
		defer func() {
			if r.Forwarder != nil {
				r.stop()
			}
			r.queue.Close()
		}()
		test(t, r)
	})
}

// start runs a forwarder with the queue and the network.
func (r *rig) start(c webhook.Config) {
	r.t.Helper()
	c.Store = r.queue
	c.DialContext = r.network.DialContext
	c.TLSClientConfig = r.network.TLSClientConfig()
	f, err := webhook.New(c)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Forwarder, r.config = f, c
	r.run = make(chan error, 1)
	go func() { r.run <- f.Run(context.Background()) }() // ended by stop
}

func (r *rig) stop() {
	r.t.Helper()
	if err := r.Shutdown(context.Background()); err != nil {
		r.t.Errorf("Shutdown: %v", err)
	}
	if err := <-r.run; err != nil {
		r.t.Errorf("Run: %v", err)
	}
}

// track forwards a track call named id to "crm".
func (r *rig) track(id string) {
	r.t.Helper()
	if err := r.Forward(r.t.Context(), "crm", call(id)); err != nil {
		r.t.Fatalf("Forward: %v", err)
	}
}

func call(id string) analytics.Message {
	return &analytics.Track{UserId: "u1", Event: "Tested", MessageId: id}
}

// must ends the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) dead() []webhook.DeadLetter {
	r.t.Helper()
	return collect(r.t, r.Dead(r.t.Context(), webhook.DeadFilter{}))
}

func collect[T any](t *testing.T, seq iter.Seq2[T, error]) []T {
	t.Helper()
	var vs []T
	for v, err := range seq {
		must(t, err)
		vs = append(vs, v)
	}
	return vs
}

// counts returns how much the store holds, in numbers.
func (r *rig) counts() webhook.Counts {
	r.t.Helper()
	c, err := r.queue.Count(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	c.Oldest, c.DeadBytes, c.OldestDead = time.Time{}, 0, time.Time{}
	return c
}

// crm is a destination named "crm" with these URLs.
func crm(urls ...string) []webhook.Destination {
	d := webhook.Destination{ID: "crm", Secret: "shh"}
	for _, u := range urls {
		d.Endpoints = append(d.Endpoints, webhook.Endpoint{URL: u})
	}
	return []webhook.Destination{d}
}

const hook = "http://crm.example/hook"

func TestDeliversASignedPost(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		crm := r.network.Receiver("https://crm.example/hook", "shh")
		r.start(webhook.Config{Destinations: []webhook.Destination{{
			ID:     "crm",
			Secret: "shh",
			Endpoints: []webhook.Endpoint{{
				URL:     "https://user:word@crm.example/hook?x=1#y",
				Headers: map[string]string{"x-api-key": "k"},
			}},
		}}})
		r.track("m1")
		reqs, err := crm.Wait(t.Context(), 1)
		must(t, err)
		q := reqs[0]
		if q.Signature != nil {
			t.Errorf("signature: %v", q.Signature)
		}
		if q.Method != "POST" || q.URL.RequestURI() != "/hook?x=1" || q.Host != "crm.example" {
			t.Errorf("request is %s %s of %s", q.Method, q.URL.RequestURI(), q.Host)
		}
		delete(q.Header, "X-Signature")
		want := map[string][]string{
			"User-Agent":     {"Hookferry/1.0"},
			"Content-Type":   {"application/json"},
			"Content-Length": {fmt.Sprint(len(q.Body))},
			"Authorization":  {"Basic dXNlcjp3b3Jk"},
			"X-Api-Key":      {"k"},
		}
		if d := cmp.Diff(want, map[string][]string(q.Header)); d != "" {
			t.Errorf("header (-want +got):\n%s", d)
		}
		synctest.Wait()
		if s := r.Stats(); s.Accepted != 1 || s.Delivered != 1 {
			t.Errorf("Stats() = %+v", s)
		}
		if c := r.counts(); c != (webhook.Counts{}) {
			t.Errorf("the store holds %+v after delivery", c)
		}
	})
}

func TestRequestIsUnsignedWithoutASecret(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		crm := r.network.Receiver(hook, "")
		r.start(webhook.Config{ServiceName: "Acme", Destinations: []webhook.Destination{{ID: "crm", Endpoints: []webhook.Endpoint{{URL: hook}}}}})
		r.track("m1")
		reqs, _ := crm.Wait(t.Context(), 1)
		if h := reqs[0].Header; h["X-Signature"] != nil || h.Get("User-Agent") != "Acme/1.0" {
			t.Errorf("header is %v", h)
		}
	})
}

// An endpoint that answers 503 for ever is asked as the schedule says, for four
// hours; restarts in between, with the store closed and opened again, change
// nothing.
func TestRetriesForFourHoursAndNoLonger(t *testing.T) {
	for _, restarts := range []int{0, 3} {
		dir := t.TempDir()
		inBubble(t, func(t *testing.T, r *rig) {
			open := func() {
				must(t, r.queue.Close())
				q, err := filequeue.Open(dir, filequeue.Config{})
				must(t, err)
				r.queue = q
			}
			open()
			recv := r.network.Receiver(hook, "shh", webhooktest.Answer(503).WithBody("later"))
			config := webhook.Config{Destinations: crm(hook)}
			r.start(config)
			begin := time.Now()
			r.track("m1")
			for range restarts {
				time.Sleep(50 * time.Minute)
				r.stop()
				open()
				time.Sleep(time.Minute) // attempts that are due wait
				r.start(config)
			}
			time.Sleep(time.Until(begin.Add(4*time.Hour - time.Second)))
			synctest.Wait()
			if len(r.dead()) != 0 && recv.Requests()[len(recv.Requests())-1].Time.Before(begin.Add(3*time.Hour+49*time.Minute)) {
				t.Errorf("given up before the window was over")
			}
			time.Sleep(24 * time.Hour)
			synctest.Wait()

			reqs := recv.Requests()
			for i, q := range reqs {
				if at := q.Time.Sub(begin); at > 4*time.Hour {
					t.Errorf("attempt %d starts after %v", i+1, at)
				}
				if i > 0 {
					wait := q.Time.Sub(reqs[i-1].Time)
					if most := min(time.Second<<min(i-1, 20), 10*time.Minute) + time.Duration(min(restarts, 1))*time.Minute; wait > most {
						t.Errorf("attempt %d follows after %v, want at most %v", i+1, wait, most)
					}
				}
			}
			if n := len(reqs); n < 25 || n > 200 {
				t.Errorf("%d attempts in four hours", n)
			}
			last := reqs[len(reqs)-1].Time.Sub(begin)
			if early := 4*time.Hour - 5*time.Second - last; early < 0 || early > time.Millisecond {
				t.Errorf("the last attempt is after %v, want it as late as it can end in the window", last)
			}
			dead := r.dead()
			if len(dead) != 1 {
				t.Fatalf("%d dead letters, want 1", len(dead))
			}
			d := dead[0]
			if d.Reason != webhook.ReasonExpired || d.ID != "m1" || d.Tries != len(reqs) || len(d.Attempts) != webhook.MaxAttempts {
				t.Errorf("dead letter %s: reason %q after %d tries with %d attempts kept; want %q after %d with %d",
					d.ID, d.Reason, d.Tries, len(d.Attempts), webhook.ReasonExpired, len(reqs), webhook.MaxAttempts)
			}
			for i, a := range d.Attempts {
				try := i + 1
				if i >= 2 {
					try = d.Tries - webhook.MaxAttempts + i + 1
				}
				want := webhook.Attempt{At: reqs[try-1].Time.UTC().Truncate(time.Microsecond), Try: try, Endpoint: hook, Status: 503, Reason: webhook.ReasonServerError, Answer: "later"}
				if diff := cmp.Diff(want, a); diff != "" {
					t.Errorf("attempt %d (-want +got):\n%s", i, diff)
				}
			}
			if !bytes.Equal(d.Body, reqs[0].Body) || !bytes.Equal(reqs[0].Body, reqs[len(reqs)-1].Body) {
				t.Error("the body changed between attempts")
			}
			if s := r.Stats(); restarts == 0 && (s.Retried != int64(len(reqs)-1) || s.Dead[webhook.ReasonExpired] != 1) {
				t.Errorf("Stats() = %+v after %d attempts", s, len(reqs))
			}
		})
	}
}

func TestAnswerAfterFiveSecondsIsRetried(t *testing.T) {
	for _, tt := range []struct {
		name string
		step webhooktest.Step
		want int // requests within a minute
	}{
		{"after 4.9 s", webhooktest.Answer(200).After(4900 * time.Millisecond), 1},
		{"after 5.1 s", webhooktest.Answer(200).After(5100 * time.Millisecond), 2},
		{"body ends after 4.9 s", webhooktest.Answer(200).WithBody(strings.Repeat("x", 49)).Drip(100 * time.Millisecond), 1},
		{"body ends after 5.1 s", webhooktest.Answer(200).WithBody(strings.Repeat("x", 52)).Drip(100 * time.Millisecond), 2},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.network.Receiver(hook, "shh", tt.step, webhooktest.Answer(204))
			r.start(webhook.Config{Destinations: crm(hook)})
			r.track("m1")
			time.Sleep(time.Minute)
			if got := len(recv.Requests()); got != tt.want {
				t.Errorf("%s: %d requests, want %d", tt.name, got, tt.want)
			}
			if s := r.Stats(); s.Delivered != 1 {
				t.Errorf("%s: Stats() = %+v", tt.name, s)
			}
		})
	}
}

func TestNoRequestToACertificateThatDoesNotVerify(t *testing.T) {
	for _, c := range []webhooktest.Certificate{webhooktest.SelfSigned, webhooktest.Expired, webhooktest.WrongHost} {
		inBubble(t, func(t *testing.T, r *rig) {
			const hook = "https://crm.example/hook"
			recv := r.network.Receiver(hook, "shh")
			recv.SetTLS(webhooktest.TLS{Certificate: c})
			r.start(webhook.Config{Destinations: crm(hook)})
			r.track("m1")
			time.Sleep(time.Hour)
			if n := len(recv.Requests()); n != 0 {
				t.Errorf("certificate %d: %d requests", c, n)
			}
			if dead := r.dead(); len(dead) != 1 || dead[0].Reason != webhook.ReasonCertificate || dead[0].Tries != 1 {
				t.Errorf("certificate %d: dead letters %+v", c, dead)
			}
		})
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const hook = "https://crm.example/hook"
		recv := r.network.Receiver(hook, "shh")
		recv.SetTLS(webhooktest.TLS{MaxVersion: 0x0302}) // TLS 1.1
		r.start(webhook.Config{Destinations: crm(hook)})
		r.track("m1")
		time.Sleep(10 * time.Second)
		if n, s := len(recv.Requests()), r.Stats(); n != 0 || s.Retried == 0 && len(s.Dead) == 0 {
			t.Errorf("%d requests by TLS 1.1, want attempts without any: Stats() = %+v", n, s)
		}
	})
}

func TestOneSuccessOfFiveEndpointsIsEnough(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		var urls []string
		var recvs []*webhooktest.Receiver
		for i := range 5 {
			urls = append(urls, fmt.Sprintf("http://e%d.example/hook", i))
			step := []webhooktest.Step{webhooktest.Answer(503), webhooktest.Hang(), webhooktest.Answer(404), webhooktest.Answer(200), webhooktest.Reset()}[i]
			recvs = append(recvs, r.network.Receiver(urls[i], "shh", step))
		}
		r.start(webhook.Config{Destinations: crm(urls...)})
		r.track("m1")
		time.Sleep(5 * time.Hour)
		for i, recv := range recvs {
			if n := len(recv.Requests()); n != 1 {
				t.Errorf("endpoint %d got %d requests, want 1", i, n)
			}
		}
		if s := r.Stats(); s.Delivered != 1 || s.Retried != 0 || len(s.Dead) != 0 {
			t.Errorf("Stats() = %+v", s)
		}
	})
}

func TestOnlyRetryableEndpointsAreTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const gone, slow = "http://gone.example/", "http://slow.example/"
		a := r.network.Receiver(gone, "shh", webhooktest.Answer(410))
		b := r.network.Receiver(slow, "shh", webhooktest.Answer(500).Times(3), webhooktest.Answer(200))
		r.start(webhook.Config{Destinations: crm(gone, slow)})
		r.track("m1")
		time.Sleep(time.Minute)
		if n, m := len(a.Requests()), len(b.Requests()); n != 1 || m != 4 {
			t.Errorf("%d and %d requests, want 1 and 4", n, m)
		}
	})
	inBubble(t, func(t *testing.T, r *rig) {
		const a, b = "http://a.example/", "http://b.example/"
		r.network.Receiver(a, "shh", webhooktest.Answer(410))
		r.network.Receiver(b, "shh", webhooktest.Answer(500).Times(2), webhooktest.Answer(301))
		r.start(webhook.Config{Destinations: crm(a, b)})
		r.track("m1")
		time.Sleep(time.Minute)
		dead := r.dead()
		if len(dead) != 1 || dead[0].Reason != webhook.ReasonRedirect || dead[0].Tries != 3 {
			t.Errorf("dead letters %+v, want one after 3 tries", dead)
		}
	})
}

func TestRetryAfterDelaysTheNextAttempt(t *testing.T) {
	for _, tt := range []struct {
		name, value string
		status      int
		from, to    time.Duration
	}{
		{"seconds", "90", 503, 90 * time.Second, 91 * time.Second},
		{"date", "Sat, 01 Jan 2000 00:10:00 GMT", 429, 599 * time.Second, 601 * time.Second},
		{"absurd, capped by the window", "99999999999", 503, 4*time.Hour - 5*time.Second, 4*time.Hour - 5*time.Second},
		{"no number", "soon", 429, 0, time.Second},
	} {
		inBubble(t, func(t *testing.T, r *rig) { // the bubble's time starts at 2000-01-01 00:00:00 UTC
			recv := r.network.Receiver(hook, "shh", webhooktest.Answer(tt.status).With("Retry-After", tt.value), webhooktest.Answer(200))
			r.start(webhook.Config{Destinations: crm(hook)})
			r.track("m1")
			reqs, err := recv.Wait(t.Context(), 2)
			must(t, err)
			if wait := reqs[1].Time.Sub(reqs[0].Time); wait < tt.from || wait > tt.to {
				t.Errorf("%s: waits %v, want %v to %v", tt.name, wait, tt.from, tt.to)
			}
		})
	}
}

// An endpoint that asks for patience gets it, and delays no other.
func TestRetryAfterIsPerEndpoint(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const a, b = "http://a.example/", "http://b.example/"
		patient := r.network.Receiver(a, "shh", webhooktest.Answer(429).With("Retry-After", "3600"), webhooktest.Answer(200))
		failing := r.network.Receiver(b, "shh", webhooktest.Answer(503))
		r.start(webhook.Config{Destinations: crm(a, b)})
		r.track("m1")
		time.Sleep(59 * time.Minute)
		if n, m := len(patient.Requests()), len(failing.Requests()); n != 1 || m < 8 {
			t.Errorf("%d and %d requests within the hour, want 1 and many", n, m)
		}
		time.Sleep(12 * time.Minute)
		if n, s := len(patient.Requests()), r.Stats(); n != 2 || s.Delivered != 1 {
			t.Errorf("%d requests after it; Stats() = %+v", n, s)
		}
	})
}

// misbehavingSteps are the ways in which receivers misbehave, each with the outcome of the first attempt.
var misbehavingSteps = []struct {
	name   string
	step   webhooktest.Step
	reason webhook.Reason // of the first attempt; "" if it succeeds
	dead   bool
}{
	{"hangs", webhooktest.Hang(), webhook.ReasonTimeout, false},
	{"stalls before the request", webhooktest.Stall(), webhook.ReasonTimeout, false},
	{"drips", webhooktest.Answer(200).WithBody(strings.Repeat("x", 100)).Drip(time.Second), webhook.ReasonTimeout, false},
	{"resets", webhooktest.Reset(), webhook.ReasonConnection, false},
	{"resets early", webhooktest.ResetEarly(), webhook.ReasonConnection, false},
	{"closes", webhooktest.Close(), webhook.ReasonConnection, false},
	{"refuses", webhooktest.Refuse(), webhook.ReasonConnection, false},
	{"is nowhere", webhooktest.NoSuchHost(), webhook.ReasonDNS, false},
	{"is unreachable", webhooktest.Unreachable(), webhook.ReasonTimeout, false},
	{"is not HTTP", webhooktest.Garbage(), webhook.ReasonProtocol, false},
	{"sends an endless header", webhooktest.EndlessHeader(), webhook.ReasonProtocol, false},
	{"floods with 1xx", webhooktest.EndlessInformational(), webhook.ReasonProtocol, false},
	{"answers less than it says", webhooktest.Answer(200).WithBody("short").Misstate(100), webhook.ReasonConnection, false},
	{"answers 256 MB", webhooktest.Stream(256 << 20), "", false},
	{"answers and hangs up", webhooktest.Answer(200).HangUp(), "", false},
	{"redirects to a private address", webhooktest.Redirect(307, "http://169.254.169.254/"), webhook.ReasonRedirect, true},
	{"switches protocols", webhooktest.Raw("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"), webhook.ReasonProtocol, false},
}

func TestMisbehavingReceiverCostsAtMostOneAttempt(t *testing.T) {
	for _, tt := range misbehavingSteps {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.network.Receiver(hook, "shh", tt.step, webhooktest.Answer(200))
			seen := watch(r)
			r.start(webhook.Config{Destinations: crm(hook)})
			r.track("m1")
			time.Sleep(time.Minute)
			synctest.Wait()
			s := r.Stats()
			if tt.dead != (len(s.Dead) == 1) || tt.dead == (s.Delivered == 1) {
				t.Errorf("%s: Stats() = %+v", tt.name, s)
			}
			if tt.reason != "" {
				as := seen.attempts()
				if len(as) != 1 || as[0].Reason != tt.reason {
					t.Errorf("%s: failed attempts %+v, want reason %q", tt.name, as, tt.reason)
				}
				if as[0].Took > 5*time.Second {
					t.Errorf("%s: took %v", tt.name, as[0].Took)
				}
			} else if n := len(recv.Requests()); n != 1 {
				t.Errorf("%s: %d requests", tt.name, n)
			}
		})
	}
}

// The same by HTTP/2.
func TestMisbehavingHTTP2ReceiverCostsOnlyItsOwnAttempts(t *testing.T) {
	const hook = "https://crm.example/hook"
	for _, tt := range []struct {
		name    string
		step    webhooktest.Step
		reason  webhook.Reason // of the first attempts; "" if they succeed
		failing int
		slots   int // MaxConcurrent
	}{
		{"hangs", webhooktest.Hang(), webhook.ReasonTimeout, 4, 0},
		{"drips", webhooktest.Answer(200).WithBody(strings.Repeat("x", 100)).Drip(time.Second), webhook.ReasonTimeout, 4, 0},
		{"answers 256 MB", webhooktest.Stream(256 << 20), "", 0, 0},
		{"says goodbye after each answer", webhooktest.Answer(200).HangUp(), "", 0, 1},
		{"says goodbye to answers that fail", webhooktest.Answer(503).HangUp(), webhook.ReasonServerError, 4, 1},
		// net/http has requests that share a connection which says goodbye wait for 1, 2 and 4 seconds,
		// so that those that meet it again and again have no time left. They were not sent.
		{"says goodbye to many at once", webhooktest.Answer(200).HangUp(), webhook.ReasonTimeout, -1, 0},
		{"floods with 1xx", webhooktest.EndlessInformational(), webhook.ReasonProtocol, 4, 0},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			rest := webhooktest.Answer(200)
			if strings.HasPrefix(tt.name, "says goodbye") {
				rest = rest.HangUp()
			}
			recv := r.network.Receiver(hook, "shh", tt.step.Times(4), rest)
			recv.SetTLS(webhooktest.TLS{HTTP2: true})
			seen := watch(r)
			ds := crm(hook)
			ds[0].MaxConcurrent = tt.slots
			r.start(webhook.Config{Destinations: ds})
			const n = 20
			for i := range n {
				r.track(fmt.Sprint("m", i))
			}
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			as := seen.attempts()
			failing, sent := tt.failing, n+tt.failing
			if failing < 0 {
				failing, sent = len(as), n
			}
			if s := r.Stats(); s.Delivered != n || len(as) != failing || len(recv.Requests()) != sent {
				t.Errorf("%s: Stats() = %+v, %d requests, failed attempts %+v", tt.name, s, len(recv.Requests()), as)
			}
			for _, a := range as {
				if tt.reason != "" && a.Reason != tt.reason || a.Took > 5*time.Second {
					t.Errorf("%s: failed attempt %+v, want reason %q", tt.name, a, tt.reason)
				}
			}
			for _, req := range recv.Requests() {
				if req.Proto != "HTTP/2.0" {
					t.Errorf("%s: a request by %s", tt.name, req.Proto)
				}
			}
		})
	}
}

// A watched queue remembers what was settled with attempts.
type watched struct {
	webhook.Store
	mu      sync.Mutex
	settled []webhook.Settlement
}

func watch(r *rig) *watched {
	w := &watched{Store: r.queue}
	r.queue = w
	return w
}

func (w *watched) Settle(ctx context.Context, ss []webhook.Settlement) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settled = append(w.settled, slices.Clone(ss)...)
	return w.Store.Settle(ctx, ss)
}

func (w *watched) attempts() []webhook.Attempt {
	w.mu.Lock()
	defer w.mu.Unlock()
	var as []webhook.Attempt
	for _, s := range w.settled {
		if n := len(s.Delivery.Attempts); n > 0 && s.Verdict != webhook.Done {
			as = append(as, s.Delivery.Attempts[n-1])
		}
	}
	return as
}

func TestConnectionsAreReused(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh", webhooktest.Answer(200).WithBody(strings.Repeat("x", 60<<10)))
		r.start(webhook.Config{Destinations: crm(hook)})
		for i := range 50 {
			r.track(fmt.Sprint("m", i))
			synctest.Wait()
		}
		if n, _ := recv.Conns(); n != 1 {
			t.Errorf("%d connections for 50 deliveries, one after another", n)
		}
		recv.Disconnect()
		r.track("after")
		synctest.Wait()
		if s := r.Stats(); s.Delivered != 51 || s.Retried != 0 {
			t.Errorf("a kept connection that was closed costs an attempt: Stats() = %+v", s)
		}
	})
}

func TestEachAttemptUsesTheCurrentDestination(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		old := r.network.Receiver("http://old.example/", "old", webhooktest.Answer(503))
		moved := r.network.Receiver("http://new.example/", "new", webhooktest.Answer(200))
		var current atomic.Pointer[webhook.Destination]
		set := func(url, secret string) {
			current.Store(&webhook.Destination{ID: "crm", Secret: "old", Endpoints: []webhook.Endpoint{{URL: url}}})
			if secret != "" {
				d := *current.Load()
				d.Secret = "new"
				current.Store(&d)
			}
		}
		set("http://old.example/", "")
		r.start(webhook.Config{Lookup: func(_ context.Context, id string) (*webhook.Destination, error) {
			if id != "crm" {
				return nil, webhook.ErrUnknownDestination
			}
			return current.Load(), nil
		}})
		r.track("m1")
		synctest.Wait()
		set("http://new.example/", "new")
		time.Sleep(10 * time.Second)
		if len(old.Requests()) == 0 || len(moved.Requests()) != 1 || moved.Requests()[0].Signature != nil {
			t.Errorf("%d requests to the old URL, %d to the new", len(old.Requests()), len(moved.Requests()))
		}
	})
}

// What was closed to a delivery stays so when the settings change, and what is
// new is open.
func TestClosedEndpointsStayClosedWhenEndpointsChange(t *testing.T) {
	const a, b = "http://a.example/", "http://b.example/"
	destination := func(urls ...string) *webhook.Destination { return &crm(urls...)[0] }
	t.Run("one that refused is left", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig) {
			refusing := r.network.Receiver(a, "shh", webhooktest.Answer(404))
			r.network.Receiver(b, "shh", webhooktest.Answer(503))
			var current atomic.Pointer[webhook.Destination]
			current.Store(destination(a, b))
			r.start(webhook.Config{Lookup: func(context.Context, string) (*webhook.Destination, error) { return current.Load(), nil }})
			r.track("m1")
			synctest.Wait()
			current.Store(destination(a))
			time.Sleep(time.Minute)
			dead := r.dead()
			if len(dead) != 1 || dead[0].Tries != 1 || dead[0].Reason != webhook.ReasonServerError || len(refusing.Requests()) != 1 {
				t.Errorf("%d requests, dead letters %+v; want one, for the reason of the last request", len(refusing.Requests()), dead)
			}
		})
	})
	t.Run("one that asked for patience is left", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig) {
			patient := r.network.Receiver(a, "shh", webhooktest.Answer(429).With("Retry-After", "600"), webhooktest.Answer(200))
			r.network.Receiver(b, "shh", webhooktest.Answer(503))
			var current atomic.Pointer[webhook.Destination]
			current.Store(destination(a, b))
			r.start(webhook.Config{Lookup: func(context.Context, string) (*webhook.Destination, error) { return current.Load(), nil }})
			r.track("m1")
			synctest.Wait()
			current.Store(destination(a))
			reqs, err := patient.Wait(t.Context(), 2)
			must(t, err)
			if wait := reqs[1].Time.Sub(reqs[0].Time); wait < 10*time.Minute || wait > 10*time.Minute+time.Second {
				t.Errorf("it is asked again after %v, want 10 minutes", wait)
			}
		})
	})
	t.Run("others each time", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig) {
			var attempts int // by one worker
			last := r.network.Receiver(hook, "shh")
			r.start(webhook.Config{Lookup: func(context.Context, string) (*webhook.Destination, error) {
				if attempts++; attempts > 4 {
					return destination(hook), nil
				}
				var urls []string
				for i := range webhook.MaxEndpoints {
					url := fmt.Sprintf("http://e%d-%d.example/", attempts, i)
					step := webhooktest.Answer(404)
					if i == 0 {
						step = webhooktest.Answer(503)
					}
					r.network.Receiver(url, "shh", step)
					urls = append(urls, url)
				}
				return destination(urls...), nil
			}})
			r.track("m1")
			time.Sleep(time.Minute)
			synctest.Wait()
			if s := r.Stats(); s.Delivered != 1 || s.Retried != 4 || len(last.Requests()) != 1 {
				t.Errorf("Stats() = %+v with %d requests to the last", s, len(last.Requests()))
			}
		})
	})
}

func TestDeliveriesOfAnUnusableDestinationWait(t *testing.T) {
	for _, tt := range []struct {
		name string
		d    *webhook.Destination
		err  error
	}{
		{"unknown", nil, webhook.ErrUnknownDestination},
		{"nil", nil, nil},
		{"lookup fails", nil, errors.New("database is away")},
		{"disabled", &webhook.Destination{ID: "crm", Disabled: true, Endpoints: []webhook.Endpoint{{URL: hook}}}, nil},
		{"not valid", &webhook.Destination{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "gopher://x"}}}, nil},
		{"another", &webhook.Destination{ID: "other", Endpoints: []webhook.Endpoint{{URL: hook}}}, nil},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.network.Receiver(hook, "shh")
			good := crm(hook)[0]
			var usable atomic.Bool
			r.start(webhook.Config{Lookup: func(context.Context, string) (*webhook.Destination, error) {
				if usable.Load() {
					return &good, nil
				}
				return tt.d, tt.err
			}})
			for i := range 300 {
				r.track(fmt.Sprint("m", i))
			}
			time.Sleep(6 * time.Hour) // longer than the window
			if c := r.counts(); c.Waiting != 300 || c.Dead != 0 || len(recv.Requests()) != 0 {
				t.Errorf("%s: the store holds %+v, %d requests", tt.name, c, len(recv.Requests()))
			}
			usable.Store(true)
			time.Sleep(31 * time.Second)
			if s := r.Stats(); s.Delivered != 300 {
				t.Errorf("%s: Stats() = %+v after it can be used", tt.name, s)
			}
		})
	}
}

// A Lookup that hangs is ended after the time of an attempt, like one that fails.
func TestLookupIsCutOffAtTheTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		var hung []time.Duration // by the one worker that looks up
		r.start(webhook.Config{Timeout: 2 * time.Second, Lookup: func(ctx context.Context, _ string) (*webhook.Destination, error) {
			if len(hung) == 2 {
				return &crm(hook)[0], nil
			}
			begin := time.Now()
			<-ctx.Done()
			hung = append(hung, time.Since(begin))
			return nil, ctx.Err()
		}})
		r.track("m1")
		reqs, err := recv.Wait(t.Context(), 1)
		must(t, err)
		if want := []time.Duration{2 * time.Second, 2 * time.Second}; !slices.Equal(hung, want) {
			t.Errorf("look-ups hung for %v, want %v", hung, want)
		}
		if n := reqs[0].JSON["messageId"]; n != "m1" {
			t.Errorf("messageId %v", n)
		}
	})
}

func TestAHangingDestinationDelaysNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver("http://hang.example/", "", webhooktest.Hang())
		fine := r.network.Receiver("http://fine.example/", "")
		r.start(webhook.Config{Destinations: []webhook.Destination{
			{ID: "hang", Endpoints: []webhook.Endpoint{{URL: "http://hang.example/"}}},
			{ID: "fine", Endpoints: []webhook.Endpoint{{URL: "http://fine.example/"}}},
		}})
		for i := range 2000 {
			must(t, r.Forward(t.Context(), "hang", call(fmt.Sprint("h", i))))
		}
		begin := time.Now()
		for i := range 500 {
			must(t, r.Forward(t.Context(), "fine", call(fmt.Sprint("f", i))))
		}
		if _, err := fine.Wait(t.Context(), 500); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > 0 {
			t.Errorf("500 deliveries took %v beside a destination that hangs", d)
		}
	})
}

func TestConcurrencyIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "", webhooktest.Answer(200).After(time.Second))
		r.start(webhook.Config{Destinations: []webhook.Destination{{ID: "crm", MaxConcurrent: 3, Endpoints: []webhook.Endpoint{{URL: hook}}}}})
		for i := range 30 {
			r.track(fmt.Sprint("m", i))
		}
		for i := range 10 {
			synctest.Wait()
			if n := len(recv.Requests()); n != 3*(i+1) {
				t.Fatalf("%d requests after %d s, want %d", n, i, 3*(i+1))
			}
			time.Sleep(time.Second)
		}
	})
}

// lines is a log that may be read while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A flaky queue fails while away is set.
type flaky struct {
	webhook.Store
	away atomic.Bool
}

var errAway = errors.New("disk on fire")

func (q *flaky) Put(ctx context.Context, ps []webhook.Put, out []webhook.Result) error {
	if q.away.Load() {
		return errAway
	}
	return q.Store.Put(ctx, ps, out)
}

func (q *flaky) Fetch(ctx context.Context, wants []webhook.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	if q.away.Load() {
		return dst, errAway
	}
	return q.Store.Fetch(ctx, wants, maxBytes, dst)
}

func (q *flaky) Settle(ctx context.Context, ss []webhook.Settlement) (int, error) {
	if q.away.Load() {
		return 0, errAway
	}
	return q.Store.Settle(ctx, ss)
}

func TestStoreOutageLosesAndRepeatsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		q := &flaky{Store: r.queue}
		r.queue = q
		var log lines
		recv := r.network.Receiver(hook, "shh", webhooktest.Answer(200).After(time.Second))
		r.start(webhook.Config{Destinations: crm(hook), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for i := range 200 {
			r.track(fmt.Sprint("m", i))
		}
		synctest.Wait()
		q.away.Store(true) // with attempts in flight
		if err := r.Forward(t.Context(), "crm", call("refused")); !errors.Is(err, errAway) {
			t.Errorf("Forward to a store that fails = %v", err)
		}
		time.Sleep(20 * time.Second)
		q.away.Store(false)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if s := r.Stats(); s.Delivered != 200 {
			t.Errorf("Stats() = %+v", s)
		}
		if n := len(recv.Requests()); n != 200 {
			t.Errorf("%d requests for 200 deliveries", n)
		}
		if n := strings.Count(log.String(), "\n"); n < 2 || n > 4 {
			t.Errorf("%d log lines for one outage:\n%s", n, log.String())
		}
	})
}

func TestShutdownWaitsForAttemptsInFlight(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh", webhooktest.Answer(200).After(3*time.Second))
		r.start(webhook.Config{Destinations: crm(hook)})
		for i := range 100 {
			r.track(fmt.Sprint("m", i))
		}
		synctest.Wait()
		begin := time.Now()
		r.stop()
		if d := time.Since(begin); d != 3*time.Second {
			t.Errorf("stopped after %v", d)
		}
		if s := r.Stats(); s.Delivered != 4 || len(recv.Requests()) != 4 {
			t.Errorf("Stats() = %+v with %d requests, want the 4 in flight and no more", s, len(recv.Requests()))
		}
		if c := r.counts(); c.Waiting != 96 || c.Claimed != 0 {
			t.Errorf("the store holds %+v", c)
		}
		if err := r.Forward(t.Context(), "crm", call("late")); !errors.Is(err, webhook.ErrClosed) {
			t.Errorf("Forward after Shutdown = %v", err)
		}
		r.start(webhook.Config{Destinations: crm(hook)})
		time.Sleep(time.Minute)
		if n := len(recv.Requests()); n != 100 {
			t.Errorf("%d requests in all", n)
		}
	})
}

func TestShutdownCutsOffAttemptsAtItsDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh", webhooktest.Hang().Times(1), webhooktest.Answer(200))
		r.start(webhook.Config{Destinations: crm(hook)})
		r.track("m1")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown = %v", err)
		}
		begin := time.Now()
		r.stop() // again, and Run
		if d := time.Since(begin); d != 0 {
			t.Errorf("attempts went on for %v", d)
		}
		if c, s := r.counts(), r.Stats(); c.Waiting != 1 || c.Claimed != 0 || s.Retried != 0 {
			t.Errorf("the store holds %+v, Stats() = %+v", c, s)
		}
		r.start(webhook.Config{Destinations: crm(hook)})
		synctest.Wait()
		if n := len(recv.Requests()); n != 2 {
			t.Errorf("%d requests after the restart", n)
		}
	})
}

func TestRunReturnsWhenItsContextEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		c := webhook.Config{Store: r.queue, Destinations: crm(hook)}
		f, err := webhook.New(c)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := f.Run(ctx); err != nil {
			t.Errorf("Run = %v", err)
		}
		if err := f.Run(t.Context()); err == nil {
			t.Error("a second Run is no error")
		}
		if err := f.Forward(t.Context(), "crm", call("m1")); err != nil {
			t.Errorf("Forward without Run = %v", err)
		}
		if err := f.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown = %v", err)
		}
		if n := r.counts().Waiting; n != 1 {
			t.Errorf("%d deliveries wait", n)
		}
	})
}

func TestRunReturnsTheErrorOfItsStore(t *testing.T) {
	t.Run("closed under it", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig) {
			r.start(webhook.Config{Destinations: crm(hook)})
			synctest.Wait()
			r.queue.Close()
			if err := <-r.run; !errors.Is(err, webhook.ErrClosed) {
				t.Errorf("Run = %v, want ErrClosed", err)
			}
			r.run <- nil // of stop
		})
	})
	t.Run("failing until the end", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig) {
			q := &flaky{Store: r.queue}
			r.queue = q
			r.network.Receiver(hook, "", webhooktest.Answer(200).After(time.Second))
			r.start(webhook.Config{Destinations: crm(hook)})
			r.track("m1")
			synctest.Wait()
			q.away.Store(true)
			begin := time.Now()
			if err := r.Shutdown(t.Context()); err != nil {
				t.Errorf("Shutdown = %v", err)
			}
			if err := <-r.run; !errors.Is(err, errAway) {
				t.Errorf("Run = %v, want %v", err, errAway)
			}
			if took := time.Since(begin); took < 6*time.Second || took > 11*time.Second {
				t.Errorf("it ended after %v, want the attempt's second and about the 5 seconds of Timeout", took)
			}
			r.run <- nil // of stop
		})
	})
}

func TestDeliveriesOfOtherNodesAreFetched(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "")
		mine, theirs := newNode(r.queue), newNode(r.queue)
		others, err := webhook.New(webhook.Config{Store: theirs, Destinations: crm(hook)})
		must(t, err)
		r.queue = mine
		r.start(webhook.Config{Destinations: crm(hook), Poll: time.Minute})
		for i, tt := range []struct {
			name string
			tell []*node
			most time.Duration
		}{
			{"told", []*node{mine}, 0},
			{"polling", nil, time.Minute},
		} {
			theirs.others = tt.tell
			synctest.Wait()
			begin := time.Now()
			must(t, others.Forward(t.Context(), "crm", call(tt.name)))
			reqs, err := recv.Wait(t.Context(), i+1)
			must(t, err)
			if took := reqs[i].Time.Sub(begin); took > tt.most || took == 0 && tt.tell == nil {
				t.Errorf("%s: it arrives after %v, want %v at most", tt.name, took, tt.most)
			}
		}
	})
}

// With a Lookup, only what cannot be an id is refused at once.
func TestForwardWithLookupRefusesOnlyInvalidIDs(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.start(webhook.Config{Lookup: func(context.Context, string) (*webhook.Destination, error) {
			return nil, webhook.ErrUnknownDestination
		}})
		for _, tt := range []struct {
			name, id string
			want     error
		}{
			{"none", "", webhook.ErrUnknownDestination},
			{"one byte", "x", nil},
			{"255 bytes", strings.Repeat("x", 255), nil},
			{"256 bytes", strings.Repeat("x", 256), webhook.ErrUnknownDestination},
		} {
			if err := r.Forward(t.Context(), tt.id, call("m")); !errors.Is(err, tt.want) {
				t.Errorf("%s: Forward = %v, want %v", tt.name, err, tt.want)
			}
			if err := r.Pause(t.Context(), tt.id); !errors.Is(err, tt.want) {
				t.Errorf("%s: Pause = %v, want %v", tt.name, err, tt.want)
			}
		}
	})
}

func TestForwardRefusesInvalidCallsAndUnknownDestinations(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.start(webhook.Config{Destinations: crm(hook)})
		for _, tt := range []struct {
			name        string
			destination string
			calls       []analytics.Message
			is          error
		}{
			{"unknown destination", "erp", []analytics.Message{call("m")}, webhook.ErrUnknownDestination},
			{"no destination", "", []analytics.Message{call("m")}, webhook.ErrUnknownDestination},
			{"long destination", strings.Repeat("x", 256), []analytics.Message{call("m")}, webhook.ErrUnknownDestination},
			{"second call not valid", "crm", []analytics.Message{call("m"), &analytics.Track{UserId: "u"}}, nil},
			{"nil call", "crm", []analytics.Message{nil}, nil},
			{"nil pointer", "crm", []analytics.Message{(*analytics.Track)(nil)}, nil},
		} {
			err := r.Forward(t.Context(), tt.destination, tt.calls...)
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("%s: Forward = %v, want %v", tt.name, err, tt.is)
			}
		}
		var field *analytics.FieldError
		if err := r.Forward(t.Context(), "crm", call("m"), &analytics.Track{UserId: "u"}); !errors.As(err, &field) || field.Field != "Event" {
			t.Errorf("Forward of a second call without its event = %v, want a *FieldError", err)
		}
		if n := r.counts().Waiting; n != 0 {
			t.Errorf("%d deliveries of refused calls wait", n)
		}
	})
}

func TestDeadLettersAreReplayedAndDiscarded(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh", webhooktest.Answer(400))
		r.start(webhook.Config{Destinations: crm(hook)})
		for i := range 600 {
			r.track(fmt.Sprint("m", i))
		}
		synctest.Wait()
		dead := r.dead()
		if len(dead) != 600 {
			t.Fatalf("%d dead letters", len(dead))
		}
		time.Sleep(time.Second)

		recv.SetScript(webhooktest.Answer(200))
		if n, err := r.Replay(t.Context(), dead[0].Key, dead[1].Key, "none"); n != 2 || err != nil {
			t.Errorf("Replay = %d, %v", n, err)
		}
		if n, err := r.Discard(t.Context(), dead[2].Key); n != 1 || err != nil {
			t.Errorf("Discard = %d, %v", n, err)
		}
		synctest.Wait()
		if s := r.Stats(); s.Delivered != 2 {
			t.Errorf("Stats() = %+v after replay", s)
		}
		// Those that die again are not replayed again by the same call.
		recv.SetScript(webhooktest.Answer(404))
		if n, err := last(r.ReplayAll(t.Context(), webhook.DeadFilter{Reason: webhook.ReasonRefused, Destination: "crm", Type: "track"})); n != 597 || err != nil {
			t.Errorf("ReplayAll = %d, %v", n, err)
		}
		synctest.Wait()
		if n := len(r.dead()); n != 597 {
			t.Errorf("%d dead letters", n)
		}
		time.Sleep(time.Second)
		if n, err := last(r.ReplayAll(t.Context(), webhook.DeadFilter{Type: "page"})); n != 0 || err != nil {
			t.Errorf("ReplayAll of others = %d, %v", n, err)
		}
		if n, err := last(r.DiscardAll(t.Context(), webhook.DeadFilter{})); n != 597 || err != nil {
			t.Errorf("DiscardAll = %d, %v", n, err)
		}
		if c := r.counts(); c != (webhook.Counts{}) {
			t.Errorf("the store holds %+v", c)
		}
	})
}

func TestSecretsStayOutOfLogsAndRecords(t *testing.T) {
	for _, step := range []webhooktest.Step{
		webhooktest.Answer(503), webhooktest.Answer(404), webhooktest.Hang(), webhooktest.Reset(), webhooktest.Garbage(),
		webhooktest.Refuse(), webhooktest.NoSuchHost(), webhooktest.EndlessHeader(), webhooktest.Redirect(302, "/x"),
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			seen := watch(r)
			r.network.Receiver(hook, "shh", step)
			var log lines
			r.start(webhook.Config{
				Destinations: []webhook.Destination{{ID: "crm", Secret: "hunter2", Endpoints: []webhook.Endpoint{{
					URL:     "http://user:hunter2@crm.example/hook?key=hunter2",
					Headers: map[string]string{"Authorization": "hunter2"},
				}}}},
				Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			})
			r.track("m1")
			time.Sleep(time.Minute)
			synctest.Wait()
			as := seen.attempts()
			if len(as) == 0 || log.String() == "" {
				t.Fatalf("no attempt failed, or none was logged: %v", as)
			}
			if all := fmt.Sprint(as, log.String()); strings.Contains(all, "hunter2") {
				t.Errorf("a secret is told: %s", all)
			}
		})
	}
}

func TestCallsThatSwitchWebhooksOffAreNotForwarded(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		r.start(webhook.Config{Destinations: crm(hook)})
		for _, j := range []string{
			`{"type":"track","event":"e","userId":"u","messageId":"1","integrations":{"All":false}}`,
			`{"type":"track","event":"e","userId":"u","messageId":"2","integrations":{"Webhooks":false}}`,
			`{"type":"track","event":"e","userId":"u","messageId":"3","integrations":{"All":false,"Webhooks":true}}`,
			`{"type":"track","event":"e","userId":"u","messageId":"4","integrations":{"All":false,"webhooks":true}}`,
			`{"type":"track","event":"e","userId":"u","messageId":"3"}`,
		} {
			if err := r.Forward(t.Context(), "crm", event.JSON(j)); err != nil {
				t.Errorf("Forward(%s) = %v", j, err)
			}
		}
		synctest.Wait()
		if s := r.Stats(); s.Off != 3 || s.Accepted != 1 || s.Duplicates != 1 || s.Delivered != 1 {
			t.Errorf("Stats() = %+v", s)
		}
		if reqs := recv.Requests(); len(reqs) != 1 || reqs[0].JSON["messageId"] != "3" {
			t.Errorf("%d requests", len(reqs))
		}
	})
}
