package webhook_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

var update = flag.Bool("update", false, "rewrite golden files")

// batched returns a destination "crm" with batches.
func batched(b webhook.Batch) webhook.Destination {
	return webhook.Destination{
		ID: "crm", Endpoints: []webhook.Endpoint{{URL: hook}}, Secret: "shh", StandardSecrets: []signature.Secret{newSecret}, Batch: b,
	}
}

// tested returns an event with this id.
func tested(id string) event.Event {
	return testkit.Must(new(event.Encoder).Encode(&event.Custom{Type: "tested", ID: id, Data: map[string]any{"id": id}}))
}

// startBatches runs a forwarder with d, and delivers a first event, so that further ones come in batches.
func (r *rig) startBatches(d webhook.Destination, c webhook.Config) *webhooktest.Receiver {
	r.t.Helper()
	recv := r.network.Receiver(hook, "shh", step.Answer(204))
	c.Destinations = []webhook.Destination{d}
	r.start(c)
	r.send("first")
	_, err := recv.WaitEvents(r.t.Context(), 1)
	must(r.t, err)
	synctest.Wait()
	return recv
}

// send forwards custom events with these ids, in one call.
func (r *rig) send(ids ...string) {
	r.t.Helper()
	var events []event.Event
	for _, id := range ids {
		events = append(events, tested(id))
	}
	must(r.t, r.ForwardEvents(r.t.Context(), []string{"crm"}, events...))
}

// numbered returns the ids "e1" to "en".
func numbered(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint("e", i+1))
	}
	return ids
}

// batches returns the ids of the events in each request to r after the first, and the webhook-ids of
// the requests. It checks the requests.
func batches(t *testing.T, recv *webhooktest.Receiver) (batches [][]string, ids []string) {
	t.Helper()
	for _, q := range recv.Requests() {
		events, err := q.Events()
		must(t, err)
		if err := signature.VerifyStandard(q.Body, q.Header, 24*time.Hour, newSecret); err != nil || q.Signature != nil {
			t.Errorf("request %d: the signatures have the errors %v and %v, want none", q.Number, err, q.Signature)
		}
		var in []string
		for _, e := range events {
			in = append(in, e.ID)
		}
		id := q.Header.Get("webhook-id")
		sum := sha256.Sum256([]byte(strings.Join(in, "\n") + "\n"))
		if want := base64.RawURLEncoding.EncodeToString(sum[:18]); id != want {
			t.Errorf("request %d has the webhook-id %s, want %s", q.Number, id, want)
		}
		batches, ids = append(batches, in), append(ids, id)
	}
	if len(batches) == 0 {
		return nil, nil
	}
	return batches[1:], ids[1:]
}

