package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// keyed returns events with the ids "key-1" to "key-n" for each of the keys, in turn.
func keyed(n int, keys ...string) (events []event.Event) {
	for i := range n {
		for _, key := range keys {
			c := &event.Custom{Type: "tested", ID: fmt.Sprint(key, "-", i+1), Key: key, Data: map[string]any{"i": i}}
			events = append(events, testkit.Must(new(event.Encoder).Encode(c)))
		}
	}
	return events
}

// idsOf returns the ids "key-1" to "key-n".
func idsOf(key string, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint(key, "-", i+1))
	}
	return ids
}

// A ledger checks the requests of deliveries with a Key as they come: no two with one key are in flight
// at once, and an id comes again only before the next id of its key.
type ledger struct {
	mu   sync.Mutex // guards the fields below
	busy map[string]bool
	seen map[string][]string // by key, the ids in the order of their first requests
	bad  []string
}

// begin records a request, and returns what ends it.
func (l *ledger) begin(id string) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key, _, _ := strings.Cut(id, "-")
	if l.busy == nil {
		l.busy, l.seen = make(map[string]bool), make(map[string][]string)
	}
	if key == "" {
		return func() {}
	}
	if l.busy[key] {
		l.bad = append(l.bad, id+" came while another request with its key was in flight")
	}
	l.busy[key] = true
	switch seen := l.seen[key]; {
	case !slices.Contains(seen, id):
		l.seen[key] = append(seen, id)
	case seen[len(seen)-1] != id:
		l.bad = append(l.bad, id+" came again after "+seen[len(seen)-1])
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.busy[key] = false
	}
}

// check fails the test if the order was not kept, or if the ids of a key are not "key-1" to "key-n".
func (l *ledger) check(t *testing.T, n int, keys ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, text := range l.bad {
		t.Error(text)
	}
	for _, key := range keys {
		if diff := cmp.Diff(idsOf(key, n), l.seen[key]); diff != "" {
			t.Errorf("first requests with the key %q (-want +got)\n%s", key, diff)
		}
	}
}

// receiver returns a receiver that records its requests in l. It answers each after a while with what
// answer returns.
func (l *ledger) receiver(r *rig, answer func(id string, times int) step.Step) {
	times := make(map[string]int)
	r.network.Receiver(hook, "", webhooktest.Do(func(q *webhooktest.Request) step.Step {
		id := q.Header.Get("webhook-id")
		defer l.begin(id)()
		time.Sleep(10 * time.Millisecond)
		l.mu.Lock()
		defer l.mu.Unlock()
		times[id]++
		return answer(id, times[id])
	}))
}

// isThird reports whether the number in an id is a multiple of three.
func isThird(id string) bool {
	_, n, _ := strings.Cut(id, "-")
	return testkit.Must(strconv.Atoi(n))%3 == 0
}

// Whatever a destination answers, the deliveries with one Key come one after the other, and what fails
// delays its own key alone.
func TestKeysKeepOrder(t *testing.T) {
	const n, later = 10, 5
	for _, tt := range []struct {
		name   string
		answer func(id string, times int) step.Step
		change func(d *webhook.Destination)
		dead   int // of each key
	}{
		{name: "delivered"},
		{name: "retried", answer: func(id string, times int) step.Step {
			if isThird(id) && times < 3 {
				return step.Answer(503)
			}
			return step.Answer(204)
		}},
		{name: "Retry-After", answer: func(id string, times int) step.Step {
			if isThird(id) && times == 1 {
				return step.Answer(429).With("Retry-After", "600")
			}
			return step.Answer(204)
		}},
		{name: "refused", dead: (n + later) / 3, answer: func(id string, _ int) step.Step {
			if isThird(id) {
				return step.Answer(404)
			}
			return step.Answer(204)
		}},
		{name: "cut off", answer: func(id string, times int) step.Step {
			if isThird(id) && times == 1 {
				return step.Reset()
			}
			return step.Answer(204)
		}},
		{name: "one slot", change: func(d *webhook.Destination) { d.MaxConcurrent = 1 }},
		{name: "rate", change: func(d *webhook.Destination) { d.MaxRate = 5 }},
		{name: "Transform", change: func(d *webhook.Destination) {
			d.Transform = func(_ context.Context, e event.Event) (event.Event, error) {
				e.Body = []byte(`{"changed":true}`)
				return e, nil
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				var l ledger
				if tt.answer == nil {
					tt.answer = func(string, int) step.Step { return step.Answer(204) }
				}
				l.receiver(r, tt.answer)
				d := keyedCRM()
				if tt.change != nil {
					tt.change(&d)
				}
				r.start(webhook.Config{Destinations: []webhook.Destination{d}})
				keys := []string{"a", "b", "c", ""}
				events := keyed(n+later, keys...)
				must(t, r.ForwardEvents(t.Context(), []string{"crm"}, events[:n*len(keys)]...))
				time.Sleep(50 * time.Millisecond) // some are delivered, some in flight, and others behind
				for _, e := range events[n*len(keys):] {
					must(t, r.ForwardEvents(t.Context(), []string{"crm"}, e))
				}
				must(t, r.ForwardEvents(t.Context(), []string{"crm"}, events...)) // they are left out
				time.Sleep(4 * time.Hour)
				l.check(t, n+later, keys[:3]...)
				if got, want := r.counts(), (webhook.Counts{Dead: tt.dead * len(keys)}); got != want {
					t.Errorf("the store has %+v, want %+v", got, want)
				}
			})
		})
	}
}

