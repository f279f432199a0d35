package webhook_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

// A lossy store stores the deliveries of the first Put, and returns an error all the same.
type lossy struct {
	webhook.Store
	lost bool
}

func (q *lossy) Put(ctx context.Context, ps []store.Put, out []store.Result) error {
	if q.lost {
		return q.Store.Put(ctx, ps, out)
	}
	q.lost = true
	ps = slices.Clone(ps)
	for i := range ps {
		ps[i].Keep = false
	}
	return cmp.Or(q.Store.Put(ctx, ps, out), errors.New("the answer was lost"))
}

// If a Put has stored a delivery although it returned an error, the delivery is attempted soon, and
// not only when the destination gets another one.
func TestDeliveryStoredDespiteAnErrorIsAttempted(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		r.queue = &lossy{Store: r.queue}
		r.start(webhook.Config{Destinations: crm(hook)})
		time.Sleep(time.Second)
		if err := r.Forward(t.Context(), "crm", call("1")); err == nil {
			t.Error("Forward = nil although Put failed, want an error")
		}
		r.track("1") // is a duplicate
		time.Sleep(time.Second)
		if n, s := len(recv.Requests()), r.Stats(); n != 1 || s.Duplicates != 1 {
			t.Errorf("got %d requests, Stats() = %+v; want 1 request and 1 duplicate", n, s)
		}
	})
}

// With a catalogue, an event of another type is an error, and nothing of the call is stored.
func TestForwardRefusesTypesThatAreNotInTheCatalogue(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "shh")
		catalogue, err := event.NewCatalogue(event.Type{Type: "invoice.paid"})
		if err != nil {
			t.Fatal(err)
		}
		r.start(webhook.Config{Destinations: crm(hook), Catalogue: catalogue})
		paid := &event.Custom{Type: "invoice.paid"}
		err = r.Forward(t.Context(), "crm", paid, &event.Custom{Type: "invoice.payed"})
		if refused, ok := errors.AsType[*event.CallError](err); !ok || refused.Field != "type" || r.Stats().Accepted != 0 {
			t.Errorf("Forward = %v, Stats() = %+v, want a CallError about the type, and nothing accepted", err, r.Stats())
		}
		if err := r.Forward(t.Context(), "crm", paid, call("1")); err != nil || r.Stats().Accepted != 2 {
			t.Errorf("Forward = %v, Stats() = %+v, want both accepted", err, r.Stats())
		}
	})
}