// A receiver's answers to requests with several events, and what becomes of the events.
func TestOutcomesOfABatch(t *testing.T) {
	refuse := func(status int, bad ...string) step.Step {
		return webhooktest.Do(func(q *webhooktest.Request) step.Step {
			for _, id := range bad {
				if bytes.Contains(q.Body, []byte(`"`+id+`"`)) {
					return step.Answer(status)
				}
			}
			return step.Answer(204)
		})
	}
	atMost := func(n int) step.Step {
		return webhooktest.Do(func(q *webhooktest.Request) step.Step {
			if events, _ := q.Events(); len(events) > n {
				return step.Answer(413)
			}
			return step.Answer(204)
		})
	}
	for _, tt := range []struct {
		name   string
		script []step.Step
		events int
		want   [][]string // nil: see requests
		count  int        // of the requests
		dead   []string

		retries *webhook.Retries
	}{
		{name: "delivered", script: []step.Step{step.Answer(204)}, events: 3, want: [][]string{{"e1", "e2", "e3"}}},
		{name: "more than a batch", script: []step.Step{step.Answer(204)}, events: 12, want: [][]string{numbered(10), {"e11", "e12"}}},
		{name: "one refused", script: []step.Step{refuse(422, "e5")}, events: 8, dead: []string{"e5"},
			want: [][]string{numbered(8), {"e1", "e2", "e3", "e4"}, {"e5", "e6", "e7", "e8"}, {"e5", "e6"}, {"e7", "e8"}, {"e5"}, {"e6"}}},
		{name: "all refused", script: []step.Step{step.Answer(400)}, events: 10, count: 19, dead: numbered(10)},
		{name: "unauthorized", script: []step.Step{step.Answer(401)}, events: 10, dead: numbered(10), want: [][]string{numbered(10)}},
		{name: "forbidden", script: []step.Step{step.Answer(403)}, events: 10, dead: numbered(10), want: [][]string{numbered(10)}},
		{name: "not found", script: []step.Step{step.Answer(404)}, events: 10, dead: numbered(10), want: [][]string{numbered(10)}},
		{name: "not found, and repeated by Retries", script: []step.Step{step.Answer(404), step.Answer(204)}, events: 10,
			retries: &webhook.Retries{Statuses: []string{"4xx"}}, want: [][]string{numbered(10), numbered(10)}},
		{name: "too large", script: []step.Step{atMost(3)}, events: 10,
			want: [][]string{numbered(10), numbered(5), {"e6", "e7", "e8", "e9", "e10"}, {"e1", "e2", "e3"}, {"e4", "e5"}, {"e6", "e7", "e8"}, {"e9", "e10"}}},
		{name: "too large alone", script: []step.Step{refuse(413, "e2")}, events: 2, dead: []string{"e2"}, want: [][]string{{"e1", "e2"}, {"e1"}, {"e2"}}},
		{name: "gone", script: []step.Step{refuse(410, "e1")}, events: 2, dead: []string{"e1", "e2"}, want: [][]string{{"e1", "e2"}}},
		{name: "refused, and repeated by Retries", script: []step.Step{refuse(400, "e1")}, events: 2, retries: &webhook.Retries{Statuses: []string{"4xx"}},
			count: -1, dead: []string{"e1"}},
		{name: "not by a 4xx", script: []step.Step{step.Redirect(302, "/")}, events: 4, dead: []string{"e1", "e2", "e3", "e4"}, want: [][]string{{"e1", "e2", "e3", "e4"}}},
		{name: "refused and then failing", script: []step.Step{step.Answer(400), step.Answer(503), step.Answer(204)}, events: 4,
			want: [][]string{{"e1", "e2", "e3", "e4"}, {"e1", "e2"}, {"e3", "e4"}, {"e1", "e2"}}},
		{name: "failing", script: []step.Step{step.Answer(503), step.Hang(), step.Refuse(), step.Close(), step.Answer(200)}, events: 2,
			want: [][]string{{"e1", "e2"}, {"e1", "e2"}, {"e1", "e2"}, {"e1", "e2"}}},
		{name: "failing for good", script: []step.Step{step.Answer(500)}, events: 3, count: -1, dead: []string{"e1", "e2", "e3"}},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			// One slot, so that the order of the requests is known.
			d := batched(webhook.Batch{MaxEvents: 10})
			d.MaxConcurrent = 1
			recv := r.startBatches(d, webhook.Config{Retries: tt.retries})
			recv.SetScript(tt.script...)
			r.send(numbered(tt.events)...)
			time.Sleep(5 * time.Hour)
			synctest.Wait()
			got, _ := batches(t, recv)
			if diff := cmp.Diff(tt.want, got); tt.want != nil && diff != "" {
				t.Errorf("%s: events of the requests (-want +got):\n%s", tt.name, diff)
			}
			if tt.count > 0 && len(got) != tt.count {
				t.Errorf("%s: got %d requests, want %d", tt.name, len(got), tt.count)
			}
			if c := r.counts(); c.Waiting != 0 || c.Dead != len(tt.dead) {
				t.Errorf("%s: the store has %+v, want none waiting and %d dead", tt.name, c, len(tt.dead))
			}
			var dead []string
			for _, d := range r.dead() {
				dead = append(dead, d.ID)
			}
			slices.Sort(dead)
			want := slices.Sorted(slices.Values(tt.dead))
			if diff := cmp.Diff(want, dead); diff != "" {
				t.Errorf("%s: dead letters (-want +got):\n%s", tt.name, diff)
			}
			if s := r.Stats(); s.Delivered != int64(1+tt.events-len(tt.dead)) || s.Latency.Requests < int64(len(got)) {
				t.Errorf("%s: Stats() = %+v, want %d delivered by %d requests", tt.name, s, 1+tt.events-len(tt.dead), len(got)+1)
			}
		})
	}
}

