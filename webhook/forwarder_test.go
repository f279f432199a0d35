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
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A rig is a running forwarder on an in-memory network, for one test.
type rig struct {
	*webhook.Forwarder
	t       *testing.T
	network *webhooktest.Network
	queue   webhook.Store
	config  webhook.Config
	run     chan error
	events  atomic.Int64 // how many fill has made, for unique ids
}

// inBubble calls test in a synctest bubble with a new network and a new store in memory. Afterwards
// it stops the forwarder that test has started.
func inBubble(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	webhook.SeedJitter(1)
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, network: webhooktest.NewNetwork(), queue: testkit.Must(memqueue.Open(memqueue.Config{}))}
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

// start runs a forwarder on the store and the network of r.
func (r *rig) start(c webhook.Config) {
	r.t.Helper()
	c.Store = r.queue
	c.DialContext = r.network.DialContext
	c.TLSClientConfig = r.network.TLSClientConfig()
	c.AnswerAge = max(c.AnswerAge, 1) // so that each attempt asks the Directory
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

// A lookup is a Directory without tenants. No destination, and no error, is an unknown one.
type lookup func(ctx context.Context, id string) (*webhook.Destination, error)

func (l lookup) Destination(ctx context.Context, id string) (webhook.Destination, error) {
	d, err := l(ctx, id)
	switch {
	case err != nil:
		return webhook.Destination{}, err
	case d == nil:
		return webhook.Destination{}, webhook.ErrUnknownDestination
	}
	return *d, nil
}

func (lookup) Destinations(context.Context, string) ([]webhook.Destination, error) { return nil, nil }

// attempted is a lookup for attempts alone. Events that rig.tracking forwards are stored, whatever
// the lookup says.
func attempted(l lookup) lookup {
	return func(ctx context.Context, id string) (*webhook.Destination, error) {
		if ctx.Value(tracking{}) != nil {
			time.Sleep(time.Nanosecond) // so that the attempt does not use this answer
			return nil, webhook.ErrUnknownDestination
		}
		return l(ctx, id)
	}
}

type tracking struct{} // the key of a value in the context that rig.tracking returns

// tracking returns the context for events that a test forwards. With a Directory it first lets a
// nanosecond pass. In this time, attempts that have begun come to their end, so that their answers
// are not used.
func (r *rig) tracking() context.Context {
	if r.config.Directory != nil {
		time.Sleep(time.Nanosecond)
	}
	return context.WithValue(r.t.Context(), tracking{}, true)
}

// track forwards a track call with this messageId to "crm".
func (r *rig) track(id string) {
	r.t.Helper()
	if err := r.Forward(r.tracking(), "crm", call(id)); err != nil {
		r.t.Fatalf("Forward: %v", err)
	}
}

func call(id string) event.Call {
	return &analytics.Track{UserId: "u1", Event: "Tested", MessageId: id}
}

// must ends the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) dead() []webhook.Record {
	r.t.Helper()
	return collect(r.t, r.Deliveries(r.t.Context(), webhook.Query{States: []webhook.State{webhook.StateDead}, Oldest: true}))
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

// counts returns the counts of the store, without times and bytes.
func (r *rig) counts() store.Counts {
	r.t.Helper()
	c, err := r.queue.Count(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	c.Oldest, c.DeadBytes, c.OldestDead = time.Time{}, 0, time.Time{}
	return c
}

// crm returns one destination, "crm", with an endpoint for each URL.
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
			t.Errorf("X-Signature: got %v, want it to verify", q.Signature)
		}
		if q.Method != "POST" || q.URL.RequestURI() != "/hook?x=1" || q.Host != "crm.example" {
			t.Errorf("got the request %s %s of the host %s, want POST /hook?x=1 of crm.example", q.Method, q.URL.RequestURI(), q.Host)
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
			t.Errorf("Stats() = %+v, want 1 accepted and 1 delivered", s)
		}
		if c := r.counts(); c != (store.Counts{}) {
			t.Errorf("the store has %+v after the delivery, want nothing", c)
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
			t.Errorf("got the header %v, want no X-Signature and the User-Agent Acme/1.0", h)
		}
	})
}

