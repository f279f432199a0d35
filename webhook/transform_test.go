package webhook_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
)

// A Transform makes the body of its own destination. What it fails for is counted and logged,
// and the other destination gets the event as it is.
func TestTransformChangesOnlyItsOwnDestination(t *testing.T) {
	ok := func(body string) func(context.Context, event.Event) (event.Event, error) {
		return func(_ context.Context, e event.Event) (event.Event, error) {
			e.Body = []byte(body)
			return e, nil
		}
	}
	for _, tt := range []struct {
		name      string
		transform func(context.Context, event.Event) (event.Event, error)
		want      string // the body; empty if there is none
		logged    string // the error
	}{
		{name: "form of JSON.stringify", transform: ok(` {"b": 1.0, "a": "\u003c", "2":[ ], "1":-0} `), want: `{"1":0,"2":[],"b":1,"a":"<"}`},
		{name: "in place", transform: func(_ context.Context, e event.Event) (event.Event, error) {
			clear(e.Body)
			e.Body = append(e.Body[:0], "{}"...)
			e.ID, e.User = "other", "other"
			return e, nil
		}, want: "{}"},
		{name: "off", transform: func(context.Context, event.Event) (event.Event, error) { return event.Event{Off: true}, nil }},
		{name: "error", transform: func(context.Context, event.Event) (event.Event, error) { return event.Event{}, errors.New("no rate") }, logged: "no rate"},
		{name: "panic", transform: func(context.Context, event.Event) (event.Event, error) { panic("at the disco") }, logged: "webhook: Transform panicked: at the disco"},
		{name: "too late", transform: func(ctx context.Context, e event.Event) (event.Event, error) { <-ctx.Done(); return e, nil },
			logged: "webhook: Transform took longer than 1s"},
		{name: "nothing", transform: ok(""), logged: "webhook: Transform returned a body that is not JSON"},
		{name: "no JSON", transform: ok("{]"), logged: "webhook: Transform returned a body that is not JSON"},
		{name: "no object", transform: ok("[1]"), logged: "webhook: Transform returned a body that is not a JSON object"},
		{name: "too large", transform: ok(`{"a":"` + strings.Repeat("x", 1<<17) + `"}`), logged: "webhook: Transform returned a body of 131080 bytes, the limit is 131072"},
		{name: "larger as it is sent", transform: ok(`[` + strings.Repeat("1e20,", 1<<17/5-1) + `1]`), logged: "the limit is 131072"},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			crm, other := r.network.Receiver("http://crm.example/", ""), r.network.Receiver("http://other.example/", "")
			var logs bytes.Buffer
			r.start(webhook.Config{
				Logger: slog.New(slog.NewTextHandler(&logs, nil)),
				Destinations: []webhook.Destination{
					{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}}, Transform: tt.transform},
					{ID: "other", Endpoints: []webhook.Endpoint{{URL: "http://other.example/"}}},
				}})
			e := eventOf(t, "m1")
			if err := r.ForwardEvents(t.Context(), []string{"crm", "other"}, e); err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			qs, err := other.Wait(t.Context(), 1)
			must(t, err)
			if diff := cmp.Diff(string(e.Body), string(qs[0].Body)); diff != "" {
				t.Errorf("%s: the other destination got (-want +got):\n%s", tt.name, diff)
			}
			synctest.Wait()
			var got string
			for _, q := range crm.Requests() {
				got += string(q.Body)
			}
			if got != tt.want {
				t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
			}
			filtered, failed := int64(0), int64(0)
			switch {
			case tt.logged != "":
				failed = 1
			case tt.want == "":
				filtered = 1
			}
			if s := r.Stats(); s.TransformErrors != failed || s.Filtered != filtered || s.Accepted != 2-failed-filtered {
				t.Errorf("%s: Stats = %+v, want %d failed, %d filtered", tt.name, s, failed, filtered)
			}
			all, err := r.DestinationStats(t.Context())
			must(t, err)
			for _, s := range all {
				if s.Destination == "crm" && (s.TransformErrors != failed || s.Filtered != filtered) || s.Destination == "other" && s.TransformErrors+s.Filtered != 0 {
					t.Errorf("%s: DestinationStats = %+v, want %d failed, %d filtered", tt.name, s, failed, filtered)
				}
			}
			if text := logs.String(); !strings.Contains(text, tt.logged) || (tt.logged != "") != strings.Contains(text, "destination=crm") {
				t.Errorf("%s: logged %s, want %q", tt.name, text, tt.logged)
			}
			// What Try sends is transformed, too.
			exchanges, err := r.Try(t.Context(), webhook.Trial{Event: e, Destination: &webhook.Destination{
				ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}}, Transform: tt.transform}})
			switch {
			case tt.logged != "":
				if err == nil || !strings.Contains(err.Error(), tt.logged) {
					t.Errorf("%s: Try = %v, want %q", tt.name, err, tt.logged)
				}
			case err != nil || exchanges[0].Filtered != (tt.want == "") || tt.want != "" && string(exchanges[0].Body) != tt.want:
				t.Errorf("%s: Try = %+v, %v", tt.name, exchanges, err)
			}
		})
	}
}

// When the caller's context ends during a Transform, nothing is stored, and nothing counts.
func TestTransformEndsWithTheContextOfTheCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		d := webhook.Destination{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}},
			Transform: func(ctx context.Context, e event.Event) (event.Event, error) { <-ctx.Done(); return e, ctx.Err() }}
		r.start(webhook.Config{Destinations: []webhook.Destination{d}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		begin := time.Now()
		if err := r.ForwardEvents(ctx, []string{"crm"}, eventOf(t, "m1"), eventOf(t, "m2")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ForwardEvents = %v", err)
		}
		if took := time.Since(begin); took != time.Second/2 {
			t.Errorf("it took %v", took)
		}
		if s := r.Stats(); s.TransformErrors != 0 || s.Accepted != 0 {
			t.Errorf("Stats = %+v", s)
		}
	})
}

// With a Lookup, Transform needs LookupFilters, because Forward would not ask for it.
func TestTransformNeedsLookupFilters(t *testing.T) {
	d := webhook.Destination{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}},
		Transform: func(_ context.Context, e event.Event) (event.Event, error) { e.Body = []byte(`{"a":1}`); return e, nil }}
	for _, asked := range []bool{false, true} {
		inBubble(t, func(t *testing.T, r *rig) {
			crm := r.network.Receiver("http://crm.example/", "")
			r.start(webhook.Config{LookupFilters: asked, TrustLookup: true, Lookup: func(context.Context, string) (*webhook.Destination, error) { return &d, nil }})
			r.track("m1")
			if asked {
				if qs, err := crm.Wait(t.Context(), 1); err != nil || string(qs[0].Body) != `{"a":1}` {
					t.Errorf("got %v, %v", qs, err)
				}
				return
			}
			time.Sleep(time.Second) // in the bubble
			synctest.Wait()
			held := r.Held()
			if !slices.ContainsFunc(held, func(h webhook.Held) bool { return h.Hold == webhook.HoldInvalid }) || len(crm.Requests()) > 0 {
				t.Errorf("held %s, %d requests", fmt.Sprint(held), len(crm.Requests()))
			}
		})
	}
}
