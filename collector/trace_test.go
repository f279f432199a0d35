package collector_test

import (
	"strings"
	"testing"

	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

func TestPassTraceKeepsTheTraceOfRequests(t *testing.T) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, tt := range []struct {
		name   string
		pass   bool
		parent string
		want   event.Trace
	}{
		{"PassTrace off", false, parent, event.Trace{}},
		{"PassTrace on", true, parent, event.Trace{Parent: parent, State: "a=1"}},
		{"wrong traceparent", true, parent[1:], event.Trace{}},
		{"no traceparent", true, "", event.Trace{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := memqueue.New(memqueue.Config{})
			defer q.Close()
			f, err := webhook.New(webhook.Config{Store: q, Destinations: []webhook.Destination{
				{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/hook"}}},
				{ID: "warehouse", Endpoints: []webhook.Endpoint{{URL: "http://warehouse.example/hook"}}},
			}})
			if err != nil {
				t.Fatal(err)
			}
			h := newHandler(t, f, func(c *collector.Config) { c.PassTrace = tt.pass })
			header := map[string]string{"Authorization": basic, "Traceparent": tt.parent, "Tracestate": "a=1"}
			if a := send(t, h, "POST", "/v1/track", header, strings.NewReader(track)); a.status != 200 {
				t.Fatalf("answered %d %s, want 200", a.status, a.body)
			}
			wants := []webhook.Want{{Destination: "crm", Max: 10}, {Destination: "warehouse", Max: 10}}
			ds, err := q.Fetch(t.Context(), wants, 1<<20, nil)
			if err != nil || len(ds) == 0 {
				t.Fatalf("Fetch = %d deliveries, %v, want some", len(ds), err)
			}
			for _, d := range ds {
				if d.Trace != tt.want {
					t.Errorf("the delivery to %s has the trace %+v, want %+v", d.Destination, d.Trace, tt.want)
				}
			}
		})
	}
}