// The forwarder retries an endpoint that always answers 503 on schedule for four hours. Restarts in
// between, which also reopen the store, do not change this.
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
			recv := r.network.Receiver(hook, "shh", step.Answer(503).WithBody("later"))
			config := webhook.Config{Destinations: crm(hook)}
			r.start(config)
			begin := time.Now()
			r.track("m1")
			for range restarts {
				time.Sleep(50 * time.Minute)
				r.stop()
				open()
				time.Sleep(time.Minute) // attempts that become due now are late
				r.start(config)
			}
			time.Sleep(time.Until(begin.Add(4*time.Hour - time.Second)))
			synctest.Wait()
			if len(r.dead()) != 0 && recv.Requests()[len(recv.Requests())-1].Time.Before(begin.Add(3*time.Hour+49*time.Minute)) {
				t.Errorf("the delivery is a dead letter, want it waiting until the retry window ends")
			}
			time.Sleep(24 * time.Hour)
			synctest.Wait()

			reqs := recv.Requests()
			for i, q := range reqs {
				if at := q.Time.Sub(begin); at > 4*time.Hour {
					t.Errorf("attempt %d starts %v after the first, want at most 4 h", i+1, at)
				}
				if i > 0 {
					wait := q.Time.Sub(reqs[i-1].Time)
					if most := min(time.Second<<min(i-1, 20), 10*time.Minute) + time.Duration(min(restarts, 1))*time.Minute; wait > most {
						t.Errorf("attempt %d follows after a wait of %v, want at most %v", i+1, wait, most)
					}
				}
			}
			if n := len(reqs); n < 25 || n > 200 {
				t.Errorf("got %d attempts in four hours, want 25 to 200", n)
			}
			last := reqs[len(reqs)-1].Time.Sub(begin)
			if early := 4*time.Hour - 5*time.Second - last; early < 0 || early > time.Millisecond {
				t.Errorf("the last attempt starts after %v, want it 5 s before the retry window ends", last)
			}
			dead := r.dead()
			if len(dead) != 1 {
				t.Fatalf("got %d dead letters, want 1", len(dead))
			}
			d := dead[0]
			if d.Reason != webhook.ReasonExpired || d.ID != "m1" || d.Tries != len(reqs) || len(d.Attempts) != store.MaxAttempts {
				t.Errorf("dead letter %s: reason %q after %d tries with %d attempts kept; want %q after %d with %d",
					d.ID, d.Reason, d.Tries, len(d.Attempts), webhook.ReasonExpired, len(reqs), store.MaxAttempts)
			}
			for i, a := range d.Attempts {
				try := i + 1
				if i >= 2 {
					try = d.Tries - store.MaxAttempts + i + 1
				}
				want := webhook.Attempt{At: reqs[try-1].Time.UTC().Truncate(time.Microsecond), Try: try, Endpoint: hook, Status: 503, Reason: webhook.ReasonServerError, Answer: "later"}
				if diff := cmp.Diff(want, a); diff != "" {
					t.Errorf("attempt %d of the dead letter (-want +got):\n%s", i, diff)
				}
			}
			if !bytes.Equal(d.Body, reqs[0].Body) || !bytes.Equal(reqs[0].Body, reqs[len(reqs)-1].Body) {
				t.Error("the bodies of the first attempt, the last attempt and the dead letter differ, want them equal")
			}
			if s := r.Stats(); restarts == 0 && (s.Retried != int64(len(reqs)-1) || s.Dead[webhook.ReasonExpired] != 1) {
				t.Errorf("Stats() = %+v after %d attempts, want all but the first as retries and 1 expired", s, len(reqs))
			}
		})
	}
}

func TestAnswerAfterFiveSecondsIsRetried(t *testing.T) {
	for _, tt := range []struct {
		name string
		step step.Step
		want int // requests within a minute
	}{
		{"after 4.9 s", step.Answer(200).After(4900 * time.Millisecond), 1},
		{"after 5.1 s", step.Answer(200).After(5100 * time.Millisecond), 2},
		{"body ends after 4.9 s", step.Answer(200).WithBody(strings.Repeat("x", 49)).Drip(100 * time.Millisecond), 1},
		{"body ends after 5.1 s", step.Answer(200).WithBody(strings.Repeat("x", 52)).Drip(100 * time.Millisecond), 2},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.network.Receiver(hook, "shh", tt.step, step.Answer(204))
			r.start(webhook.Config{Destinations: crm(hook)})
			r.track("m1")
			time.Sleep(time.Minute)
			if got := len(recv.Requests()); got != tt.want {
				t.Errorf("%s: got %d requests, want %d", tt.name, got, tt.want)
			}
			if s := r.Stats(); s.Delivered != 1 {
				t.Errorf("%s: Stats() = %+v, want 1 delivered", tt.name, s)
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
				t.Errorf("certificate %d: got %d requests, want none", c, n)
			}
			if dead := r.dead(); len(dead) != 1 || dead[0].Reason != webhook.ReasonCertificate || dead[0].Tries != 1 {
				t.Errorf("certificate %d: got the dead letters %+v, want 1 with the reason %q after 1 attempt", c, dead, webhook.ReasonCertificate)
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
			t.Errorf("got %d requests by TLS 1.1, Stats() = %+v; want no request and a failed attempt", n, s)
		}
	})
}

func TestOneSuccessOfFiveEndpointsIsEnough(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		var urls []string
		var recvs []*webhooktest.Receiver
		for i := range 5 {
			urls = append(urls, fmt.Sprintf("http://e%d.example/hook", i))
			answer := []step.Step{step.Answer(503), step.Hang(), step.Answer(404), step.Answer(200), step.Reset()}[i]
			recvs = append(recvs, r.network.Receiver(urls[i], "shh", answer))
		}
		r.start(webhook.Config{Destinations: crm(urls...)})
		r.track("m1")
		time.Sleep(5 * time.Hour)
		for i, recv := range recvs {
			if n := len(recv.Requests()); n != 1 {
				t.Errorf("endpoint %d: got %d requests, want 1", i, n)
			}
		}
		if s := r.Stats(); s.Delivered != 1 || s.Retried != 0 || len(s.Dead) != 0 {
			t.Errorf("Stats() = %+v, want 1 delivered, none retried or dead", s)
		}
	})
}

func TestOnlyRetryableEndpointsAreTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const gone, slow = "http://gone.example/", "http://slow.example/"
		a := r.network.Receiver(gone, "shh", step.Answer(410))
		b := r.network.Receiver(slow, "shh", step.Answer(500).Times(3), step.Answer(200))
		r.start(webhook.Config{Destinations: crm(gone, slow)})
		r.track("m1")
		time.Sleep(time.Minute)
		if n, m := len(a.Requests()), len(b.Requests()); n != 1 || m != 4 {
			t.Errorf("got %d and %d requests, want 1 and 4", n, m)
		}
	})
	inBubble(t, func(t *testing.T, r *rig) {
		const a, b = "http://a.example/", "http://b.example/"
		r.network.Receiver(a, "shh", step.Answer(410))
		r.network.Receiver(b, "shh", step.Answer(500).Times(2), step.Answer(301))
		r.start(webhook.Config{Destinations: crm(a, b)})
		r.track("m1")
		time.Sleep(time.Minute)
		dead := r.dead()
		if len(dead) != 1 || dead[0].Reason != webhook.ReasonRedirect || dead[0].Tries != 3 {
			t.Errorf("got the dead letters %+v, want one with the reason %q after 3 attempts", dead, webhook.ReasonRedirect)
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
		{"too long, capped by the retry window", "99999999999", 503, 4*time.Hour - 5*time.Second, 4*time.Hour - 5*time.Second},
		{"not a number", "soon", 429, 0, time.Second},
	} {
		inBubble(t, func(t *testing.T, r *rig) { // the bubble's time starts at 2000-01-01 00:00:00 UTC
			recv := r.network.Receiver(hook, "shh", step.Answer(tt.status).With("Retry-After", tt.value), step.Answer(200))
			r.start(webhook.Config{Destinations: crm(hook)})
			r.track("m1")
			reqs, err := recv.Wait(t.Context(), 2)
			must(t, err)
			if wait := reqs[1].Time.Sub(reqs[0].Time); wait < tt.from || wait > tt.to {
				t.Errorf("%s: the retry waits %v, want %v to %v", tt.name, wait, tt.from, tt.to)
			}
		})
	}
}

// The Retry-After of one endpoint does not delay attempts at another endpoint.
func TestRetryAfterIsPerEndpoint(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const a, b = "http://a.example/", "http://b.example/"
		throttled := r.network.Receiver(a, "shh", step.Answer(429).With("Retry-After", "3600"), step.Answer(200))
		failing := r.network.Receiver(b, "shh", step.Answer(503))
		r.start(webhook.Config{Destinations: crm(a, b)})
		r.track("m1")
		time.Sleep(59 * time.Minute)
		if n, m := len(throttled.Requests()), len(failing.Requests()); n != 1 || m < 8 {
			t.Errorf("got %d and %d requests before Retry-After ends, want 1 and at least 8", n, m)
		}
		time.Sleep(12 * time.Minute)
		if n, s := len(throttled.Requests()), r.Stats(); n != 2 || s.Delivered != 1 {
			t.Errorf("got %d requests after Retry-After has ended, Stats() = %+v; want 2 requests and 1 delivered", n, s)
		}
	})
}

// misbehavingSteps are ways in which receivers misbehave, with the outcome of an attempt at each.
var misbehavingSteps = []struct {
	name   string
	step   step.Step
	reason webhook.Reason // of the failed attempt; "" if it succeeds
	dead   bool           // the delivery becomes a dead letter
}{
	{"hangs", step.Hang(), webhook.ReasonTimeout, false},
	{"stalls before the request", step.Stall(), webhook.ReasonTimeout, false},
	{"answers one byte a second", step.Answer(200).WithBody(strings.Repeat("x", 100)).Drip(time.Second), webhook.ReasonTimeout, false},
	{"resets", step.Reset(), webhook.ReasonConnection, false},
	{"resets early", step.ResetEarly(), webhook.ReasonConnection, false},
	{"closes the connection", step.Close(), webhook.ReasonConnection, false},
	{"refuses the connection", step.Refuse(), webhook.ReasonConnection, false},
	{"has no address", step.NoSuchHost(), webhook.ReasonDNS, false},
	{"is unreachable", step.Unreachable(), webhook.ReasonTimeout, false},
	{"does not speak HTTP", step.Garbage(), webhook.ReasonProtocol, false},
	{"sends an endless header", step.EndlessHeader(), webhook.ReasonProtocol, false},
	{"floods with 1xx", step.EndlessInformational(), webhook.ReasonProtocol, false},
	{"answers less than its Content-Length", step.Answer(200).WithBody("short").Misstate(100), webhook.ReasonConnection, false},
	{"answers 256 MB", step.Stream(256 << 20), "", false},
	{"answers and closes the connection", step.Answer(200).HangUp(), "", false},
	{"redirects to a private address", step.Redirect(307, "http://169.254.169.254/"), webhook.ReasonRedirect, true},
	{"switches protocols", step.Raw("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"), webhook.ReasonProtocol, false},
}

