package portal_test

import (
	"testing"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook/portal"
)

// A delivery that waits behind others of its key says how many they are, and which one is the first.
func TestADeliverySaysWhatItWaitsBehind(t *testing.T) {
	inWorld(t, portal.Config{}, func(w *world) {
		w.network.Receiver("https://acme.example/", "", step.Answer(503))
		id, _ := w.create("https://acme.example/")
		for _, key := range []string{"inv-1", "inv-2", "inv-1", "inv-1", ""} {
			if _, err := w.forwarder.Send(w.t.Context(), "acme", &event.Custom{Type: "invoice.paid", Key: key, Data: object{"n": 1}}); err != nil {
				w.t.Fatal(err)
			}
		}
		time.Sleep(time.Second) // the first attempts have failed
		log := items(w.do(200, "GET", "/api/v1/deliveries?endpoint="+id, nil))
		var states []any
		for _, d := range log {
			states = append(states, d["state"])
		}
		if len(log) != 5 || states[1] != "behind" || states[2] != "behind" {
			t.Fatalf("the states are %v, want those of the third and the fourth event behind", states)
		}
		last := w.do(200, "GET", "/api/v1/deliveries/"+log[1]["id"].(string), nil)
		behind := last["behind"].(object)
		if first := behind["first"].(object); behind["count"] != 2.0 || first["id"] != log[4]["id"] {
			t.Errorf("the fourth event is behind %v, want 2, of which %v is the first", behind, log[4]["id"])
		}
		if alone := w.do(200, "GET", "/api/v1/deliveries/"+log[3]["id"].(string), nil); alone["behind"] != nil {
			t.Errorf("the second event is behind %v, want nothing", alone["behind"])
		}
		if listed := items(w.do(200, "GET", "/api/v1/deliveries?state=behind&endpoint="+id, nil)); len(listed) != 2 {
			t.Errorf("%d are listed as behind, want 2", len(listed))
		}
	})
}
