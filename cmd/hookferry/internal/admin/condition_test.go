package admin

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// TestStateOfADestination follows one destination through what its receiver answers.
// The other one takes all of its deliveries.
func TestStateOfADestination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		s.run()
		state := func(want string, status int, again bool) {
			t.Helper()
			synctest.Wait()
			d := ask[api.Destination](s, 200, "GET", "/api/v1/destinations/crm", nil)
			f := d.Failure
			if f == nil {
				f = new(api.Failure)
			}
			if d.State != want || f.Attempt.Status != status || f.Due.IsZero() == again {
				t.Errorf("state %q after the failure %+v; want %q after the status %d, again %v", d.State, d.Failure, want, status, again)
			}
			if status > 0 && (f.ID == "" || f.Attempt.Try == 0 || f.Attempt.Answer != "answered") {
				t.Errorf("the failure %+v does not have the delivery, the try and the answer", f)
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

		// Between two attempts there may be more than the ten seconds of the rates. After
		// ten of them it is failing, which chance may have come sooner or later.
		sent(503, "m2")
		state(api.StateRetrying, 503, true)
		for range 60 {
			time.Sleep(time.Second)
			synctest.Wait()
			if d := ask[api.Destination](s, 200, "GET", "/api/v1/destinations/crm", nil); d.State != api.StateRetrying && d.State != api.StateFailing {
				t.Errorf("state %q while a delivery fails", d.State)
			}
		}
		s.receiver.answers(200)
		time.Sleep(time.Hour)
		state(api.StateOK, 503, true)

		// Refused for good: worse than what is tried again, and than what is well.
		sent(422, "m3")
		state(api.StateRefusing, 422, false)
		s.receiver.answers(200)
		s.track("shop/eu", "n1")
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		list := ask[api.Destinations](s, 200, "GET", api.DestinationsPath+"?sort=state", nil)
		if list.Destinations[0].ID != "crm" || list.States[api.StateRefusing] != 1 || list.States[api.StateOK] != 1 {
			t.Errorf("%s comes first, states %v; want crm, which refuses", list.Destinations[0].ID, list.States)
		}
		if list = ask[api.Destinations](s, 200, "GET", api.DestinationsPath+"?state=refusing", nil); list.Total != 1 {
			t.Errorf("%d destinations are refusing, want 1", list.Total)
		}
		sent(200, "m4")
		state(api.StateOK, 422, false)

		// Given up after a whole window of failures, with nothing that waits.
		sent(503, "m5")
		time.Sleep(5 * time.Hour)
		state(api.StateFailing, 503, false)
		sent(200, "m6")
		state(api.StateOK, 503, false)
	})
}