// The deliveries of a failed batch are attempted together, although others are due, as soon as its
// Retry-After allows, and the batch has the same webhook-id.
func TestAFailedBatchStaysTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.startBatches(batched(webhook.Batch{MaxEvents: 4}), webhook.Config{})
		recv.SetScript(step.Answer(429).With("Retry-After", "60"), step.Answer(204))
		begin := time.Now()
		r.send("b", "a")
		time.Sleep(59 * time.Second)
		r.send("c")
		time.Sleep(time.Minute)
		got, ids := batches(t, recv)
		if diff := cmp.Diff([][]string{{"b", "a"}, {"c"}, {"b", "a"}}, got); diff != "" {
			t.Fatalf("events of the requests (-want +got):\n%s", diff)
		}
		if ids[0] != ids[2] {
			t.Errorf("the batch has the webhook-ids %s and %s, want one", ids[0], ids[2])
		}
		if at := recv.Requests()[3].Time.Sub(begin); at < time.Minute || at > 61*time.Second {
			t.Errorf("the batch comes again after %v, want 1m0s by Retry-After", at)
		}
	})
}

// A destination that fails gets batches, too: as probes, as retries, after it is mended, and when
// its dead letters are replayed.
func TestBatchesOfADestinationThatFails(t *testing.T) {
	const events, most = 1000, 100
	for _, tt := range []struct {
		name   string
		answer step.Step
		wait   time.Duration // until the destination is mended
		replay bool

		divides bool // the answer divides the batches
	}{
		{name: "an outage", answer: step.Answer(500), wait: 30 * time.Minute},
		{name: "a replay after the retry window", answer: step.Answer(500), wait: 10 * time.Hour, replay: true},
		{name: "a replay after a refusal", answer: step.Answer(401), wait: time.Minute, replay: true},
		{name: "a replay after a division", answer: step.Answer(400), wait: time.Minute, replay: true, divides: true},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.startBatches(batched(webhook.Batch{MaxEvents: most, MaxWait: time.Second}), webhook.Config{})
			recv.SetScript(tt.answer)
			for _, id := range numbered(events) {
				r.send(id)
			}
			time.Sleep(tt.wait)
			failed, _ := batches(t, recv)
			recv.SetScript(step.Answer(204))
			if tt.replay {
				for _, err := range r.RetryAll(t.Context(), webhook.Query{}) {
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			time.Sleep(11 * time.Minute)
			synctest.Wait()
			all, _ := batches(t, recv)
			if c := r.counts(); c.Waiting != 0 || c.Dead != 0 {
				t.Errorf("%s: the store has %+v after it is mended, want nothing", tt.name, c)
			}
			for begin, part := range map[int][][]string{0: failed, len(failed): all[len(failed):]} {
				n := 0
				for _, b := range part {
					n += len(b)
				}
				if tt.divides && begin == 0 {
					continue
				}
				if n < events || 2*n < most*len(part) {
					t.Errorf("%s: requests from %d on: %d events in %d requests, want at least half full ones", tt.name, begin, n, len(part))
				}
			}
		})
	}
}

