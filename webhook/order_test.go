package webhook_test

import (
	"context"
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

// Whatever a destination answers, the deliveries with one Key come one after the other, and a
// delivery that fails delays its own key alone.
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
				if got, want := r.counts(), (store.Counts{Dead: tt.dead * len(keys)}); got != want {
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

// A pause, batches, a destination that is disabled and a filter leave the order as it is.
func TestKeysKeepOrderThroughSettings(t *testing.T) {
	const n = 12
	t.Run("pause", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig) {
			var l ledger
			l.receiver(r, func(string, int) step.Step { return step.Answer(204) })
			r.start(webhook.Config{Destinations: []webhook.Destination{keyedCRM()}, Window: time.Hour})
			must(t, r.ForwardEvents(t.Context(), []string{"crm"}, keyed(n, "a", "b")...))
			time.Sleep(35 * time.Millisecond)
			must(t, r.Pause(t.Context(), "crm"))
			time.Sleep(2 * time.Hour)
			all, err := r.DestinationStats(t.Context())
			if err != nil || len(all) != 1 || all[0].Waiting == 0 || all[0].Behind != all[0].Waiting-2 {
				t.Errorf("DestinationStats() = %+v, %v; want all that waits behind two", all, err)
			}
			must(t, r.Resume(t.Context(), "crm"))
			time.Sleep(time.Minute)
			l.check(t, n, "a", "b")
			if got := r.counts(); got != (store.Counts{}) {
				t.Errorf("the store has %+v, want nothing", got)
			}
		})
	})
	t.Run("batches", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig) {
			d := batched(webhook.Batch{MaxEvents: 5, MaxWait: time.Second})
			recv := r.network.Receiver(hook, "shh", step.Answer(503), step.Answer(204), step.Answer(413), step.Answer(204))
			r.start(webhook.Config{Destinations: []webhook.Destination{d}})
			must(t, r.ForwardEvents(t.Context(), []string{"crm"}, keyed(n, "a", "b", "c")...))
			time.Sleep(time.Hour)
			seen := make(map[string][]string)
			for _, q := range recv.Requests() {
				in := make(map[string]bool)
				for _, e := range testkit.Must(q.Events()) {
					key, _, _ := strings.Cut(e.ID, "-")
					if in[key] {
						t.Errorf("request %d has two events with the key %s", q.Number, key)
					}
					in[key] = true
					if !slices.Contains(seen[key], e.ID) {
						seen[key] = append(seen[key], e.ID)
					} else if seen[key][len(seen[key])-1] != e.ID {
						t.Errorf("request %d has %s again, after %v", q.Number, e.ID, seen[key])
					}
				}
			}
			want := map[string][]string{"a": idsOf("a", n), "b": idsOf("b", n), "c": idsOf("c", n)}
			if diff := cmp.Diff(want, seen); diff != "" {
				t.Errorf("first requests by key (-want +got)\n%s", diff)
			}
			if got := r.counts(); got != (store.Counts{}) {
				t.Errorf("the store has %+v, want nothing", got)
			}
		})
	})
	t.Run("disabled and buried", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig) {
			r.network.Receiver(hook, "", step.Answer(410))
			r.start(webhook.Config{Destinations: []webhook.Destination{keyedCRM()}, DisableGone: true, BuryDisabled: true})
			must(t, r.ForwardEvents(t.Context(), []string{"crm"}, keyed(n, "a", "b")...))
			time.Sleep(time.Minute)
			if got, want := r.counts(), (store.Counts{Dead: 2 * n}); got != want {
				t.Errorf("the store has %+v, want %+v", got, want)
			}
		})
	})
	t.Run("filter", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *rig) {
			var l ledger
			l.receiver(r, func(string, int) step.Step { return step.Answer(204) })
			d := keyedCRM()
			d.Filter.Exclude = []string{"left.out"}
			r.start(webhook.Config{Destinations: []webhook.Destination{d}})
			for _, e := range keyed(n, "a") {
				out := testkit.Must(new(event.Encoder).Encode(&event.Custom{Type: "left.out", Key: "a"}))
				must(t, r.ForwardEvents(t.Context(), []string{"crm"}, out, e, out))
			}
			time.Sleep(time.Minute)
			l.check(t, n, "a")
		})
	})
}