// The receiver misbehaves in the first attempt and answers 200 to any other. If the first attempt
// fails, it fails within the timeout and with the expected reason, and the second one succeeds. Only
// a redirect is final.
func TestMisbehavingReceiverCostsAtMostOneAttempt(t *testing.T) {
	for _, tt := range misbehavingSteps {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.network.Receiver(hook, "shh", tt.step, step.Answer(200))
			seen := watch(r)
			r.start(webhook.Config{Destinations: crm(hook)})
			r.track("m1")
			time.Sleep(time.Minute)
			synctest.Wait()
			s := r.Stats()
			if tt.dead != (len(s.Dead) == 1) || tt.dead == (s.Delivered == 1) {
				t.Errorf("%s: Stats() = %+v, want 1 dead: %v, else 1 delivered", tt.name, s, tt.dead)
			}
			if tt.reason != "" {
				as := seen.attempts()
				if len(as) != 1 || as[0].Reason != tt.reason {
					t.Errorf("%s: got the failed attempts %+v, want one with the reason %q", tt.name, as, tt.reason)
				}
				if time.Duration(as[0].Took) > 5*time.Second {
					t.Errorf("%s: the attempt took %v, want at most 5 s", tt.name, as[0].Took)
				}
			} else if n := len(recv.Requests()); n != 1 {
				t.Errorf("%s: got %d requests, want 1", tt.name, n)
			}
		})
	}
}

// Over HTTP/2, a receiver misbehaves in its first four answers. Only those attempts fail, and all
// deliveries arrive.
func TestMisbehavingHTTP2ReceiverCostsOnlyItsOwnAttempts(t *testing.T) {
	const hook = "https://crm.example/hook"
	for _, tt := range []struct {
		name    string
		step    step.Step
		reason  webhook.Reason // of the first attempts; "" if they succeed
		failing int            // how many attempts fail; -1 for any number
		slots   int            // MaxConcurrent
	}{
		{"hangs", step.Hang(), webhook.ReasonTimeout, 4, 0},
		{"answers one byte a second", step.Answer(200).WithBody(strings.Repeat("x", 100)).Drip(time.Second), webhook.ReasonTimeout, 4, 0},
		{"answers 256 MB", step.Stream(256 << 20), "", 0, 0},
		{"sends GOAWAY after each answer", step.Answer(200).HangUp(), "", 0, 1},
		{"sends GOAWAY after answers of 503", step.Answer(503).HangUp(), webhook.ReasonServerError, 4, 1},
		// If a connection gets a GOAWAY, its other requests are made once more. The attempt fails at a
		// second GOAWAY. The receiver has processed neither request.
		{"sends GOAWAY to many requests at once", step.Answer(200).HangUp(), webhook.ReasonConnection, -1, 0},
		{"floods with 1xx", step.EndlessInformational(), webhook.ReasonProtocol, 4, 0},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			rest := step.Answer(200)
			if strings.HasPrefix(tt.name, "sends GOAWAY") {
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
				t.Errorf("%s: Stats() = %+v, %d requests, failed attempts %+v; want %d delivered, %d requests and %d failed attempts",
					tt.name, s, len(recv.Requests()), as, n, sent, failing)
			}
			for _, a := range as {
				if tt.reason != "" && a.Reason != tt.reason || time.Duration(a.Took) > 5*time.Second {
					t.Errorf("%s: got the failed attempt %+v, want the reason %q and at most 5 s", tt.name, a, tt.reason)
				}
			}
			for _, req := range recv.Requests() {
				if req.Proto != "HTTP/2.0" {
					t.Errorf("%s: got a request by %s, want HTTP/2.0", tt.name, req.Proto)
				}
			}
		})
	}
}

// A watched store records all settlements.
type watched struct {
	webhook.Store
	mu      sync.Mutex
	settled []store.Settlement
}

// watch replaces the store of r by one that is watched.
func watch(r *rig) *watched {
	w := &watched{Store: r.queue}
	r.queue = w
	return w
}

func (w *watched) Settle(ctx context.Context, ss []store.Settlement) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settled = append(w.settled, slices.Clone(ss)...)
	return w.Store.Settle(ctx, ss)
}

// attempts returns the latest attempt of each settlement that is not Done.
func (w *watched) attempts() []webhook.Attempt {
	w.mu.Lock()
	defer w.mu.Unlock()
	var as []webhook.Attempt
	for _, s := range w.settled {
		if n := len(s.Delivery.Attempts); n > 0 && s.Verdict != store.Done {
			as = append(as, s.Delivery.Attempts[n-1])
		}
	}
	return as
}

func TestConnectionsAreReused(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh", step.Answer(200).WithBody(strings.Repeat("x", 60<<10)))
		r.start(webhook.Config{Destinations: crm(hook)})
		for i := range 50 {
			r.track(fmt.Sprint("m", i))
			synctest.Wait()
		}
		if n, _ := recv.Conns(); n != 1 {
			t.Errorf("got %d connections for 50 deliveries, one after another, want 1", n)
		}
		recv.Disconnect()
		r.track("after")
		synctest.Wait()
		if s := r.Stats(); s.Delivered != 51 || s.Retried != 0 {
			t.Errorf("after the receiver closed the kept connection: Stats() = %+v, want 51 delivered without a retry", s)
		}
	})
}

