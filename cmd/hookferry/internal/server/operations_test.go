package server

import (
	"encoding/json"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/signature"
)

// TestOperatorGetsCallsAboutDisabledDestinations shows that the operator's destination gets a
// signed call when another destination is disabled, and when it is enabled again. Waiting deliveries
// of the disabled destination stay or become dead letters, as the settings say.
func TestOperatorGetsCallsAboutDisabledDestinations(t *testing.T) {
	for _, tt := range []struct {
		when          string
		waiting, dead int
	}{{"keep", 1, 1}, {"dead", 0, 2}} {
		t.Run(tt.when, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				var repaired atomic.Bool
				gone := w.receiver(func(rw http.ResponseWriter, _ *http.Request) {
					if !repaired.Load() {
						rw.WriteHeader(http.StatusGone)
					}
				})
				type call struct {
					Event, UserID string
					Properties    map[string]any
				}
				calls := make(chan call, 10)
				alerts := w.receiver(func(_ http.ResponseWriter, r *http.Request) {
					body, err := io.ReadAll(r.Body)
					if err != nil || signature.Verify(body, r.Header.Get(signature.Header), "hush") != nil {
						t.Errorf("a call of %d bytes, %v, has the signature %q, want a good one", len(body), err, r.Header.Get(signature.Header))
					}
					var c call
					if err := json.Unmarshal(body, &c); err != nil {
						t.Error(err)
					}
					calls <- c
				})
				next := func(event string) map[string]any {
					t.Helper()
					select {
					case c := <-calls:
						if c.Event != event || c.UserID != "hookferry" || c.Properties["destination"] != "acme" || c.Properties["reason"] != "refused" {
							t.Fatalf("the operator got %+v, want the event %s of acme", c, event)
						}
						return c.Properties
					case <-afterADay():
						t.Fatalf("the operator did not get the event %s", event)
						return nil
					}
				}
				s := w.start("webhooks: {operations: alerts, whenDisabled: " + tt.when + "}\nsources: [{name: web, keys: [k], destinations: [acme]}]\n" +
					"destinations:\n- {id: acme, endpoints: [{url: '" + gone + "'}]}\n- {id: alerts, secret: hush, endpoints: [{url: '" + alerts + "'}]}\n")
				s.call("k", "one")
				if p := next("Destination Disabled"); p["status"] != 410.0 || p["failingSince"] == "" {
					t.Errorf("the properties are %v, want the status 410 and a time", p)
				}
				s.call("k", "two")
				time.Sleep(time.Second)
				var status api.Status
				if s.read(api.StatusPath, &status); status.Waiting != tt.waiting || status.Dead != tt.dead {
					t.Errorf("%d deliveries wait and %d are dead letters, want %d and %d", status.Waiting, status.Dead, tt.waiting, tt.dead)
				}
				repaired.Store(true)
				if code, text := s.request("POST", s.admin()+"/api/v1/destinations/acme/resume"); code != 200 {
					t.Fatalf("resume: status %d, want 200: %s", code, text)
				}
				next("Destination Enabled")
			})
		})
	}
}
