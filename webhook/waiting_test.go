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
		list := func(q webhook.Query) (ids []string) {
			t.Helper()
			for d, err := range r.Deliveries(t.Context(), q) {
				must(t, err)
				ids = append(ids, d.MessageID)
			}
			return ids
		}
		if all := list(webhook.Query{Destinations: []string{"crm"}}); len(all) != 6 {
			t.Fatalf("Deliveries() = %v, want six", all)
		}
		page, next, err := r.List(t.Context(), webhook.Query{Destinations: []string{"crm"}}, 0, 2)
		if must(t, err); len(page) != 2 || page[0].MessageID != "m5" || next != page[1].Seq {
			t.Errorf("List() = %d deliveries and then %d; want the two newest", len(page), next)
		}
		got := list(webhook.Query{User: "u1", Event: "E0"})
		if diff := cmp.Diff([]string{"m3"}, got); diff != "" {
			t.Errorf("Deliveries() by user and event (-want +got):\n%s", diff)
		}

		waiting := []webhook.State{webhook.StateWaiting}
		recv.SetScript(step.Answer(200))
		before := time.Now()
		if n, err := last(r.RetryAll(t.Context(), webhook.Query{States: waiting, User: "u0"})); n != 3 || err != nil {
			t.Errorf("RetryAll() = %d, %v; want 3", n, err)
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
		left := list(webhook.Query{}) // perhaps without one of u1 that came due
		if n, err := last(r.DiscardAll(t.Context(), webhook.Query{States: waiting, ID: left[0]})); n != 1 || err != nil {
			t.Errorf("DiscardAll() of one delivery = %d, %v; want 1", n, err)
		}
		if n, err := last(r.DiscardAll(t.Context(), webhook.Query{States: waiting, Destinations: []string{"crm"}})); n != len(left)-1 || err != nil {
			t.Errorf("DiscardAll() of the rest = %d, %v; want %d", n, err, len(left)-1)
		}
		if rest := list(webhook.Query{}); len(rest) > 0 || r.Stats().Discarded != int64(len(left)) {
			t.Errorf("Deliveries() = %v, and Stats() counts %d as discarded; want none and %d", rest, r.Stats().Discarded, len(left))
		}
		f := r.Forwarder
		r.stop() // before the store is closed, or Run would return an error
		r.Forwarder = nil
		must(t, r.queue.Close())
		if _, err := last(f.DiscardAll(t.Context(), webhook.Query{})); !errors.Is(err, webhook.ErrClosed) {
			t.Errorf("DiscardAll() on a closed store = %v, want ErrClosed", err)
		}
	})
}