// A batch that is not full waits for MaxWait, and one that is full does not.
func TestABatchWaitsForMore(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.startBatches(batched(webhook.Batch{MaxEvents: 3, MaxWait: 2 * time.Second}), webhook.Config{})
		begin := time.Now()
		r.send("e1")
		time.Sleep(time.Second)
		r.send("e2")
		if n := len(recv.Requests()); n != 1 {
			t.Errorf("got %d requests, want that 2 of 3 events wait", n-1)
		}
		time.Sleep(1500 * time.Millisecond)
		r.send("e3", "e4", "e5", "e6")
		time.Sleep(time.Minute)
		got, _ := batches(t, recv)
		if diff := cmp.Diff([][]string{{"e1", "e2"}, {"e3", "e4", "e5"}, {"e6"}}, got); diff != "" {
			t.Errorf("events of the requests (-want +got):\n%s", diff)
		}
		var at []time.Duration
		for _, q := range recv.Requests()[1:] {
			at = append(at, q.Time.Sub(begin).Truncate(time.Second))
		}
		if diff := cmp.Diff([]time.Duration{2 * time.Second, 2 * time.Second, 4 * time.Second}, at); diff != "" {
			t.Errorf("times of the requests (-want +got):\n%s", diff)
		}
	})
}

// A stop sends what waits for a full batch, without waiting for more. What fails meanwhile, or does
// not wait for a batch, stays in the store for the next start.
func TestAStopSendsWhatWaitsForABatch(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const wait = 5 * time.Second
		recv := r.startBatches(batched(webhook.Batch{MaxEvents: 3, MaxWait: wait}), webhook.Config{})
		r.send("e1", "e2")
		time.Sleep(wait / 2) // by now they are late
		begin := time.Now()
		r.stop()
		if took := time.Since(begin); took != 0 {
			t.Errorf("the stop took %v, want no wait", took)
		}
		got, _ := batches(t, recv)
		if diff := cmp.Diff([][]string{{"e1", "e2"}}, got); diff != "" {
			t.Errorf("events of the requests (-want +got):\n%s", diff)
		}

		recv.SetScript(step.Answer(503))
		r.start(r.config)
		synctest.Wait()
		r.send("e3", "e4")
		time.Sleep(wait)
		r.send("e5")
		r.stop() // e3 and e4 are retried later, or wait for it
		if c := r.counts(); c.Waiting != 3 || c.Claimed != 0 || c.Dead != 0 {
			t.Errorf("the store has %+v after a stop with failures, want 3 waiting", c)
		}
		recv.SetScript(step.Answer(204))
		r.start(r.config)
		time.Sleep(time.Minute)
		if c := r.counts(); c != (store.Counts{}) {
			t.Errorf("the store has %+v, want nothing", c)
		}
	})
}

// A stop with more destinations that wait for batches than slots sends as many as there are slots.
func TestAStopSendsAsManyBatchesAsThereAreSlots(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const slots, all = 8, 40
		recv := r.network.Receiver(hook, "shh", step.Answer(204))
		c := webhook.Config{MaxInFlight: slots}
		var ids []string
		for i := range all {
			d := batched(webhook.Batch{MaxEvents: 3, MaxWait: 10 * time.Second})
			d.ID = fmt.Sprint("d", i)
			ids, c.Destinations = append(ids, d.ID), append(c.Destinations, d)
		}
		r.start(c)
		must(t, r.ForwardEvents(t.Context(), ids, tested("first"))) // makes the lanes known
		time.Sleep(time.Second)
		before := len(recv.Requests())
		must(t, r.ForwardEvents(t.Context(), ids, tested("e1"), tested("e2")))
		synctest.Wait()
		r.stop()
		sent := len(recv.Requests()) - before
		if c := r.counts(); sent < slots || sent > 2*slots || c.Waiting != 2*(all-sent) || c.Claimed != 0 {
			t.Errorf("the stop sent %d batches, and the store has %+v, want %d to %d of %d, and the others waiting", sent, c, slots, 2*slots, all)
		}
		r.start(r.config)
		time.Sleep(time.Minute)
		if c := r.counts(); c != (store.Counts{}) {
			t.Errorf("the store has %+v after the next start, want nothing", c)
		}
	})
}