func TestEachAttemptUsesTheCurrentDestination(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		old := r.network.Receiver("http://old.example/", "old", step.Answer(503))
		moved := r.network.Receiver("http://new.example/", "new", step.Answer(200))
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
		r.start(webhook.Config{Directory: lookup(func(_ context.Context, id string) (*webhook.Destination, error) {
			if id != "crm" {
				return nil, webhook.ErrUnknownDestination
			}
			return current.Load(), nil
		})})
		r.track("m1")
		synctest.Wait()
		set("http://new.example/", "new")
		time.Sleep(10 * time.Second)
		if len(old.Requests()) == 0 || len(moved.Requests()) != 1 || moved.Requests()[0].Signature != nil {
			t.Errorf("got %d requests to the old URL and %d to the new, want at least 1, and 1 with a valid signature", len(old.Requests()), len(moved.Requests()))
		}
	})
}

// An endpoint that is closed to a delivery, because it refused or sent a Retry-After, stays closed
// when the endpoints of the destination change. A new endpoint is open.
func TestClosedEndpointsStayClosedWhenEndpointsChange(t *testing.T) {
	const a, b = "http://a.example/", "http://b.example/"
	destination := func(urls ...string) *webhook.Destination { return &crm(urls...)[0] }
	t.Run("the remaining endpoint has refused", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig) {
			refusing := r.network.Receiver(a, "shh", step.Answer(404))
			r.network.Receiver(b, "shh", step.Answer(503))
			var current atomic.Pointer[webhook.Destination]
			current.Store(destination(a, b))
			r.start(webhook.Config{Directory: lookup(func(context.Context, string) (*webhook.Destination, error) { return current.Load(), nil })})
			r.track("m1")
			synctest.Wait()
			current.Store(destination(a))
			time.Sleep(time.Minute)
			dead := r.dead()
			if len(dead) != 1 || dead[0].Tries != 1 || dead[0].Reason != webhook.ReasonServerError || len(refusing.Requests()) != 1 {
				t.Errorf("got %d requests and the dead letters %+v; want one of each, with the reason of the last attempt", len(refusing.Requests()), dead)
			}
		})
	})
	t.Run("the remaining endpoint sent a Retry-After", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig) {
			throttled := r.network.Receiver(a, "shh", step.Answer(429).With("Retry-After", "600"), step.Answer(200))
			r.network.Receiver(b, "shh", step.Answer(503))
			var current atomic.Pointer[webhook.Destination]
			current.Store(destination(a, b))
			r.start(webhook.Config{Directory: lookup(func(context.Context, string) (*webhook.Destination, error) { return current.Load(), nil })})
			r.track("m1")
			synctest.Wait()
			current.Store(destination(a))
			reqs, err := throttled.Wait(t.Context(), 2)
			must(t, err)
			if wait := reqs[1].Time.Sub(reqs[0].Time); wait < 10*time.Minute-time.Microsecond || wait > 10*time.Minute+time.Second {
				t.Errorf("the endpoint is retried after %v, want 10 minutes", wait)
			}
		})
	})
	t.Run("different endpoints at each attempt", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig) {
			var attempts int // only one worker asks
			last := r.network.Receiver(hook, "shh")
			r.start(webhook.Config{Directory: attempted(func(context.Context, string) (*webhook.Destination, error) {
				if attempts++; attempts > 4 {
					return destination(hook), nil
				}
				var urls []string
				for i := range store.MaxEndpoints {
					url := fmt.Sprintf("http://e%d-%d.example/", attempts, i)
					answer := step.Answer(404)
					if i == 0 {
						answer = step.Answer(503)
					}
					r.network.Receiver(url, "shh", answer)
					urls = append(urls, url)
				}
				return destination(urls...), nil
			})})
			r.track("m1")
			time.Sleep(time.Minute)
			synctest.Wait()
			if s := r.Stats(); s.Delivered != 1 || s.Retried != 4 || len(last.Requests()) != 1 {
				t.Errorf("Stats() = %+v with %d requests to the last endpoint; want 1 delivered, 4 retried and 1 request", s, len(last.Requests()))
			}
		})
	})
}

// The time that a destination cannot be used does not count towards the retry window.
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
		{"invalid", &webhook.Destination{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "gopher://x"}}}, nil},
		{"another destination", &webhook.Destination{ID: "other", Endpoints: []webhook.Endpoint{{URL: hook}}}, nil},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.network.Receiver(hook, "shh")
			good := crm(hook)[0]
			var usable atomic.Bool
			r.start(webhook.Config{Directory: attempted(func(context.Context, string) (*webhook.Destination, error) {
				if usable.Load() {
					return &good, nil
				}
				return tt.d, tt.err
			})})
			for i := range 300 {
				r.track(fmt.Sprint("m", i))
			}
			time.Sleep(6 * time.Hour) // longer than the retry window
			if c := r.counts(); c.Waiting != 300 || c.Dead != 0 || len(recv.Requests()) != 0 {
				t.Errorf("%s: the store has %+v, %d requests; want 300 waiting and no request", tt.name, c, len(recv.Requests()))
			}
			usable.Store(true)
			time.Sleep(31 * time.Second)
			if s := r.Stats(); s.Delivered != 300 {
				t.Errorf("%s: Stats() = %+v after the destination became usable, want 300 delivered", tt.name, s)
			}
		})
	}
}

