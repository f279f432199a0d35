package webhook_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
)

// An outbox is a Store with PutTx. It records the arguments of the latest PutTx, and a transaction
// may be any value.
type outbox struct {
	*memqueue.Store
	tx    any
	last  []store.Put
	known int   // how many of the deliveries, the first ones, PutTx reports as duplicates
	err   error // the error of PutTx
}

func newOutbox() *outbox { return &outbox{Store: testkit.Must(memqueue.Open(memqueue.Config{}))} }

func (o *outbox) PutTx(_ context.Context, tx any, ps []store.Put, out []store.Result) error {
	o.tx, o.last = tx, slices.Clone(ps)
	for i := range out[o.known:] {
		out[o.known+i].Stored = true
	}
	return o.err
}

func (o *outbox) FirstClaims() int64 { return 7 }

func TestForwardTxPutsInTheTransactionOfTheCaller(t *testing.T) {
	box := newOutbox()
	destinations := []webhook.Destination{{
		ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}}, Filter: webhook.Filter{Exclude: []string{"track:Draft *"}},
	}}
	f, err := webhook.New(webhook.Config{Store: box, Destinations: destinations})
	must(t, err)
	order := &analytics.Track{UserId: "u1", Event: "Order Placed", MessageId: "m1"}
	draft := &analytics.Track{UserId: "u1", Event: "Draft Saved"}
	off := &analytics.Track{UserId: "u1", Event: "Order Seen", Integrations: map[string]any{"All": false}}
	box.known = 1
	must(t, f.ForwardTx(t.Context(), "tx", "crm", order, order, draft, off))
	if box.tx != "tx" || len(box.last) != 2 || box.last[0].ID != "m1" || box.last[0].Event != "Order Placed" || len(box.last[0].Body) == 0 {
		t.Errorf("in transaction %v the store got %+v; want 2 deliveries of m1 in transaction tx", box.tx, box.last)
	}
	s := f.Stats()
	if s.InTransaction != 1 || s.Duplicates != 1 || s.Off != 1 || s.Filtered != 1 || s.Accepted != 7 {
		t.Errorf("Stats() = %+v; want 1 in a transaction, 1 duplicate, 1 off, 1 filtered, and the 7 accepted that the store claimed first", s)
	}
	box.err = errors.New("serialization failure")
	if err := f.ForwardTx(t.Context(), "tx", "crm", order); !errors.Is(err, box.err) {
		t.Errorf("ForwardTx() with a store that fails = %v, want %v", err, box.err)
	}
	if err := f.ForwardTx(t.Context(), "tx", "unknown", order); !errors.Is(err, webhook.ErrUnknownDestination) {
		t.Errorf("ForwardTx() to an unknown destination = %v, want ErrUnknownDestination", err)
	}
	if err := f.ForwardTx(t.Context(), "tx", "crm", &analytics.Track{UserId: "u1"}); err == nil {
		t.Error("ForwardTx() of an invalid call = nil, want an error")
	}
	if got := f.Stats().InTransaction; got != 1 {
		t.Errorf("got %d deliveries in transactions after errors, want 1 as before", got)
	}
	must(t, f.Shutdown(t.Context()))
	if err := f.ForwardTx(t.Context(), "tx", "crm", order); !errors.Is(err, webhook.ErrClosed) {
		t.Errorf("ForwardTx() after Shutdown = %v, want ErrClosed", err)
	}

	plain, err := webhook.New(webhook.Config{Store: testkit.Must(memqueue.Open(memqueue.Config{})), Destinations: destinations})
	must(t, err)
	if err := plain.ForwardTx(t.Context(), "tx", "crm", order); !errors.Is(err, webhook.ErrUnsupported) {
		t.Errorf("ForwardTx() with a store without PutTx = %v, want ErrUnsupported", err)
	}
}

// If Lookup waits for a connection that transactions hold, ForwardTx ends, and its error says so.
func TestForwardTxSaysThatLookupWaitsForItsTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := webhook.New(webhook.Config{Store: newOutbox(), Directory: lookup(func(ctx context.Context, _ string) (*webhook.Destination, error) {
			<-ctx.Done() // no connection is free
			return nil, ctx.Err()
		})})
		must(t, err)
		begin := time.Now()
		err = f.ForwardTx(t.Context(), "tx", "crm", &analytics.Track{UserId: "u1", Event: "Order Placed"})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "wait for each other") {
			t.Errorf("ForwardTx() = %v, want that transactions wait for each other", err)
		}
		if took := time.Since(begin); took > webhook.DefaultTimeout {
			t.Errorf("ForwardTx() took %v, want at most %v", took, webhook.DefaultTimeout)
		}
	})
}
