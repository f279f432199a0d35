package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

// A filter matches the same events after it was stored as JSON.
func TestFilterMatchesTypesAndNames(t *testing.T) {
	all := []string{"identify", "track:Order Completed", "track:Order Test", "track:", "page:Order Completed", "page:Home", "alias", "invoice.paid", "invoice.line.added", "invoices"}
	for _, tt := range []struct {
		name             string
		include, exclude []string
		want             []string
	}{
		{"no patterns", nil, nil, all},
		{"type", []string{"identify", "page"}, nil, []string{"identify", "page:Order Completed", "page:Home"}},
		{"name", []string{"track:Order Completed"}, nil, []string{"track:Order Completed"}},
		{"name without a wildcard", []string{"track:Order"}, nil, nil},
		{"prefix", []string{"track:Order *"}, nil, []string{"track:Order Completed", "track:Order Test"}},
		{"any name", []string{"track:*"}, nil, []string{"track:Order Completed", "track:Order Test"}},
		{"any type", []string{"*:Order *"}, nil, []string{"track:Order Completed", "track:Order Test", "page:Order Completed"}},
		{"everything", []string{"*"}, nil, all},
		{"case is significant", []string{"track:order *"}, nil, nil},
		{"exclude", nil, []string{"track", "alias", "invoices", "invoice.*"}, []string{"identify", "page:Order Completed", "page:Home"}},
		{"type of one's own", []string{"invoice.paid"}, nil, []string{"invoice.paid"}},
		{"prefix of types", []string{"invoice.*"}, nil, []string{"invoice.paid", "invoice.line.added"}},
		{"part of a type", []string{"invoice"}, nil, nil},
		{"include and exclude", []string{"track:Order *"}, []string{"track:* Test", "track:Order T*"}, []string{"track:Order Completed"}},
	} {
		f := webhook.Filter{Include: tt.include, Exclude: tt.exclude}
		if err := f.Validate(); err != nil {
			t.Errorf("%s: Validate() = %v, want no error", tt.name, err)
		}
		stored, err := json.Marshal(f)
		must(t, err)
		f = webhook.Filter{}
		must(t, json.Unmarshal(stored, &f))
		var got []string
		for _, e := range all {
			kind, name, _ := strings.Cut(e, ":")
			if f.Match(&event.Event{Type: kind, Name: name}) {
				got = append(got, e)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: events that match (-want +got):\n%s", tt.name, diff)
		}
	}
}

// Forward stores the events that the filter of each destination accepts, and counts the others.
// This holds with and without a Directory.
func TestForwardStoresOnlyWhatFiltersAccept(t *testing.T) {
	endpoints := []webhook.Endpoint{{URL: "http://crm.example/"}}
	destinations := []webhook.Destination{
		{ID: "all", Endpoints: endpoints},
		{ID: "orders", Endpoints: endpoints, Filter: webhook.Filter{Include: []string{"track:Order *"}}},
		{ID: "u1", Endpoints: endpoints, Transform: func(_ context.Context, e event.Event) (event.Event, error) {
			e.Off = e.User != "u1"
			return e, nil
		}},
	}
	failure := errors.New("database is away")
	var failing error
	directory := lookup(func(_ context.Context, id string) (*webhook.Destination, error) {
		i := slices.IndexFunc(destinations, func(d webhook.Destination) bool { return d.ID == id })
		if i < 0 {
			return nil, webhook.ErrUnknownDestination
		}
		return &destinations[i], failing
	})
	for _, c := range []webhook.Config{{Destinations: destinations}, {Directory: directory}} {
		store := testkit.Must(memqueue.Open(memqueue.Config{}))
		c.Store = store
		f, err := webhook.New(c)
		must(t, err)
		var encoder event.Encoder
		var events []event.Event
		for _, m := range []event.Call{
			&analytics.Track{UserId: "u1", Event: "Order Completed", MessageId: "m1"},
			&analytics.Track{UserId: "u2", Event: "Order Completed", MessageId: "m2"},
			&analytics.Identify{UserId: "u1", MessageId: "m3"},
			&analytics.Identify{UserId: "u1", MessageId: "m4", Integrations: map[string]any{"All": false}},
		} {
			e, err := encoder.Encode(m)
			must(t, err)
			events = append(events, e)
		}
		ids := []string{"all", "orders", "u1"}
		must(t, f.ForwardEvents(t.Context(), ids, events...))
		got := map[string][]string{}
		for _, id := range ids {
			for d, err := range f.Deliveries(t.Context(), webhook.Query{Destinations: []string{id}}) {
				must(t, err)
				got[id] = append(got[id], d.MessageID)
			}
			slices.Sort(got[id])
		}
		want := map[string][]string{"all": {"m1", "m2", "m3"}, "orders": {"m1", "m2"}, "u1": {"m1", "m3"}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("waiting messageIds by destination (-want +got):\n%s", diff)
		}
		if s := f.Stats(); s.Accepted != 7 || s.Filtered != 2 || s.Off != 1 || s.Duplicates != 0 {
			t.Errorf("Stats() = %+v, want 7 accepted, 2 filtered, 1 off, no duplicates", s)
		}
		of, err := f.DestinationStats(t.Context())
		must(t, err)
		for _, s := range of {
			if want := map[string]int64{"orders": 1, "u1": 1}[s.Destination]; s.Filtered != want {
				t.Errorf("%s: got %d filtered, want %d", s.Destination, s.Filtered, want)
			}
		}
	}

	// If the Directory fails, Forward fails, so that no event is stored unfiltered.
	failing = failure
	store := testkit.Must(memqueue.Open(memqueue.Config{}))
	f, err := webhook.New(webhook.Config{Store: store, Directory: directory})
	must(t, err)
	call := &analytics.Track{UserId: "u1", Event: "E"}
	if err := f.Forward(t.Context(), "orders", call); !errors.Is(err, failure) {
		t.Errorf("Forward() while the Directory fails = %v, want %v", err, failure)
	}
	if err := f.Forward(t.Context(), "gone", call); err != nil {
		t.Errorf("Forward() to an unknown destination = %v, want no error", err)
	}
	if n, err := store.Count(t.Context()); err != nil || n.Waiting != 1 {
		t.Errorf("got %d waiting, %v; want 1", n.Waiting, err)
	}
}

// An Unfiltered event reaches a destination whose Filter and Transform would leave it out, unchanged.
func TestUnfilteredEventsPassByFilterAndTransform(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		crm := r.network.Receiver("http://crm.example/", "")
		r.start(webhook.Config{Destinations: []webhook.Destination{{
			ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}},
			Filter:    webhook.Filter{Include: []string{"page"}},
			Transform: func(context.Context, event.Event) (event.Event, error) { return event.Event{Off: true}, nil },
		}}})
		filtered, unfiltered := eventOf(t, "m1"), eventOf(t, "m2")
		unfiltered.Unfiltered = true
		must(t, r.ForwardEvents(t.Context(), []string{"crm"}, filtered, unfiltered))
		synctest.Wait()
		qs := crm.Requests()
		if len(qs) != 1 || !bytes.Equal(qs[0].Body, unfiltered.Body) {
			t.Errorf("%d requests arrived, want one with the body of the unfiltered event", len(qs))
		}
		if s := r.Stats(); s.Accepted != 1 || s.Filtered != 1 {
			t.Errorf("accepted %d and filtered %d events, want 1 and 1", s.Accepted, s.Filtered)
		}
	})
}