// A Directory that hangs is cut off at the timeout of an attempt, and then counts as failed.
func TestDirectoryIsCutOffAtTheTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		var hung []time.Duration // only one worker asks
		r.start(webhook.Config{Timeout: 2 * time.Second, Directory: attempted(func(ctx context.Context, _ string) (*webhook.Destination, error) {
			if len(hung) == 2 {
				return &crm(hook)[0], nil
			}
			begin := time.Now()
			<-ctx.Done()
			hung = append(hung, time.Since(begin))
			return nil, ctx.Err()
		})})
		r.track("m1")
		reqs, err := recv.Wait(t.Context(), 1)
		must(t, err)
		if want := []time.Duration{2 * time.Second, 2 * time.Second}; !slices.Equal(hung, want) {
			t.Errorf("questions to the Directory hung for %v, want %v", hung, want)
		}
		if n := reqs[0].JSON["messageId"]; n != "m1" {
			t.Errorf("messageId is %v, want m1", n)
		}
	})
}

// If the Directory ignores the end of its context for three timeouts, the delivery goes back to the store, and
// another worker attempts it. The request that the hanging worker makes at last has the body, too.
func TestALookupThatHangsKeepsNoDelivery(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		release := make(chan struct{})
		var calls atomic.Int32
		r.start(webhook.Config{Timeout: 2 * time.Second, Directory: attempted(func(context.Context, string) (*webhook.Destination, error) {
			if calls.Add(1) == 2 {
				<-release
			}
			return &crm(hook)[0], nil
		})})
		for i, id := range []string{"m0", "m1"} {
			r.track(id)
			if _, err := recv.Wait(t.Context(), i+1); err != nil {
				t.Fatal(err)
			}
		}
		close(release)
		time.Sleep(time.Minute)
		for i, req := range recv.Requests()[1:] {
			if id := req.JSON["messageId"]; id != "m1" {
				t.Errorf("request %d after the first has the messageId %v, want m1", i, id)
			}
		}
		if c := r.counts(); c.Waiting != 0 || c.Dead != 0 {
			t.Errorf("the store has %+v, want no delivery", c)
		}
	})
}

func TestAHangingDestinationDelaysNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver("http://hang.example/", "", step.Hang())
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
			t.Errorf("500 deliveries took %v beside a destination that hangs, want no time", d)
		}
	})
}

func TestConcurrencyIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "", step.Answer(200).After(time.Second))
		r.start(webhook.Config{Destinations: []webhook.Destination{{ID: "crm", MaxConcurrent: 3, Endpoints: []webhook.Endpoint{{URL: hook}}}}})
		for i := range 30 {
			r.track(fmt.Sprint("m", i))
		}
		for i := range 10 {
			synctest.Wait()
			if n := len(recv.Requests()); n != 3*(i+1) {
				t.Fatalf("got %d requests after %d s, want %d", n, i, 3*(i+1))
			}
			time.Sleep(time.Second)
		}
	})
}

// lines is a buffer for logs that may be read while the logger writes to it.
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

// A flaky store fails Put, Fetch and Settle while away is set.
type flaky struct {
	webhook.Store
	away atomic.Bool
}

var errAway = errors.New("disk on fire")

func (q *flaky) Put(ctx context.Context, ps []store.Put, out []store.Result) error {
	if q.away.Load() {
		return errAway
	}
	return q.Store.Put(ctx, ps, out)
}

func (q *flaky) Fetch(ctx context.Context, wants []store.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	if q.away.Load() {
		return dst, errAway
	}
	return q.Store.Fetch(ctx, wants, maxBytes, dst)
}

func (q *flaky) Settle(ctx context.Context, ss []store.Settlement) (int, error) {
	if q.away.Load() {
		return 0, errAway
	}
	return q.Store.Settle(ctx, ss)
}

// The outage begins while attempts are in flight.
func TestStoreOutageLosesAndRepeatsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		q := &flaky{Store: r.queue}
		r.queue = q
		var log lines
		recv := r.network.Receiver(hook, "shh", step.Answer(200).After(time.Second))
		r.start(webhook.Config{Destinations: crm(hook), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for i := range 200 {
			r.track(fmt.Sprint("m", i))
		}
		synctest.Wait()
		q.away.Store(true) // with attempts in flight
		if err := r.Forward(t.Context(), "crm", call("refused")); !errors.Is(err, errAway) {
			t.Errorf("Forward() to a store that fails = %v, want %v", err, errAway)
		}
		time.Sleep(20 * time.Second)
		q.away.Store(false)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if s := r.Stats(); s.Delivered != 200 {
			t.Errorf("Stats() = %+v, want 200 delivered", s)
		}
		if n := len(recv.Requests()); n != 200 {
			t.Errorf("got %d requests for 200 deliveries, want 200", n)
		}
		if n := strings.Count(log.String(), "\n"); n < 2 || n > 4 {
			t.Errorf("got %d log lines for one outage, want 2 to 4:\n%s", n, log.String())
		}
	})
}

