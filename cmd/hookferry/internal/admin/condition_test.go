package admin

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"

	"github.com/hookferry/analytics/webhook"
)

// TestDestinationStateFollowsAnswers shows the states of a destination as the answers of its
// receiver change. Another destination accepts all of its deliveries.
func TestDestinationStateFollowsAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		s.run()
		state := func(want string, status int, again bool) {
			t.Helper()
			synctest.Wait()
			d := ask[api.Destination](s, 200, "GET", "/api/v1/destinations/crm", nil)
			f := d.Failure
			if f == nil {
				f = new(webhook.Failure)
			}
			if d.State != want || f.Attempt.Status != status || f.Due.IsZero() == again {
				t.Errorf("state %q after the failure %+v, want %q after the status %d, with another attempt: %v", d.State, d.Failure, want, status, again)
			}
			if status > 0 && (f.MessageID == "" || f.Attempt.Try == 0 || f.Attempt.Answer != "answered") {
				t.Errorf("the failure is %+v, want the delivery, the try and the answer", f)
			}
		}
		sent := func(status int, id string) {
			t.Helper()
			s.receiver.answers(status)
			s.track("crm", id)
			time.Sleep(10 * time.Millisecond)
		}
		state(api.StateIdle, 0, false)
		sent(200, "m1")
		state(api.StateOK, 0, false)

		// More than ten seconds may pass between two attempts, which is the span of the rates.
		// After ten failures the destination is failing. Random delays decide when that is.
		sent(503, "m2")
		state(api.StateRetrying, 503, true)
		for range 60 {
			time.Sleep(time.Second)
			synctest.Wait()
			if d := ask[api.Destination](s, 200, "GET", "/api/v1/destinations/crm", nil); d.State != api.StateRetrying && d.State != api.StateFailing {
				t.Errorf("state %q while a delivery fails, want retrying or failing", d.State)
			}
		}
		s.receiver.answers(200)
		time.Sleep(time.Hour)
		state(api.StateOK, 503, true)

		// A second after the recovery, the failure is over.
		sent(503, "again")
		state(api.StateRetrying, 503, true)
		s.receiver.answers(200)
		for before := s.forwarder.Stats().Delivered; s.forwarder.Stats().Delivered == before; {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Second)
		state(api.StateOK, 503, true)

		// A destination that refuses deliveries comes first in the order of states.
		sent(422, "m3")
		state(api.StateRefusing, 422, false)
		s.receiver.answers(200)
		s.track("shop/eu", "n1")
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		list := ask[api.Destinations](s, 200, "GET", api.DestinationsPath+"?sort=state", nil)
		if list.Items[0].ID != "crm" || list.States[api.StateRefusing] != 1 || list.States[api.StateOK] != 1 {
			t.Errorf("the first destination is %s, the states are %v, want crm first, which refuses", list.Items[0].ID, list.States)
		}
		if list = ask[api.Destinations](s, 200, "GET", api.DestinationsPath+"?state=refusing", nil); list.Total != 1 {
			t.Errorf("?state=refusing lists %d destinations, want 1", list.Total)
		}
		sent(200, "m4")
		state(api.StateOK, 422, false)

		// The forwarder gives the delivery up at the end of the retry window. Nothing waits, and
		// the destination is failing.
		sent(503, "m5")
		time.Sleep(5 * time.Hour)
		state(api.StateFailing, 503, false)
		sent(200, "m6")
		state(api.StateOK, 503, false)
	})
}
