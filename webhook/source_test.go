package webhook_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
)

// eventFrom returns a track event of this source and messageId.
func eventFrom(t *testing.T, source, id string) event.Event {
	t.Helper()
	encoder, err := event.NewEncoder(event.Envelope{Source: source})
	must(t, err)
	e, err := encoder.Encode(call(id))
	must(t, err)
	return e
}

func eventOf(t *testing.T, id string) event.Event { return eventFrom(t, "", id) }

// Two sources may use the same messageId, and both calls are delivered. Only a repetition by the
// same source is a duplicate.
func TestSourcesDoNotSuppressEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		crm := r.network.Receiver("http://crm.example/", "")
		r.start(webhook.Config{Destinations: []webhook.Destination{{
			ID:              "crm",
			Endpoints:       []webhook.Endpoint{{URL: "http://crm.example/"}},
			StandardSecrets: []signature.Secret{newSecret},
		}}})
		const id = "invoice-1042-paid"
		for range 2 {
			for _, source := range []string{"browser", "backend", ""} {
				must(t, r.ForwardEvents(t.Context(), []string{"crm"}, eventFrom(t, source, id)))
			}
			synctest.Wait()
		}
		time.Sleep(time.Hour) // so that an unwanted request would arrive
		synctest.Wait()
		got := make(map[string]int)
		for _, q := range crm.Requests() {
			if q.JSON["messageId"] != id {
				t.Errorf("got the messageId %v, want %s", q.JSON["messageId"], id)
			}
			got[q.Header.Get("webhook-id")]++
		}
		// These ids must never change, because receivers store them.
		want := map[string]int{id: 1, "TXc86agovbTQ16PYt9L_qN4R": 1, "UFpCUUYYtfxjrrMhgTMT1Zzw": 1}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("number of requests by webhook-id (-want +got):\n%s", diff)
		}
		if n := r.Stats().Duplicates; n != 3 {
			t.Errorf("got %d duplicates, want 3", n)
		}
	})
}

// Different pairs of source and messageId give different delivery IDs, also if the concatenated
// texts are equal.
func TestDeliveryIDsDoNotCollide(t *testing.T) {
	box := newOutbox()
	f, err := webhook.New(webhook.Config{Store: box, Destinations: []webhook.Destination{{
		ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}},
	}}})
	must(t, err)
	var texts []string
	for _, text := range []string{"abcabcabc", "\x00\x01\x02\x03\x03\x02", "1a1b2ab", strings.Repeat("x", 255)} {
		for from := range min(len(text), 8) {
			for to := from + 1; to <= len(text); to += 1 + to/10 {
				texts = append(texts, text[from:to])
			}
		}
	}
	slices.Sort(texts)
	texts = slices.Compact(texts)
	of := make(map[string]string) // from the delivery ID to the pair
	for _, source := range texts {
		for _, id := range texts {
			err := f.ForwardEventsTx(t.Context(), "tx", []string{"crm"}, event.Event{Source: source, ID: id, Type: "track", Body: []byte("{}")})
			must(t, err)
			d, pair := box.last[0], fmt.Sprintf("%q and %q", source, id)
			if d.Source != source || d.MessageID != id || len(d.ID) != 24 {
				t.Fatalf("%s: the delivery has %q, %q and the ID %q, want the pair and an ID of 24 bytes", pair, d.Source, d.MessageID, d.ID)
			}
			if before, taken := of[d.ID]; taken {
				t.Fatalf("%s and %s have the same ID %s, want different ones", before, pair, d.ID)
			}
			of[d.ID] = pair
		}
	}
	if len(of) < 1000 {
		t.Errorf("the test has %d pairs, want at least 1000", len(of))
	}
}

// A delivery has the source, the user and the name of its event. A hash replaces a text of more
// than 255 bytes.
func TestDeliveriesHaveSourceUserAndEventName(t *testing.T) {
	long := strings.Repeat("é", 128)
	const digest = "sha256:e42dd264fd5cf1bc947505b995dceb9ae0a2d2a4c99b4ce5ea02f36526819280" // of long
	for _, tt := range []struct {
		call, source string
		want         webhook.Delivery
	}{
		{`{"type":"track","userId":"u1","anonymousId":"a1","event":"Invoice \u0050aid","name":"no"}`, "shop", webhook.Delivery{Source: "shop", User: "u1", Event: "Invoice Paid"}},
		{`{"type":"track","userId":12345678901234567890,"event":"e"}`, "", webhook.Delivery{User: "12345678901234567890", Event: "e"}},
		{`{"type":"page","anonymousId":"a1","name":"Home"}`, "", webhook.Delivery{Event: "Home"}},
		{`{"type":"screen","userId":"u1","name":"Start","event":"no"}`, "", webhook.Delivery{User: "u1", Event: "Start"}},
		{`{"type":"page","userId":"u1"}`, "", webhook.Delivery{User: "u1"}},
		{`{"type":"identify","userId":"u1","name":"no"}`, "", webhook.Delivery{User: "u1"}},
		{`{"type":"group","userId":"u1","groupId":"g"}`, "", webhook.Delivery{User: "u1"}},
		{`{"type":"alias","userId":"new","previousId":"old"}`, "", webhook.Delivery{User: "new"}},
		{`{"type":"track","userId":"` + long[:254] + `x","event":"` + long[:254] + `x"}`, long[:254] + "x",
			webhook.Delivery{Source: long[:254] + "x", User: long[:254] + "x", Event: long[:254] + "x"}},
		{`{"type":"track","userId":"` + long + `","event":"` + long + `"}`, long, webhook.Delivery{Source: digest, User: digest, Event: digest}},
	} {
		encoder, err := event.NewEncoder(event.Envelope{Source: tt.source})
		must(t, err)
		e, err := encoder.Encode(event.JSON(tt.call))
		if err != nil {
			t.Errorf("Encode(%s) = %v, want nil", tt.call, err)
			continue
		}
		got := webhook.Delivery{Source: e.Source, User: e.User, Event: e.Name}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tt.call, diff)
		}
	}

	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver("http://crm.example/", "", step.Answer(400))
		r.start(webhook.Config{Destinations: []webhook.Destination{{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}}}}})
		deletion := audience.Deletion{ID: "d1", Destinations: []string{"crm"}}
		must(t, audience.New(r.Forwarder, nil).Delete(t.Context(), deletion, audience.Users(slices.Values([]string{long, "gone"}))))
		must(t, r.ForwardEvents(t.Context(), []string{"crm"}, eventFrom(t, "shop", "m1")))
		time.Sleep(time.Minute)
		synctest.Wait()
		got := make(map[string]string)
		for _, d := range r.dead() {
			got[d.User] = d.Type + " " + d.Source + " " + d.Event
			if d.MessageID == "" || (d.MessageID == d.ID) != (d.Source == "") {
				t.Errorf("the dead letter of %s has the ID %q and the MessageID %q, want them equal only without a source", d.User, d.ID, d.MessageID)
			}
		}
		want := map[string]string{digest: "delete  ", "gone": "delete  ", "u1": "track shop Tested"}
		if !maps.Equal(got, want) {
			t.Errorf("dead letters by user: %q, want %q", got, want)
		}
	})
}