// A request has at most MaxBytes, and a larger event has a request of its own.
func TestABatchIsBoundedInBytes(t *testing.T) {
	size := len(`{"id":"e1","event":},`) + len(tested("e1").Body)
	for _, tt := range []struct{ bytes, want int }{{3*size + 1, 3}, {3 * size, 2}, {size + 1, 1}, {size, 1}} {
		inBubble(t, func(t *testing.T, r *rig) {
			recv := r.startBatches(batched(webhook.Batch{MaxEvents: 9, MaxBytes: tt.bytes}), webhook.Config{})
			r.send(numbered(6)...)
			time.Sleep(time.Second)
			got, _ := batches(t, recv)
			for i, in := range got {
				if len(in) != tt.want || tt.want > 1 && len(recv.Requests()[i+1].Body) > tt.bytes {
					t.Errorf("MaxBytes %d: a request has the events %q, want %d", tt.bytes, in, tt.want)
				}
			}
			if len(got)*tt.want != 6 {
				t.Errorf("MaxBytes %d: 6 events in %d requests", tt.bytes, len(got))
			}
		})
	}
}

// MaxRate and MaxConcurrent count requests.
func TestLimitsCountBatches(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		d := batched(webhook.Batch{MaxEvents: 10})
		d.MaxRate, d.MaxBurst = 1, 1
		recv := r.startBatches(d, webhook.Config{})
		begin := time.Now()
		r.send(numbered(30)...)
		_, err := recv.WaitEvents(t.Context(), 31)
		must(t, err)
		got, _ := batches(t, recv)
		if took := time.Since(begin); len(got) != 3 || took != 3*time.Second {
			t.Errorf("30 events by %d requests in %v, want 3 in 3s", len(got), took)
		}
	})
	inBubble(t, func(t *testing.T, r *rig) {
		d := batched(webhook.Batch{MaxEvents: 10})
		d.MaxConcurrent = 2
		recv := r.startBatches(d, webhook.Config{})
		recv.SetScript(step.Answer(204).After(time.Second))
		r.send(numbered(40)...)
		time.Sleep(time.Millisecond)
		if n := len(recv.Requests()) - 1; n != 2 || r.Stats().InFlight != 2 {
			t.Errorf("%d requests and %d in flight, want 2", n, r.Stats().InFlight)
		}
		time.Sleep(2 * time.Second)
		if n := len(recv.Requests()) - 1; n != 4 {
			t.Errorf("40 events came in %d requests, want 4", n)
		}
	})
}

// Observers are told of a request once, with all its deliveries, and of the end of each delivery. A
// dead letter keeps the attempts, which say the batch.
func TestAnObserverSeesABatch(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		var mu sync.Mutex
		var seen []string
		see := attempts(func(a webhook.Attempted) {
			mu.Lock()
			defer mu.Unlock()
			line := fmt.Sprint(a.Outcome, " try ", a.Try, " again ", !a.Due.IsZero())
			for _, d := range a.Batch {
				line += " " + d.ID
			}
			seen = append(seen, line)
		})
		d := batched(webhook.Batch{MaxEvents: 10})
		d.MaxConcurrent = 1
		recv := r.startBatches(d, webhook.Config{Observers: []webhook.Observer{see}})
		recv.SetScript(step.Answer(503), step.Answer(400), step.Answer(400).WithBody("no e1"), step.Answer(204))
		r.send("e1", "e2")
		time.Sleep(time.Minute)
		want := []string{
			"delivered try 1 again false first",
			"retryable try 1 again true e1 e2", "permanent try 2 again true e1 e2", "permanent try 2 again false e1", "delivered try 2 again false e2",
		}
		mu.Lock()
		defer mu.Unlock()
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Errorf("requests that the observer saw (-want +got):\n%s", diff)
		}
		_, ids := batches(t, recv)
		var kept []string
		for _, d := range r.dead() {
			for _, a := range d.Attempts {
				kept = append(kept, fmt.Sprint(a.Try, a.Status, a.Answer, a.Batch))
			}
			if d.Tries != 2 {
				t.Errorf("the dead letter has %d tries, want 2", d.Tries)
			}
		}
		want = []string{fmt.Sprint(1, 503, "", ids[0]), fmt.Sprint(2, 400, "", ids[0]), fmt.Sprint(2, 400, "no e1", ids[2])}
		if diff := cmp.Diff(want, kept); diff != "" {
			t.Errorf("attempts of the dead letter (-want +got):\n%s", diff)
		}
	})
}