// keyedCRM returns a destination whose requests name their delivery.
func keyedCRM() webhook.Destination {
	return webhook.Destination{ID: "crm", Endpoints: []webhook.Endpoint{{URL: hook}}, StandardSecrets: []signature.Secret{newSecret}}
}

// The next delivery with a Key starts when all requests of the one before it have ended, although one of
// its endpoints took it long before.
func TestKeyWaitsForTheLastRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		const slow = "http://slow.example/hook"
		quick := r.network.Receiver(hook, "")
		r.network.Receiver(slow, "", step.Answer(204).After(3*time.Second))
		d := keyedCRM()
		d.Endpoints = append(d.Endpoints, webhook.Endpoint{URL: slow})
		r.start(webhook.Config{Destinations: []webhook.Destination{d}})
		must(t, r.ForwardEvents(t.Context(), []string{"crm"}, keyed(3, "a", "")...))
		reqs, err := quick.Wait(t.Context(), 6)
		must(t, err)
		at := make(map[string]time.Duration)
		for _, q := range reqs {
			at[q.Header.Get("webhook-id")] = q.Time.Sub(reqs[0].Time).Round(time.Second)
		}
		want := map[string]time.Duration{"a-2": 3 * time.Second, "a-3": 6 * time.Second, "a-1": 0, "-1": 0, "-2": 0, "-3": 0}
		if diff := cmp.Diff(want, at); diff != "" {
			t.Errorf("when the requests came (-want +got)\n%s", diff)
		}
	})
}

// A doubtful store makes each settlement, but says at first that it has failed.
type doubtful struct {
	webhook.Store
	failed bool
}

func (q *doubtful) Settle(ctx context.Context, ss []store.Settlement) (int, error) {
	n, err := q.Store.Settle(ctx, ss)
	if q.failed = !q.failed; q.failed {
		return 0, errors.New("the answer of the store is lost")
	}
	return n, err
}

func TestKeyGoesOnAfterASettlementInDoubt(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.queue = &doubtful{Store: r.queue}
		var l ledger
		l.receiver(r, func(string, int) step.Step { return step.Answer(204) })
		r.start(webhook.Config{Destinations: []webhook.Destination{keyedCRM()}})
		must(t, r.ForwardEvents(t.Context(), []string{"crm"}, keyed(5, "a")...))
		time.Sleep(time.Minute)
		l.check(t, 5, "a")
	})
}

// Behind a delivery that lapses, what has waited for a window lapses at once, whether the destination
// fails for all keys, so that it is probed, or for one.
func TestKeysLapseTogether(t *testing.T) {
	const n, window = 100, time.Hour
	for _, fails := range []string{"abc", "a"} {
		t.Run(fails, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				var l ledger
				l.receiver(r, func(id string, _ int) step.Step {
					if strings.Contains(fails, id[:1]) {
						return step.Answer(503)
					}
					return step.Answer(204)
				})
				r.start(webhook.Config{Destinations: []webhook.Destination{keyedCRM()}, Window: window})
				events := keyed(n, "a", "b", "c")
				half := len(events) / 2
				must(t, r.ForwardEvents(t.Context(), []string{"crm"}, events[:half]...))
				time.Sleep(window / 2)
				must(t, r.ForwardEvents(t.Context(), []string{"crm"}, events[half:]...))
				time.Sleep(window/2 - time.Minute)
				if got, want := r.counts(), (webhook.Counts{Waiting: len(fails) * n, Behind: len(fails) * (n - 1)}); got != want {
					t.Errorf("before the end of the window the store has %+v, want %+v", got, want)
				}
				time.Sleep(2 * time.Minute)
				if got, want := r.counts(), (webhook.Counts{Waiting: len(fails) * n / 2, Behind: len(fails) * (n/2 - 1), Dead: len(fails) * n / 2}); got != want {
					t.Errorf("after the first window the store has %+v, want %+v", got, want)
				}
				time.Sleep(window)
				if got, want := r.counts(), (webhook.Counts{Dead: len(fails) * n}); got != want {
					t.Errorf("after another window the store has %+v, want %+v", got, want)
				}
				l.check(t, 1)
				for _, d := range r.dead() {
					if d.Reason != webhook.ReasonExpired {
						t.Errorf("%s is dead with the reason %q, want %q", d.ID, d.Reason, webhook.ReasonExpired)
					}
				}
			})
		})
	}
}

