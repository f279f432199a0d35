package webhook_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A Transform changes the body for its own destination. If it fails, the error is counted and
// logged, and its destination does not get the event. Other destinations always get the event
// unchanged.
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
		want      string // the body that arrives; "" if none does
		logged    string // part of the error that is logged; "" for no error
	}{
		{name: "body in the form of JSON.stringify", transform: ok(` {"b": 1.0, "a": "\u003c", "2":[ ], "1":-0} `), want: `{"1":0,"2":[],"b":1,"a":"<"}`},
		{name: "changes the event in place", transform: func(_ context.Context, e event.Event) (event.Event, error) {
			clear(e.Body)
			e.Body = append(e.Body[:0], "{}"...)
			e.ID, e.User = "other", "other"
			return e, nil
		}, want: "{}"},
		{name: "switches the event off", transform: func(context.Context, event.Event) (event.Event, error) { return event.Event{Off: true}, nil }},
		{name: "error", transform: func(context.Context, event.Event) (event.Event, error) { return event.Event{}, errors.New("no rate") }, logged: "no rate"},
		{name: "panic", transform: func(context.Context, event.Event) (event.Event, error) { panic("at the disco") }, logged: "webhook: Transform panicked: at the disco"},
		{name: "too late", transform: func(ctx context.Context, e event.Event) (event.Event, error) { <-ctx.Done(); return e, nil },
			logged: "webhook: Transform took longer than 1s"},
		{name: "empty body", transform: ok(""), logged: "webhook: Transform returned a body that is not JSON"},
		{name: "not JSON", transform: ok("{]"), logged: "webhook: Transform returned a body that is not JSON"},
		{name: "not an object", transform: ok("[1]"), logged: "webhook: Transform returned a body that is not a JSON object"},
		{name: "too large", transform: ok(`{"a":"` + strings.Repeat("x", 1<<17) + `"}`), logged: "webhook: Transform returned a body of 131080 bytes, the limit is 131072"},
		{name: "too large after encoding", transform: ok(`[` + strings.Repeat("1e20,", 1<<17/5-1) + `1]`), logged: "the limit is 131072"},
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
				t.Fatalf("%s: ForwardEvents() = %v, want nil", tt.name, err)
			}
			qs, err := other.Wait(t.Context(), 1)
			must(t, err)
			if diff := cmp.Diff(string(e.Body), string(qs[0].Body)); diff != "" {
				t.Errorf("%s: body at the other destination (-want +got):\n%s", tt.name, diff)
			}
			synctest.Wait()
			var got string
			for _, q := range crm.Requests() {
				got += string(q.Body)
			}
			if got != tt.want {
				t.Errorf("%s: got the body %s, want %s", tt.name, got, tt.want)
			}
			filtered, failed := int64(0), int64(0)
			switch {
			case tt.logged != "":
				failed = 1
			case tt.want == "":
				filtered = 1
			}
			if s := r.Stats(); s.TransformErrors != failed || s.Filtered != filtered || s.Accepted != 2-failed-filtered {
				t.Errorf("%s: Stats() = %+v, want %d failed, %d filtered", tt.name, s, failed, filtered)
			}
			all, err := r.DestinationStats(t.Context())
			must(t, err)
			for _, s := range all {
				if s.Destination == "crm" && (s.TransformErrors != failed || s.Filtered != filtered) || s.Destination == "other" && s.TransformErrors+s.Filtered != 0 {
					t.Errorf("%s: DestinationStats() = %+v, want %d failed, %d filtered", tt.name, s, failed, filtered)
				}
			}
			if text := logs.String(); !strings.Contains(text, tt.logged) || (tt.logged != "") != strings.Contains(text, "destination=crm") {
				t.Errorf("%s: got the log %s, want %q", tt.name, text, tt.logged)
			}
			// Try sends the transformed event as well.
			exchanges, err := r.Try(t.Context(), &webhook.Destination{
				ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}}, Transform: tt.transform}, e)
			switch {
			case tt.logged != "":
				if err == nil || !strings.Contains(err.Error(), tt.logged) {
					t.Errorf("%s: Try() = %v, want %q", tt.name, err, tt.logged)
				}
			case err != nil || exchanges[0].Filtered != (tt.want == "") || tt.want != "" && string(exchanges[0].Body) != tt.want:
				t.Errorf("%s: Try() = %+v, %v; want the body %q, or Filtered if it is empty", tt.name, exchanges, err, tt.want)
			}
		})
	}
}

// An error of one destination's Transform is about that destination alone. The destinations behind
// it count no error, not even one whose filter leaves the event out.
func TestTransformErrorStaysWithItsDestination(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		destination := func(id string) webhook.Destination {
			return webhook.Destination{ID: id, Endpoints: []webhook.Endpoint{{URL: "http://" + id + ".example/"}}}
		}
		fails, takes, leaves, makes := destination("fails"), destination("takes"), destination("leaves"), destination("makes")
		fails.Transform = func(context.Context, event.Event) (event.Event, error) { return event.Event{}, errors.New("no rate") }
		takes.Filter.Include = []string{"track"}
		leaves.Filter.Exclude = []string{"track"}
		makes.Transform = func(_ context.Context, e event.Event) (event.Event, error) { return e, nil }
		taker, maker := r.network.Receiver("http://takes.example/", ""), r.network.Receiver("http://makes.example/", "")
		r.start(webhook.Config{Destinations: []webhook.Destination{fails, leaves, takes, makes}})
		must(t, r.ForwardEvents(t.Context(), []string{"fails", "leaves", "takes", "makes"}, eventOf(t, "m1"), eventOf(t, "m2")))
		for _, recv := range []*webhooktest.Receiver{taker, maker} {
			_, err := recv.Wait(t.Context(), 2)
			must(t, err)
		}
		time.Sleep(time.Second) // outcomes are stored together
		all, err := r.DestinationStats(t.Context())
		must(t, err)
		got := make(map[string][3]int64)
		for _, s := range all {
			got[s.Destination] = [3]int64{s.Delivered, s.Filtered, s.TransformErrors}
		}
		want := map[string][3]int64{"fails": {0, 0, 2}, "takes": {2, 0, 0}, "leaves": {0, 2, 0}, "makes": {2, 0, 0}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("delivered, filtered and failed events (-want +got):\n%s", diff)
		}
	})
}

// If the context of the caller ends during a Transform, nothing is stored or counted.
func TestTransformEndsWithTheContextOfTheCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		d := webhook.Destination{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}},
			Transform: func(ctx context.Context, e event.Event) (event.Event, error) { <-ctx.Done(); return e, ctx.Err() }}
		r.start(webhook.Config{Destinations: []webhook.Destination{d}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		begin := time.Now()
		if err := r.ForwardEvents(ctx, []string{"crm"}, eventOf(t, "m1"), eventOf(t, "m2")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ForwardEvents() = %v, want DeadlineExceeded", err)
		}
		if took := time.Since(begin); took != time.Second/2 {
			t.Errorf("ForwardEvents took %v, want the 500 ms of the context", took)
		}
		if s := r.Stats(); s.TransformErrors != 0 || s.Accepted != 0 {
			t.Errorf("Stats() = %+v, want no errors and none accepted", s)
		}
	})
}