// A pause between the two halves of a refused batch, and a stop that cuts off a request, lose nothing.
func TestAnInterruptedBatchWaitsInTheStore(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		d := batched(webhook.Batch{MaxEvents: 10})
		d.MaxConcurrent = 1
		recv := r.startBatches(d, webhook.Config{})
		recv.SetScript(step.Answer(400), step.Answer(204).After(2*time.Second))
		r.send(numbered(4)...)
		time.Sleep(time.Second)
		must(t, r.Pause(t.Context(), "crm"))
		time.Sleep(time.Minute)
		if c := r.counts(); c.Waiting != 2 || c.Claimed != 0 {
			t.Errorf("the store has %+v during the pause, want 2 waiting", c)
		}
		recv.SetScript(step.Hang())
		must(t, r.Resume(t.Context(), "crm"))
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Shutdown(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Shutdown = %v, want that it cuts off the request", err)
		}
		r.stop()
		if c := r.counts(); c.Waiting != 2 || c.Claimed != 0 {
			t.Errorf("the store has %+v after the stop, want 2 waiting", c)
		}
		recv.SetScript(step.Answer(204))
		r.start(r.config)
		time.Sleep(10 * time.Second)
		if c := r.counts(); c != (store.Counts{}) {
			t.Errorf("the store has %+v, want nothing", c)
		}
	})
}

// Settings that change while batches wait apply to the next request.
func TestBatchesAreSwitchedOff(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		d := batched(webhook.Batch{MaxEvents: 10})
		d.MaxConcurrent = 1
		var mu sync.Mutex
		recv := r.network.Receiver(hook, "shh", step.Answer(204))
		r.start(webhook.Config{Directory: lookup(func(context.Context, string) (*webhook.Destination, error) {
			mu.Lock()
			defer mu.Unlock()
			return new(d), nil
		})})
		r.send("first")
		_, err := recv.Wait(t.Context(), 1)
		must(t, err)
		recv.SetScript(step.Answer(204).After(time.Second))
		r.send(numbered(25)...)
		time.Sleep(time.Millisecond)
		mu.Lock()
		d.Batch = webhook.Batch{}
		mu.Unlock()
		time.Sleep(time.Hour)
		requests := recv.Requests()
		if n := len(requests); n != 1+1+15 {
			t.Errorf("got %d requests, want 1 of 10 events after the first, and 15 of one", n)
		}
		for _, q := range requests[2:] {
			if q.JSON["type"] != "tested" {
				t.Errorf("request %d is %s, want an event alone", q.Number, q.Body)
			}
		}
	})
}

