package webhook_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

func TestAudiences(t *testing.T) {
	q := memqueue.New(memqueue.Config{})
	defer q.Close()
	f, err := webhook.New(webhook.Config{Store: q, Destinations: []webhook.Destination{
		{ID: "a", Endpoints: []webhook.Endpoint{{URL: "https://a.example/"}}},
		{ID: "b", Endpoints: []webhook.Endpoint{{URL: "https://b.example/"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	audience := func(destination, name string) *webhook.Audience {
		a, err := f.Audience(destination, name)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	list := func() (all []webhook.AudienceInfo) {
		for a, err := range f.Audiences(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, a)
		}
		return all
	}
	if all := list(); all != nil {
		t.Errorf("there are audiences from the start: %v", all)
	}
	for range 2 { // to sync is to raise the generation
		if _, err := audience("b", "VIP Users").Sync(ctx, webhook.Users(slices.Values([]string{"u1"}))); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // to create again is nothing
		for _, a := range []*webhook.Audience{audience("a", "VIP"), audience("b", "vip users")} {
			if err := a.Create(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	long := "Long " + strings.Repeat("l", 250) + "."
	for _, name := range []string{"plain", "b\x00B", long} {
		if err := audience("b", name).Create(ctx); err != nil {
			t.Fatal(err)
		}
	}
	want := []webhook.AudienceInfo{
		{Destination: "a", Trait: "vip", Name: "VIP", Generation: 1},
		{Destination: "b", Trait: "b_b", Name: "b\x00B", Generation: 1},
		{Destination: "b", Trait: webhook.TraitName(long), Name: webhook.TraitName(long), Generation: 1},
		{Destination: "b", Trait: "plain", Name: "plain", Generation: 1},
		{Destination: "b", Trait: "vip_users", Name: "VIP Users", Generation: 2},
	}
	if diff := cmp.Diff(want, list()); diff != "" {
		t.Errorf("Audiences (-want +got)\n%s", diff)
	}
	for range f.Audiences(ctx) {
		break // the loop may end before
	}

	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := audience("a", "other").Create(cancelled); !errors.Is(err, context.Canceled) {
		t.Errorf("Create with a context that is done: %v", err)
	}
	if err := f.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if err := audience("a", "other").Create(ctx); !errors.Is(err, webhook.ErrClosed) {
		t.Errorf("Create after Shutdown: %v, want ErrClosed", err)
	}
	if diff := cmp.Diff(want, list()); diff != "" {
		t.Errorf("Audiences after what failed (-want +got)\n%s", diff)
	}
}

// A plainStore implements nothing but webhook.Store and webhook.Roster.
type plainStore struct {
	webhook.Store
	webhook.Roster
}

func TestAudiencesUnsupported(t *testing.T) {
	q := memqueue.New(memqueue.Config{})
	defer q.Close()
	f, err := webhook.New(webhook.Config{Store: plainStore{q, q}, Destinations: []webhook.Destination{
		{ID: "a", Endpoints: []webhook.Endpoint{{URL: "https://a.example/"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := f.Audience("a", "vip")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Create(t.Context()); !errors.Is(err, webhook.ErrUnsupported) {
		t.Errorf("Create: %v, want ErrUnsupported", err)
	}
}
