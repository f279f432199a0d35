package webhook_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
)

// Waiting deliveries can be listed, retried at once and discarded, by user, event or id. This also
// works for a destination that is no longer in the settings. Stats counts discarded deliveries.
func TestWaitingDeliveriesAreListedRetriedAndDiscarded(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver("http://crm.example/", "", step.Answer(503))
		config := webhook.Config{Destinations: []webhook.Destination{{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}}}}}
		r.start(config)
		for i := range 6 {
			call := &analytics.Track{UserId: fmt.Sprint("u", i%2), Event: fmt.Sprint("E", i%3), MessageId: fmt.Sprint("m", i)}
			must(t, r.Forward(t.Context(), "crm", call))
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		list := func(f webhook.WaitingFilter, after string) (ids []string) {
			t.Helper()
			for d, err := range r.Waiting(t.Context(), f, after) {
				must(t, err)
				ids = append(ids, d.MessageID)
			}
			return ids
		}
		all := list(webhook.WaitingFilter{Destination: "crm"}, "")
		if len(all) != 6 {
			t.Fatalf("Waiting() = %v, want six deliveries", all)
		}
		if diff := cmp.Diff(all[2:], list(webhook.WaitingFilter{Destination: "crm"}, all[1])); diff != "" {
			t.Errorf("Waiting() after the second delivery (-want +got):\n%s", diff)
		}
		got := list(webhook.WaitingFilter{Destination: "crm", User: "u1", Event: "E0"}, "")
		if diff := cmp.Diff([]string{"m3"}, got); diff != "" {
			t.Errorf("Waiting() by user and event (-want +got):\n%s", diff)
		}

		recv.SetScript(step.Answer(200))
		before := time.Now()
		n, claimed, err := r.ChangeWaiting(t.Context(), webhook.WaitingFilter{Destination: "crm", User: "u0"}, webhook.DueNow)
		if n != 3 || claimed != 0 || err != nil {
			t.Errorf("ChangeWaiting(DueNow) = %d, %d, %v; want 3, 0, nil", n, claimed, err)
		}
		requests := len(recv.Requests())
		if _, err := recv.Wait(t.Context(), requests+3); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(before); took > 30*time.Second {
			t.Errorf("the deliveries are attempted after %v, want at most 30 s", took)
		}
		r.stop()

		r.start(webhook.Config{Destinations: []webhook.Destination{{ID: "other", Endpoints: config.Destinations[0].Endpoints}}})
		if _, _, err := r.ChangeWaiting(t.Context(), webhook.WaitingFilter{User: "u1"}, webhook.Discarded); err == nil {
			t.Error("ChangeWaiting() without a destination = nil, want an error")
		}
		left := list(webhook.WaitingFilter{Destination: "crm"}, "") // perhaps without one of u1 that came due
		n, _, err = r.ChangeWaiting(t.Context(), webhook.WaitingFilter{Destination: "crm", ID: left[0]}, webhook.Discarded)
		if n != 1 || err != nil {
			t.Errorf("ChangeWaiting(Discarded) of one delivery = %d, %v; want 1", n, err)
		}
		n, _, err = r.ChangeWaiting(t.Context(), webhook.WaitingFilter{Destination: "crm"}, webhook.Discarded)
		if n != len(left)-1 || err != nil {
			t.Errorf("ChangeWaiting(Discarded) of the rest = %d, %v; want %d", n, err, len(left)-1)
		}
		if rest := list(webhook.WaitingFilter{Destination: "crm"}, ""); len(rest) > 0 || r.Stats().Discarded != int64(len(left)) {
			t.Errorf("Waiting() = %v, and Stats() counts %d as discarded; want none and %d", rest, r.Stats().Discarded, len(left))
		}
		f := r.Forwarder
		r.stop() // before the store is closed, or Run would return an error
		r.Forwarder = nil
		must(t, r.queue.Close())
		if _, _, err := f.ChangeWaiting(t.Context(), webhook.WaitingFilter{Destination: "crm"}, webhook.DueNow); !errors.Is(err, webhook.ErrClosed) {
			t.Errorf("ChangeWaiting() on a closed store = %v, want ErrClosed", err)
		}
	})
}