func TestValidateABatch(t *testing.T) {
	for _, tt := range []struct {
		name  string
		batch webhook.Batch
		urls  int
		field string // "": it is valid
	}{
		{"none", webhook.Batch{}, 2, ""},
		{"the least", webhook.Batch{MaxEvents: 1, MaxBytes: 1, MaxWait: 1}, 1, ""},
		{"the most", webhook.Batch{MaxEvents: 1000, MaxBytes: 1 << 20, MaxWait: 10 * time.Second}, 1, ""},
		{"two endpoints", webhook.Batch{MaxEvents: 2}, 2, "Batch"},
		{"without events", webhook.Batch{MaxWait: time.Second}, 1, "Batch.MaxEvents"},
		{"negative events", webhook.Batch{MaxEvents: -1}, 1, "Batch.MaxEvents"},
		{"too many events", webhook.Batch{MaxEvents: 1001}, 1, "Batch.MaxEvents"},
		{"too many bytes", webhook.Batch{MaxEvents: 2, MaxBytes: 1<<20 + 1}, 1, "Batch.MaxBytes"},
		{"negative bytes", webhook.Batch{MaxEvents: 2, MaxBytes: -1}, 1, "Batch.MaxBytes"},
		{"too long a wait", webhook.Batch{MaxEvents: 2, MaxWait: 10*time.Second + 1}, 1, "Batch.MaxWait"},
		{"a negative wait", webhook.Batch{MaxEvents: 2, MaxWait: -1}, 1, "Batch.MaxWait"},
	} {
		d := batched(tt.batch)
		for i := range tt.urls - 1 {
			d.Endpoints = append(d.Endpoints, webhook.Endpoint{URL: fmt.Sprint("http://other.example/", i)})
		}
		err := d.Validate()
		var wrong *webhook.ConfigError
		if errors.As(err, &wrong) != (tt.field != "") || wrong != nil && wrong.Field != tt.field {
			t.Errorf("%s: Validate() = %v, want it to refuse %q", tt.name, err, tt.field)
		}
	}
}

// wire is a request with a batch: its header and its body, as they are sent.
func wire(t *testing.T) (header http.Header, body []byte) {
	t.Helper()
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.startBatches(batched(webhook.Batch{MaxEvents: 10}), webhook.Config{})
		var events []event.Event
		for _, id := range []string{"plain", `"quoted\"`, "1.5 %", "ä\u2028"} {
			data := map[string]any{"10": "ä\u2028", "2": `<\>`}
			events = append(events, testkit.Must(new(event.Encoder).Encode(&event.Custom{Type: "tested", ID: id, Data: data})))
		}
		ctx := event.ContextWithTrace(t.Context(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "")
		must(t, r.ForwardEvents(ctx, []string{"crm"}, events...))
		requests, err := recv.Wait(t.Context(), 2)
		must(t, err)
		header, body = requests[1].Header, requests[1].Body
	})
	return header, body
}

// The golden file has a request with a batch, without its times.
func TestWireFormOfABatch(t *testing.T) {
	const golden = "testdata/batch.golden"
	header, body := wire(t)
	header.Del("webhook-timestamp")
	header.Del("webhook-signature")
	var got bytes.Buffer
	must(t, header.Write(&got))
	got = *bytes.NewBuffer(bytes.ReplaceAll(got.Bytes(), []byte{'\r'}, nil))
	got.Write(append(body, '\n'))
	if *update {
		must(t, os.WriteFile(golden, got.Bytes(), 0o644))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

// Node parses the body, and makes the same body, signatures and webhook-id of what it has parsed.
func TestNodeReadsABatch(t *testing.T) {
	node := testkit.Program(t, "node", "apt-get install nodejs, or https://nodejs.org")
	const program = `
const { createHash, createHmac } = require('node:crypto')
const [id, time] = process.argv.slice(1)
const body = require('node:fs').readFileSync(0)
const events = JSON.parse(body)
const again = JSON.stringify(events)
const digest = createHash('sha256').update(events.map((e) => e.id + '\n').join('')).digest()
const key = Buffer.from('` + newSecret + `'.slice('whsec_'.length), 'base64')
console.log(again)
console.log(digest.subarray(0, 18).toString('base64url'))
console.log(createHmac('sha1', 'shh').update(again).digest('hex'))
console.log('v1,' + createHmac('sha256', key).update(id + '.' + time + '.' + again).digest('base64'))
`
	header, body := wire(t)
	cmd := exec.Command(node, "-e", program, header.Get("webhook-id"), header.Get("webhook-timestamp"))
	cmd.Stdin = bytes.NewReader(body)
	got, err := cmd.Output()
	must(t, err)
	want := []string{string(body), header.Get("webhook-id"), header.Get("X-Signature"), header.Get("webhook-signature"), ""}
	if diff := cmp.Diff(want, strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("what Node makes of a batch (-want +got):\n%s", diff)
	}
}
