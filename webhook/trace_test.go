package webhook_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

const (
	parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	state  = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
)

func TestParseTrace(t *testing.T) {
	long := strings.Repeat("x", 240)
	members := func(n int) string {
		var ms []string
		for i := range n {
			ms = append(ms, fmt.Sprintf("k%d=v", i))
		}
		return strings.Join(ms, ",")
	}
	for _, tt := range []struct {
		name          string
		parent, state string
		want          webhook.Trace
	}{
		{"both", parent, state, webhook.Trace{Parent: parent, State: state}},
		{"no state", parent, "", webhook.Trace{Parent: parent}},
		{"not sampled", parent[:53] + "00", "", webhook.Trace{Parent: parent[:53] + "00"}},
		{"unknown flags", parent[:53] + "fe", "", webhook.Trace{Parent: parent[:53] + "fe"}},
		{"no parent", "", state, webhook.Trace{}},
		{"too short", parent[:54], "", webhook.Trace{}},
		{"too long for version 00", parent + "-x", "", webhook.Trace{}},
		{"a later version", "cc" + parent[2:], "", webhook.Trace{Parent: parent}},
		{"a later version with more", "cc" + parent[2:] + "-what-the-future-will-be-like", state, webhook.Trace{Parent: parent, State: state}},
		{"a later version with something else", "cc" + parent[2:] + ".what", "", webhook.Trace{}},
		{"version ff", "ff" + parent[2:], "", webhook.Trace{}},
		{"upper case", strings.ToUpper(parent), "", webhook.Trace{}},
		{"zero trace id", "00-00000000000000000000000000000000-00f067aa0ba902b7-01", "", webhook.Trace{}},
		{"zero parent id", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", "", webhook.Trace{}},
		{"other separators", strings.ReplaceAll(parent, "-", "_"), "", webhook.Trace{}},
		{"a line break", parent[:53] + "\r\n", "", webhook.Trace{}},
		{"white space in the state", parent, " a=1 ,\t,b=2\t,", webhook.Trace{Parent: parent, State: "a=1,b=2"}},
		{"a space within a value", parent, "a=1 2", webhook.Trace{Parent: parent, State: "a=1 2"}},
		{"a line break in the state", parent, "a=1\r\nX-Injected: 1", webhook.Trace{Parent: parent}},
		{"a member without a value", parent, "a=1,b", webhook.Trace{Parent: parent}},
		{"a value with an equals sign", parent, "a=1=2", webhook.Trace{Parent: parent}},
		{"a key in upper case", parent, "A=1", webhook.Trace{Parent: parent}},
		{"a key with a tenant", parent, "0fw529a@vendor=1", webhook.Trace{Parent: parent, State: "0fw529a@vendor=1"}},
		{"a key that is too long", parent, strings.Repeat("k", 257) + "=1", webhook.Trace{Parent: parent}},
		{"a value that is too long", parent, "k=" + strings.Repeat("v", 257), webhook.Trace{Parent: parent}},
		{"bytes beyond ASCII", parent, "k=\u00e9", webhook.Trace{Parent: parent}},
		{"as many members as there may be", parent, members(32), webhook.Trace{Parent: parent, State: members(32)}},
		{"one member more", parent, members(33), webhook.Trace{Parent: parent}},
		{"more than fits", parent, "a=" + long + ",b=" + long + ",c=" + long + ",d=1", webhook.Trace{Parent: parent, State: "a=" + long + ",b=" + long}},
		{"as much as fits", parent, "a=" + long + ",b=" + long + ",c=" + long[:24], webhook.Trace{Parent: parent, State: "a=" + long + ",b=" + long + ",c=" + long[:24]}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := webhook.ParseTrace(tt.parent, tt.state)
			if got != tt.want || ok != (tt.want != webhook.Trace{}) {
				t.Errorf("ParseTrace(%q, %q) = %+v, %t, want %+v", tt.parent, tt.state, got, ok, tt.want)
			}
			if len(got.State) > webhook.MaxTraceState {
				t.Errorf("the state has %d bytes", len(got.State))
			}
		})
	}
}

func FuzzParseTrace(f *testing.F) {
	f.Add(parent, state)
	f.Add("cc"+parent[2:]+"-more", " a=1,,b=2 ")
	f.Add(parent, "k="+strings.Repeat("v", 256)+",l="+strings.Repeat("w", 256))
	f.Fuzz(func(t *testing.T, parent, state string) {
		got, ok := webhook.ParseTrace(parent, state)
		if !ok {
			if got != (webhook.Trace{}) {
				t.Fatalf("no trace is %+v", got)
			}
			return
		}
		if all := got.Parent + got.State; len(got.Parent) != 55 || len(got.State) > webhook.MaxTraceState ||
			strings.ContainsFunc(all, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("%+v may not be in a header", got)
		}
		if again, ok := webhook.ParseTrace(got.Parent, got.State); !ok || again != got {
			t.Fatalf("what was read is read as %+v, %t, want %+v", again, ok, got)
		}
	})
}

