package audience_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/audience/memroster"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

func TestAudiencesListsAndCreates(t *testing.T) {
	q := testkit.Must(memqueue.Open(memqueue.Config{}))
	defer q.Close()
	f, err := webhook.New(webhook.Config{Store: q, Destinations: []webhook.Destination{
		{ID: "a", Endpoints: []webhook.Endpoint{{URL: "https://a.example/"}}},
		{ID: "b", Endpoints: []webhook.Endpoint{{URL: "https://b.example/"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, announcer := t.Context(), audience.New(f, memroster.New(1<<20))
	of := func(destination, name string) *audience.Audience {
		a, err := announcer.Audience(destination, name)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	list := func() (all []audience.Info) {
		for a, err := range announcer.Audiences(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, a)
		}
		return all
	}
	if all := list(); all != nil {
		t.Errorf("Audiences of an empty store = %v, want none", all)
	}
	for range 2 { // each sync raises the generation
		if _, err := of("b", "VIP Users").Sync(ctx, audience.Users(slices.Values([]string{"u1"}))); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // creating an audience again changes nothing
		for _, a := range []*audience.Audience{of("a", "VIP"), of("b", "vip users")} {
			if _, err := a.Create(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	long := "Long " + strings.Repeat("l", 250) + "."
	for _, name := range []string{"plain", "b\x00B", long} {
		if _, err := of("b", name).Create(ctx); err != nil {
			t.Fatal(err)
		}
	}
	want := []audience.Info{
		{Destination: "a", Trait: "vip", Name: "VIP", Generation: 1},
		{Destination: "b", Trait: "b_b", Name: "b\x00B", Generation: 1},
		{Destination: "b", Trait: audience.TraitName(long), Name: audience.TraitName(long), Generation: 1},
		{Destination: "b", Trait: "plain", Name: "plain", Generation: 1},
		{Destination: "b", Trait: "vip_users", Name: "VIP Users", Generation: 2},
	}
	if diff := cmp.Diff(want, list()); diff != "" {
		t.Errorf("Audiences (-want +got)\n%s", diff)
	}
	for range announcer.Audiences(ctx) {
		break // a caller may end the loop early
	}

	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := of("a", "other").Create(cancelled); !errors.Is(err, context.Canceled) {
		t.Errorf("Create with a cancelled context: %v, want context.Canceled", err)
	}
	if err := f.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := of("a", "other").Create(ctx); !errors.Is(err, webhook.ErrClosed) {
		t.Errorf("Create after Shutdown: %v, want ErrClosed", err)
	}
	if diff := cmp.Diff(want, list()); diff != "" {
		t.Errorf("Audiences after the failed calls (-want +got)\n%s", diff)
	}
}

// TestAnnouncerWithoutRosterHasNoAudiences shows that an Announcer without a Roster makes
// deletions, but no audiences.
func TestAnnouncerWithoutRosterHasNoAudiences(t *testing.T) {
	q := testkit.Must(memqueue.Open(memqueue.Config{}))
	defer q.Close()
	f, err := webhook.New(webhook.Config{Store: q, Destinations: []webhook.Destination{crm}})
	if err != nil {
		t.Fatal(err)
	}
	a := audience.New(f, nil)
	if _, err := a.Audience("crm", "vip"); !errors.Is(err, webhook.ErrUnsupported) {
		t.Errorf("Audience: %v, want ErrUnsupported", err)
	}
	for _, err := range a.Audiences(t.Context()) {
		if !errors.Is(err, webhook.ErrUnsupported) {
			t.Errorf("Audiences: %v, want ErrUnsupported", err)
		}
	}
	if err := a.Delete(t.Context(), audience.Deletion{Destinations: []string{"crm"}}, users("u")); err != nil {
		t.Errorf("Delete: %v", err)
	}
}