// RetryAll keeps the order of a key, and puts it behind what waits. DiscardAll of what waits lets nothing
// of a key slip through.
func TestRetryAllKeepsOrder(t *testing.T) {
	const n = 600 // several pages
	inBubble(t, func(t *testing.T, r *rig) {
		var l, again ledger
		refuse := true
		r.network.Receiver(hook, "", webhooktest.Do(func(q *webhooktest.Request) step.Step {
			id := q.Header.Get("webhook-id")
			if refuse {
				defer l.begin(id)()
				return step.Answer(404)
			}
			defer again.begin(id)()
			return step.Answer(503)
		}))
		r.start(webhook.Config{Destinations: []webhook.Destination{keyedCRM()}})
		must(t, r.ForwardEvents(t.Context(), []string{"crm"}, keyed(n, "a")...))
		time.Sleep(time.Minute)
		l.check(t, n, "a")
		refuse = false
		if got, err := last(r.RetryAll(t.Context(), webhook.Query{})); got != n || err != nil {
			t.Fatalf("RetryAll retries %d, %v; want %d", got, err, n)
		}
		time.Sleep(time.Minute)
		for i, d := range collect(t, r.Deliveries(t.Context(), webhook.Query{Oldest: true})) {
			if want := fmt.Sprint("a-", i+1); d.ID != want {
				t.Fatalf("delivery %d after RetryAll is %s, want %s", i, d.ID, want)
			}
		}
		if got, err := last(r.DiscardAll(t.Context(), webhook.Query{States: []webhook.State{webhook.StateBehind, webhook.StateWaiting}})); got != n || err != nil {
			t.Fatalf("DiscardAll discards %d, %v; want %d", got, err, n)
		}
		again.check(t, 1, "a")
	})
}

// With OrderByUser, calls of one user come one after the other, and events with a Key keep theirs.
func TestOrderByUser(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "", step.Answer(503))
		byUser := keyedCRM()
		byUser.Order = webhook.OrderByUser
		r.start(webhook.Config{Destinations: []webhook.Destination{byUser, {ID: "other", Endpoints: []webhook.Endpoint{{URL: hook}}}}})
		var events []event.Event
		for _, c := range []event.Call{
			&analytics.Track{UserId: "u1", Event: "Tested"}, &analytics.Identify{UserId: "u1"}, &analytics.Page{UserId: "u2"},
			&analytics.Track{AnonymousId: "a1", Event: "Tested"}, &analytics.Alias{UserId: "u2", PreviousId: "u1"},
			&event.Custom{Type: "tested", User: "u1"}, &event.Custom{Type: "tested", User: "u2", Key: "u1"},
		} {
			events = append(events, testkit.Must(new(event.Encoder).Encode(c)))
		}
		events = append(events, testkit.Must(event.Delete("u2", time.Now())))
		must(t, r.ForwardEvents(t.Context(), []string{"crm", "other"}, events...))
		time.Sleep(time.Second / 2)
		var keys []string
		behind := make(map[string]int)
		for _, d := range collect(t, r.Deliveries(t.Context(), webhook.Query{Oldest: true})) {
			if d.Destination == "crm" {
				keys = append(keys, d.Key)
			}
			if d.State == webhook.StateBehind {
				behind[d.Destination+" "+d.Key]++
			}
		}
		if diff := cmp.Diff([]string{"u1", "u1", "u2", "", "u2", "", "u1", "u2"}, keys); diff != "" {
			t.Errorf("keys of crm (-want +got)\n%s", diff)
		}
		if diff := cmp.Diff(map[string]int{"crm u1": 2, "crm u2": 2}, behind); diff != "" {
			t.Errorf("deliveries that are behind others, by destination and key (-want +got)\n%s", diff)
		}
	})
}
