package webhook_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
)

func TestDestinationStatsCountEachDestination(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		url := func(id string) string { return "http://" + id + ".example/hook" }
		r.network.Receiver(url("fine"), "", step.Answer(200).After(100*time.Millisecond))
		r.network.Receiver(url("picky"), "", step.Answer(404))
		r.network.Receiver(url("busy"), "", step.Answer(503).With("Retry-After", "30"), step.Answer(200))
		r.network.Receiver(url("slow"), "", step.Answer(200).After(4*time.Second))
		var ds []webhook.Destination
		for _, id := range []string{"busy", "fine", "picky", "slow", "paused", "quiet"} {
			ds = append(ds, webhook.Destination{ID: id, MaxConcurrent: 2, Endpoints: []webhook.Endpoint{{URL: url(id)}}})
		}
		r.start(webhook.Config{Destinations: ds})
		began := time.Now()
		must(t, r.Pause(t.Context(), "paused"))
		for _, id := range []string{"busy", "fine", "picky", "slow", "slow", "slow", "slow", "slow", "paused", "paused"} {
			must(t, r.Forward(t.Context(), id, call("")))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		stats := func() map[string]webhook.DestinationStats {
			t.Helper()
			all, err := r.DestinationStats(t.Context())
			must(t, err)
			m := make(map[string]webhook.DestinationStats)
			for i, s := range all {
				if i > 0 && s.Destination <= all[i-1].Destination {
					t.Errorf("DestinationStats() has %s after %s, want them sorted", s.Destination, all[i-1].Destination)
				}
				m[s.Destination] = s
			}
			return m
		}
		got := stats()
		oldest := began.UTC()
		ignore := cmp.Options{cmpopts.EquateEmpty(), cmpopts.IgnoreFields(webhook.DestinationStats{}, "Counters.Latency", "Ready", "Oldest", "Since", "Outcome", "Refusing", "Failure"), cmpopts.IgnoreFields(webhook.Hold{}, "Since")}
		want := map[string]webhook.DestinationStats{
			"busy":   {Destination: "busy", Counters: webhook.Counters{Retried: 1}, Waiting: 1},
			"fine":   {Destination: "fine", Counters: webhook.Counters{Delivered: 1}},
			"picky":  {Destination: "picky", Counters: webhook.Counters{Dead: map[webhook.Reason]int64{webhook.ReasonRefused: 1}}},
			"slow":   {Destination: "slow", InFlight: 2, Waiting: 5},
			"paused": {Destination: "paused", Waiting: 2, Held: &webhook.Hold{Destination: "paused", Kind: webhook.HoldPaused}},
		}
		if diff := cmp.Diff(want, got, ignore); diff != "" {
			t.Errorf("DestinationStats() (-want +got):\n%s", diff)
		}
		if o := got["paused"].Oldest; !o.Equal(oldest) {
			t.Errorf("paused: Oldest is %v, want %v", o, oldest)
		}
		if l := got["fine"].Latency; l.Requests != 1 || time.Duration(l.P50) < 100*time.Millisecond || time.Duration(l.P50) > 113*time.Millisecond || l.P99 != l.P50 {
			t.Errorf("Latency of one request of 100 ms is %+v, want 1 request of 100 to 113 ms", l)
		}
		if s := r.Stats(); s.InFlight != 2 || s.Latency.Requests != 3 || s.Delivered != 1 || s.Retried != 1 {
			t.Errorf("Stats() = %+v, want 2 in flight, 3 requests, 1 delivered and 1 retried", s)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		slow := stats()["slow"]
		if slow.Delivered != 5 || slow.Waiting+slow.InFlight+slow.Ready != 0 || time.Duration(slow.Latency.P99) < 4*time.Second || !slow.Oldest.IsZero() {
			t.Errorf("slow, after a minute: %+v, want 5 delivered, none waiting, and a P99 of at least 4 s", slow)
		}
		if s := r.Stats(); s.InFlight != 0 || s.Ready != 0 || s.Latency.Requests != 9 {
			t.Errorf("Stats() after a minute = %+v, want none in flight and 9 requests", s)
		}

		for id := range want {
			some, err := r.StatsOf(t.Context(), id, "unknown", id)
			must(t, err)
			if all := stats(); len(some) != 1 || !cmp.Equal(some[0], all[id], ignore) {
				t.Errorf("StatsOf(%q) = %+v, want %+v", id, some, all[id])
			}
		}
		if some, err := r.StatsOf(t.Context()); len(some) > 0 || err != nil {
			t.Errorf("StatsOf() of no destination = %+v, %v, want none", some, err)
		}
		if some, err := r.TenantStats(t.Context(), "acme"); len(some) > 0 || err != nil {
			t.Errorf("TenantStats() of a tenant without destinations = %+v, %v, want none", some, err)
		}
		if some, err := r.TenantStats(t.Context(), ""); len(some) != len(want) || err != nil {
			t.Errorf("TenantStats() of the program's own destinations = %+v, %v, want all", some, err)
		}
		// If the store fails, DestinationStats returns its error and the counts that need no store.
		r.queue.Close()
		all, err := r.DestinationStats(t.Context())
		if !errors.Is(err, webhook.ErrClosed) || len(all) != 5 || all[0].Delivered != 1 || all[0].Retried != 1 {
			t.Errorf("DestinationStats() of a closed store = %+v, %v; want 5 and ErrClosed", all, err)
		}
	})
}
