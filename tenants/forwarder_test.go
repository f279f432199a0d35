package tenants_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A forwarder that has the directory signs with its secrets, and follows its changes: two seconds
// after one, deliveries go to the new URL, wait, or are not stored.
func TestForwarderFollowsTheDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := memqueue.Open(memqueue.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		d, err := tenants.New(s, tenants.Config{})
		if err != nil {
			t.Fatal(err)
		}
		network := webhooktest.NewNetwork()
		defer network.Close()
		first, second := network.Receiver("https://first.example/", ""), network.Receiver("https://second.example/", "")
		f, err := webhook.New(webhook.Config{Store: s, Directory: d, DialContext: network.DialContext, TLSClientConfig: network.TLSClientConfig()})
		if err != nil {
			t.Fatal(err)
		}
		ran := make(chan error, 1)
		go func() { ran <- f.Run(context.Background()) }() // until Shutdown
		tenant, err := d.CreateTenant(t.Context(), tenants.Tenant{ID: "acme"}, "ann")
		if err != nil {
			t.Fatal(err)
		}
		made, _, err := d.Create(t.Context(), at("https://first.example/"), "ann")
		if err != nil {
			t.Fatal(err)
		}
		want := func(when string, firsts, seconds int) {
			t.Helper()
			time.Sleep(2 * time.Second)
			if err := f.Forward(t.Context(), made.ID, &event.Custom{Type: "invoice.paid"}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			if a, b := len(first.Requests()), len(second.Requests()); a != firsts || b != seconds {
				t.Errorf("%s: %d and %d requests, want %d and %d", when, a, b, firsts, seconds)
			}
		}
		want("after Create", 1, 0)
		made.Endpoints[0].URL = "https://second.example/"
		if made, err = d.Update(t.Context(), made, "ann"); err != nil {
			t.Fatal(err)
		}
		want("after Update", 1, 1)
		tenant.Disabled = true
		if tenant, err = d.UpdateTenant(t.Context(), tenant, "ann"); err != nil {
			t.Fatal(err)
		}
		want("while the tenant is disabled", 1, 1)
		tenant.Disabled = false
		if _, err = d.UpdateTenant(t.Context(), tenant, "ann"); err != nil {
			t.Fatal(err)
		}
		want("after it is enabled", 1, 3)
		if err = d.DeleteTenant(t.Context(), "acme", "ann"); err != nil {
			t.Fatal(err)
		}
		want("after DeleteTenant", 1, 3)
		if err := f.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
}

// What another node changes while the store fails counts once this node follows the changes again: what
// waits is attempted within two seconds, not at the next look-up or probe.
func TestChangesDuringAnOutageOfTheStoreCountAtOnceAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other, s := rig(t, tenants.Config{})
		flaky := &flakyStore{Store: s}
		network := webhooktest.NewNetwork()
		defer network.Close()
		recv := network.Receiver("https://first.example/", "")
		network.Receiver("https://down.example/", "", step.Refuse())
		f := testkit.Must(webhook.New(webhook.Config{
			Store: s, Directory: testkit.Must(tenants.New(flaky, tenants.Config{})),
			DialContext: network.DialContext, TLSClientConfig: network.TLSClientConfig(),
		}))
		ran := make(chan error, 1)
		go func() { ran <- f.Run(context.Background()) }() // until Shutdown
		off, down := at("https://first.example/"), at("https://down.example/")
		off.Disabled, down.Schedule = true, webhook.ScheduleDays // its retries are minutes apart
		var made []tenants.Destination
		for _, in := range []tenants.Destination{off, down} {
			d, _, err := other.Create(t.Context(), in, "ann")
			if err != nil {
				t.Fatal(err)
			}
			made = append(made, d)
			for range 100 {
				if err := f.Forward(t.Context(), d.ID, &event.Custom{Type: "invoice.paid"}); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(10 * time.Minute)
		soon := func(h webhook.Hold) bool { return time.Until(h.Until) < 8*time.Second }
		for slices.ContainsFunc(f.Held(), soon) {
			time.Sleep(time.Second)
		}
		if held := f.Held(); len(held) != 2 {
			t.Fatalf("Held() = %+v, want one that is disabled and one that fails", held)
		}
		flaky.failOnce.Store(true)
		for flaky.failOnce.Load() {
			time.Sleep(10 * time.Millisecond)
		}
		made[0].Disabled, made[1].Endpoints[0].URL = false, "https://first.example/down"
		for _, d := range made {
			if _, err := other.Update(t.Context(), d, "ann"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(3 * time.Second) // Run calls Follow again after one second
		got := make(map[string]bool)
		for _, q := range recv.Requests() {
			got[q.URL.Path] = true
		}
		if !got["/"] || !got["/down"] {
			t.Errorf("two seconds after Follow has begun again, there are requests for the paths %v, want / and /down", got)
		}
		if err := f.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
}

// What is deleted while it is paused is held no longer, and what waits for it becomes dead letters.
func TestDeletedDestinationHasNoPause(t *testing.T) {
	for _, what := range []string{"destination", "tenant"} {
		synctest.Test(t, func(t *testing.T) {
			s := testkit.Must(memqueue.Open(memqueue.Config{}))
			defer s.Close()
			d := testkit.Must(tenants.New(s, tenants.Config{}))
			f := testkit.Must(webhook.New(webhook.Config{Store: s, Directory: d}))
			ran := make(chan error, 1)
			go func() { ran <- f.Run(context.Background()) }() // until Shutdown
			_, err := d.CreateTenant(t.Context(), tenants.Tenant{ID: "acme"}, "ann")
			var made tenants.Destination
			if err == nil {
				made, _, err = d.Create(t.Context(), at("https://first.example/"), "ann")
			}
			if err == nil {
				err = f.Pause(t.Context(), made.ID)
			}
			if err == nil {
				err = f.Forward(t.Context(), made.ID, &event.Custom{Type: "invoice.paid"})
			}
			if err == nil && what == "tenant" {
				err = d.DeleteTenant(t.Context(), "acme", "ann")
			} else if err == nil {
				err = d.Delete(t.Context(), made.ID, 0, "ann")
			}
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if held := f.Held(); len(held) > 0 {
				t.Errorf("after the %s was deleted, Held() = %+v, want none", what, held)
			}
			if n := f.Stats().Dead[webhook.ReasonNoEndpoint]; n != 1 {
				t.Errorf("after the %s was deleted, %d deliveries are given up, want 1", what, n)
			}
			if err := f.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			if err := <-ran; err != nil {
				t.Error(err)
			}
		})
	}
}
