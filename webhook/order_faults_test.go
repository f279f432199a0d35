package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

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

// If a delivery lapses, the deliveries behind it that have waited for a retry window lapse at once.
// This holds if the destination fails for all keys, so that it is probed, and if it fails for one
// key.
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
				if got, want := r.counts(), (store.Counts{Waiting: len(fails) * n, Behind: len(fails) * (n - 1)}); got != want {
					t.Errorf("before the end of the window the store has %+v, want %+v", got, want)
				}
				time.Sleep(2 * time.Minute)
				if got, want := r.counts(), (store.Counts{Waiting: len(fails) * n / 2, Behind: len(fails) * (n/2 - 1), Dead: len(fails) * n / 2}); got != want {
					t.Errorf("after the first window the store has %+v, want %+v", got, want)
				}
				time.Sleep(window)
				if got, want := r.counts(), (store.Counts{Dead: len(fails) * n}); got != want {
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

// RetryAll keeps the order of a key, and puts its dead letters behind its waiting deliveries.
// DiscardAll of the waiting deliveries discards all of a key.
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