func TestShutdownWaitsForAttemptsInFlight(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh", step.Answer(200).After(3*time.Second))
		r.start(webhook.Config{Destinations: crm(hook)})
		for i := range 100 {
			r.track(fmt.Sprint("m", i))
		}
		synctest.Wait()
		begin := time.Now()
		r.stop()
		if d := time.Since(begin); d != 3*time.Second {
			t.Errorf("Shutdown took %v, want the 3 s of the attempts in flight", d)
		}
		if s := r.Stats(); s.Delivered != 4 || len(recv.Requests()) != 4 {
			t.Errorf("Stats() = %+v with %d requests, want only the 4 attempts that were in flight", s, len(recv.Requests()))
		}
		if c := r.counts(); c.Waiting != 96 || c.Claimed != 0 {
			t.Errorf("the store has %+v, want 96 waiting and none claimed", c)
		}
		if err := r.Forward(t.Context(), "crm", call("late")); !errors.Is(err, webhook.ErrClosed) {
			t.Errorf("Forward() after Shutdown = %v, want ErrClosed", err)
		}
		r.start(webhook.Config{Destinations: crm(hook)})
		time.Sleep(time.Minute)
		if n := len(recv.Requests()); n != 100 {
			t.Errorf("got %d requests before and after the restart, want 100", n)
		}
	})
}

func TestShutdownCutsOffAttemptsAtItsDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh", step.Hang().Times(1), step.Answer(200))
		r.start(webhook.Config{Destinations: crm(hook)})
		r.track("m1")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown() = %v, want DeadlineExceeded", err)
		}
		begin := time.Now()
		r.stop() // calls Shutdown again, and waits for Run
		if d := time.Since(begin); d != 0 {
			t.Errorf("attempts went on for %v, want them cut off at once", d)
		}
		if c, s := r.counts(), r.Stats(); c.Waiting != 1 || c.Claimed != 0 || s.Retried != 0 {
			t.Errorf("the store has %+v, Stats() = %+v; want 1 waiting, none claimed or retried", c, s)
		}
		r.start(webhook.Config{Destinations: crm(hook)})
		synctest.Wait()
		if n := len(recv.Requests()); n != 2 {
			t.Errorf("got %d requests, want 1 before and 1 after the restart", n)
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
			t.Errorf("Run() with a canceled context = %v, want nil", err)
		}
		if err := f.Run(t.Context()); err == nil {
			t.Error("a second Run() = nil, want an error")
		}
		if err := f.Forward(t.Context(), "crm", call("m1")); err != nil {
			t.Errorf("Forward() without Run = %v, want nil", err)
		}
		if err := f.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown() = %v, want nil", err)
		}
		if n := r.counts().Waiting; n != 1 {
			t.Errorf("got %d waiting deliveries, want 1", n)
		}
	})
}

func TestRunReturnsTheErrorOfItsStore(t *testing.T) {
	t.Run("store is closed while Run runs", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig) {
			r.start(webhook.Config{Destinations: crm(hook)})
			synctest.Wait()
			r.queue.Close()
			if err := <-r.run; !errors.Is(err, webhook.ErrClosed) {
				t.Errorf("Run() = %v, want ErrClosed", err)
			}
			r.run <- nil // stop receives it
		})
	})
	t.Run("store fails until Shutdown gives up", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig) {
			q := &flaky{Store: r.queue}
			r.queue = q
			r.network.Receiver(hook, "", step.Answer(200).After(time.Second))
			r.start(webhook.Config{Destinations: crm(hook)})
			r.track("m1")
			synctest.Wait()
			q.away.Store(true)
			begin := time.Now()
			if err := r.Shutdown(t.Context()); err != nil {
				t.Errorf("Shutdown() = %v, want nil", err)
			}
			if err := <-r.run; !errors.Is(err, errAway) {
				t.Errorf("Run() = %v, want %v", err, errAway)
			}
			if took := time.Since(begin); took < 6*time.Second || took > 11*time.Second {
				t.Errorf("Shutdown took %v, want the 1 s of the attempt and about the 5 s of Timeout", took)
			}
			r.run <- nil // stop receives it
		})
	})
}

// A node fetches a delivery of another node at once if the store tells it of the change, and
// otherwise at its next poll.
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
				t.Errorf("%s: the delivery arrives after %v, want at most %v", tt.name, took, tt.most)
			}
		}
	})
}

