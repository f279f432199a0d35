package webhook_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

const (
	parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	state  = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
)

func TestForwardAndTrySendTheTraceOfTheCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		r.start(webhook.Config{Destinations: crm(hook)})
		e := eventOf(t, "m1")
		ctx := event.ContextWithTrace(t.Context(), parent, state)
		for i, tt := range []struct {
			name string
			call func() error
		}{
			{"ForwardEvents", func() error { return r.ForwardEvents(ctx, []string{"crm"}, e) }},
			{"Try", func() error {
				_, err := r.Try(ctx, &crm(hook)[0], e)
				return err
			}},
		} {
			if err := tt.call(); err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			reqs, err := recv.Wait(t.Context(), i+1)
			must(t, err)
			if h := reqs[i].Header; h.Get("Traceparent") != parent || h.Get("Tracestate") != state {
				t.Errorf("%s: got the trace %q, %q, want that of the caller's context", tt.name, h.Get("Traceparent"), h.Get("Tracestate"))
			}
		}
	})
}

// Every attempt sends the trace of the context that was passed to Forward.
func TestTraceIsSentWithEveryAttempt(t *testing.T) {
	for _, tt := range []struct {
		name    string
		context func(context.Context) context.Context
		header  map[string]string
		want    map[string][]string
	}{
		{"no trace", func(ctx context.Context) context.Context { return ctx }, nil, map[string][]string{}},
		{"by ContextWithTrace", func(ctx context.Context) context.Context {
			return event.ContextWithTrace(ctx, parent, state)
		}, nil, map[string][]string{"Traceparent": {parent}, "Tracestate": {state}}},
		{"without a state", func(ctx context.Context) context.Context {
			return event.ContextWithTrace(ctx, parent, "")
		}, nil, map[string][]string{"Traceparent": {parent}}},
		{"invalid", func(ctx context.Context) context.Context {
			return event.ContextWithTrace(ctx, parent[1:], state)
		}, nil, map[string][]string{}},
		{"invalid, in a context that has a trace", func(ctx context.Context) context.Context {
			return event.ContextWithTrace(event.ContextWithTrace(ctx, parent, state), parent[1:], "")
		}, nil, map[string][]string{"Traceparent": {parent}, "Tracestate": {state}}},
		{"static header replaces the trace", func(ctx context.Context) context.Context {
			return event.ContextWithTrace(ctx, parent, state)
		}, map[string]string{"tracestate": "own=1"}, map[string][]string{"Tracestate": {"own=1"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				crm := r.network.Receiver(hook, "", step.Answer(503))
				r.start(webhook.Config{
					Destinations: []webhook.Destination{{ID: "crm", Endpoints: []webhook.Endpoint{{URL: hook, Headers: tt.header}}}},
				})
				must(t, r.Forward(tt.context(t.Context()), "crm", call("m1")))
				time.Sleep(time.Minute)
				reqs, err := crm.Wait(t.Context(), 2)
				must(t, err)
				for _, q := range reqs {
					got := map[string][]string{}
					for _, name := range []string{"Traceparent", "Tracestate"} {
						if v := q.Header[name]; v != nil {
							got[name] = v
						}
					}
					if diff := cmp.Diff(tt.want, got); diff != "" {
						t.Errorf("trace headers of request %d (-want +got):\n%s", q.Number, diff)
					}
				}
			})
		})
	}
}

// Other programs may write to the store. A trace from the store that is not valid adds no header to
// a request.
func TestInvalidTraceFromTheStoreIsNotSent(t *testing.T) {
	for _, trace := range []event.Trace{
		{Parent: parent[:53] + "\r\n", State: state},
		{Parent: parent, State: "a=1\r\nX-Injected: 1"},
		{Parent: parent + "\r\nX-Injected: 1"},
		{State: state},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			crm := r.network.Receiver(hook, "")
			now := time.Now()
			d := webhook.Delivery{Destination: "crm", ID: "m1", Type: "track", Body: []byte("{}"), Accepted: now, Due: now, Trace: trace}
			must(t, r.queue.Put(t.Context(), []store.Put{{Delivery: d}}, make([]store.Result, 1)))
			r.start(webhook.Config{Destinations: []webhook.Destination{{ID: "crm", Endpoints: []webhook.Endpoint{{URL: hook}}}}})
			reqs, err := crm.Wait(t.Context(), 1)
			must(t, err)
			for _, name := range []string{"Traceparent", "Tracestate", "X-Injected"} {
				if v := reqs[0].Header[name]; v != nil {
					t.Errorf("%+v: the request has the header %s: %q, want none", trace, name, v)
				}
			}
		})
	}
}