// Whatever is accepted, or tried, carries the trace of its caller.
func TestEveryCallHasItsTrace(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		r.start(webhook.Config{Destinations: crm(hook)})
		audience, err := r.Audience("crm", "all")
		if err != nil {
			t.Fatal(err)
		}
		e, err := webhook.EventOf(call("m1"), webhook.Envelope{})
		if err != nil {
			t.Fatal(err)
		}
		ctx := webhook.ContextWithTrace(t.Context(), parent, state)
		for i, tt := range []struct {
			name string
			call func() error
		}{
			{"ForwardEvents", func() error { return r.ForwardEvents(ctx, []string{"crm"}, e) }},
			{"Delete", func() error { return r.Delete(ctx, "u1", "crm") }},
			{"DeleteUsers", func() error {
				_, err := r.DeleteUsers(ctx, webhook.Deletion{ID: "r1", Destinations: []string{"crm"}}, users("u1"))
				return err
			}},
			{"Sync", func() error { _, err := audience.Sync(ctx, users("u1")); return err }},
			{"Try", func() error {
				_, err := r.Try(ctx, webhook.Trial{Destination: &crm(hook)[0], Event: e})
				return err
			}},
		} {
			if err := tt.call(); err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			reqs, err := recv.Wait(t.Context(), i+1)
			if err != nil {
				t.Fatal(err)
			}
			if h := reqs[i].Header; h.Get("Traceparent") != parent || h.Get("Tracestate") != state {
				t.Errorf("%s: the trace is %q, %q", tt.name, h.Get("Traceparent"), h.Get("Tracestate"))
			}
		}
	})
}

// What the context of the caller carries is sent with every attempt.
func TestTraceIsPassedOn(t *testing.T) {
	type key struct{}
	fromConfig := strings.Replace(parent, "4bf9", "aaaa", 1)
	for _, tt := range []struct {
		name    string
		context func(context.Context) context.Context
		header  map[string]string
		want    map[string][]string
	}{
		{"none", func(ctx context.Context) context.Context { return ctx }, nil, map[string][]string{}},
		{"by ContextWithTrace", func(ctx context.Context) context.Context {
			return webhook.ContextWithTrace(ctx, parent, state)
		}, nil, map[string][]string{"Traceparent": {parent}, "Tracestate": {state}}},
		{"without a state", func(ctx context.Context) context.Context {
			return webhook.ContextWithTrace(ctx, parent, "")
		}, nil, map[string][]string{"Traceparent": {parent}}},
		{"not valid", func(ctx context.Context) context.Context {
			return webhook.ContextWithTrace(ctx, parent[1:], state)
		}, nil, map[string][]string{}},
		{"not valid, in one that has a trace", func(ctx context.Context) context.Context {
			return webhook.ContextWithTrace(webhook.ContextWithTrace(ctx, parent, state), parent[1:], "")
		}, nil, map[string][]string{"Traceparent": {parent}, "Tracestate": {state}}},
		{"by Config.Trace", func(ctx context.Context) context.Context {
			return context.WithValue(webhook.ContextWithTrace(ctx, parent, state), key{}, fromConfig)
		}, nil, map[string][]string{"Traceparent": {fromConfig}, "Tracestate": {"by=config"}}},
		{"a static header in its place", func(ctx context.Context) context.Context {
			return webhook.ContextWithTrace(ctx, parent, state)
		}, map[string]string{"tracestate": "own=1"}, map[string][]string{"Tracestate": {"own=1"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *rig) {
				crm := r.network.Receiver(hook, "", webhooktest.Answer(503))
				r.start(webhook.Config{
					Destinations: []webhook.Destination{{ID: "crm", Endpoints: []webhook.Endpoint{{URL: hook, Headers: tt.header}}}},
					Trace: func(ctx context.Context) (string, string) {
						parent, _ := ctx.Value(key{}).(string)
						return parent, "by=config"
					},
				})
				if err := r.Forward(tt.context(t.Context()), "crm", call("m1")); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				reqs, err := crm.Wait(t.Context(), 2)
				if err != nil {
					t.Fatal(err)
				}
				for _, q := range reqs {
					got := map[string][]string{}
					for _, name := range []string{"Traceparent", "Tracestate"} {
						if v := q.Header[name]; v != nil {
							got[name] = v
						}
					}
					if diff := cmp.Diff(tt.want, got); diff != "" {
						t.Errorf("request %d (-want +got)\n%s", q.Number, diff)
					}
				}
			})
		})
	}
}

// A store that others write to puts nothing into requests.
func TestTraceOfTheStoreIsChecked(t *testing.T) {
	for _, trace := range []webhook.Trace{
		{Parent: parent[:53] + "\r\n", State: state},
		{Parent: parent, State: "a=1\r\nX-Injected: 1"},
		{Parent: parent + "\r\nX-Injected: 1"},
		{State: state},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			crm := r.network.Receiver(hook, "")
			now := time.Now()
			d := webhook.Delivery{Destination: "crm", ID: "m1", Type: "track", Body: []byte("{}"), Accepted: now, Due: now, Trace: trace}
			if err := r.queue.Put(t.Context(), []webhook.Put{{Delivery: d}}, make([]webhook.Result, 1)); err != nil {
				t.Fatal(err)
			}
			r.start(webhook.Config{Destinations: []webhook.Destination{{ID: "crm", Endpoints: []webhook.Endpoint{{URL: hook}}}}})
			reqs, err := crm.Wait(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"Traceparent", "Tracestate", "X-Injected"} {
				if v := reqs[0].Header[name]; v != nil {
					t.Errorf("%+v: the request has %s: %q", trace, name, v)
				}
			}
		})
	}
}