// With a Directory, Forward and Pause refuse only ids that no destination can have. They do not ask it
// for others.
func TestForwardWithDirectoryRefusesOnlyInvalidIDs(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.start(webhook.Config{Directory: lookup(func(context.Context, string) (*webhook.Destination, error) {
			return nil, webhook.ErrUnknownDestination
		})})
		for _, tt := range []struct {
			name, id string
			want     error
		}{
			{"empty", "", webhook.ErrUnknownDestination},
			{"one byte", "x", nil},
			{"255 bytes", strings.Repeat("x", 255), nil},
			{"256 bytes", strings.Repeat("x", 256), webhook.ErrUnknownDestination},
		} {
			if err := r.Forward(t.Context(), tt.id, call("m")); !errors.Is(err, tt.want) {
				t.Errorf("%s: Forward() = %v, want %v", tt.name, err, tt.want)
			}
			if err := r.Pause(t.Context(), tt.id); !errors.Is(err, tt.want) {
				t.Errorf("%s: Pause() = %v, want %v", tt.name, err, tt.want)
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
			calls       []event.Call
			is          error // nil for any error
		}{
			{"unknown destination", "erp", []event.Call{call("m")}, webhook.ErrUnknownDestination},
			{"no destination", "", []event.Call{call("m")}, webhook.ErrUnknownDestination},
			{"long destination", strings.Repeat("x", 256), []event.Call{call("m")}, webhook.ErrUnknownDestination},
			{"second call is invalid", "crm", []event.Call{call("m"), &analytics.Track{UserId: "u"}}, nil},
			{"nil call", "crm", []event.Call{nil}, nil},
			{"nil pointer", "crm", []event.Call{(*analytics.Track)(nil)}, nil},
		} {
			err := r.Forward(t.Context(), tt.destination, tt.calls...)
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("%s: Forward() = %v, want an error that is %v", tt.name, err, tt.is)
			}
		}
		var field *analytics.FieldError
		if err := r.Forward(t.Context(), "crm", call("m"), &analytics.Track{UserId: "u"}); !errors.As(err, &field) || field.Field != "Event" {
			t.Errorf("Forward() of a second call without its event = %v, want a *FieldError for Event", err)
		}
		if n := r.counts().Waiting; n != 0 {
			t.Errorf("got %d waiting deliveries of refused calls, want none", n)
		}
	})
}

func TestDeadLettersAreRetriedAndDiscarded(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh", step.Answer(400))
		r.start(webhook.Config{Destinations: crm(hook)})
		for i := range 600 {
			r.track(fmt.Sprint("m", i))
		}
		time.Sleep(time.Second) // outcomes are stored together
		dead := r.dead()
		if len(dead) != 600 {
			t.Fatalf("got %d dead letters, want 600", len(dead))
		}
		time.Sleep(time.Second)

		recv.SetScript(step.Answer(200))
		if n, err := r.Retry(t.Context(), dead[0].Ref(), dead[1].Ref(), webhook.Ref{Destination: "none"}); n.Changed != 2 || err != nil {
			t.Errorf("Retry() = %+v, %v; want 2", n, err)
		}
		if n, err := r.Discard(t.Context(), dead[2].Ref()); n.Changed != 1 || err != nil {
			t.Errorf("Discard() = %+v, %v; want 1", n, err)
		}
		synctest.Wait()
		if s := r.Stats(); s.Delivered != 2 {
			t.Errorf("Stats() = %+v after the retry, want 2 delivered", s)
		}
		// RetryAll does not retry deliveries that become dead letters again during the same call.
		recv.SetScript(step.Answer(404))
		if n, err := last(r.RetryAll(t.Context(), webhook.Query{Reason: webhook.ReasonRefused, Destinations: []string{"crm"}, Type: "track"})); n != 597 || err != nil {
			t.Errorf("RetryAll yields %d, %v last; want 597", n, err)
		}
		time.Sleep(time.Second) // outcomes are stored together
		if n := len(r.dead()); n != 597 {
			t.Errorf("got %d dead letters, want 597", n)
		}
		time.Sleep(time.Second)
		if n, err := last(r.RetryAll(t.Context(), webhook.Query{Type: "page"})); n != 0 || err != nil {
			t.Errorf("RetryAll of another type yields %d, %v last; want 0", n, err)
		}
		if n, err := last(r.DiscardAll(t.Context(), webhook.Query{})); n != 597 || err != nil {
			t.Errorf("DiscardAll yields %d, %v last; want 597", n, err)
		}
		if c := r.counts(); c != (store.Counts{}) {
			t.Errorf("the store has %+v, want nothing", c)
		}
	})
}

func TestSecretsStayOutOfLogsAndRecords(t *testing.T) {
	for _, answer := range []step.Step{
		step.Answer(503), step.Answer(404), step.Hang(), step.Reset(), step.Garbage(),
		step.Refuse(), step.NoSuchHost(), step.EndlessHeader(), step.Redirect(302, "/x"),
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			seen := watch(r)
			r.network.Receiver(hook, "shh", answer)
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
				t.Fatalf("got the failed attempts %v and the log %q, want both non-empty", as, log.String())
			}
			if all := fmt.Sprint(as, log.String()); strings.Contains(all, "hunter2") {
				t.Errorf("attempts or log have the secret: %s", all)
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
				t.Errorf("Forward(%s) = %v, want nil", j, err)
			}
		}
		synctest.Wait()
		if s := r.Stats(); s.Off != 3 || s.Accepted != 1 || s.Duplicates != 1 || s.Delivered != 1 {
			t.Errorf("Stats() = %+v, want 3 off, and 1 accepted, duplicate and delivered", s)
		}
		if reqs := recv.Requests(); len(reqs) != 1 || reqs[0].JSON["messageId"] != "3" {
			t.Errorf("got %d requests, want 1, with the messageId 3", len(reqs))
		}
	})
}
