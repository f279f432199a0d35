package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"

	"github.com/hookferry/analytics/webhook"
)

func exampleOverview() *overview {
	now := time.Date(2026, 11, 21, 22, 40, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	in := func(d time.Duration) time.Time { return now.Add(d) }
	number := func(n int) *int { return &n }
	return &overview{
		Status: api.Status{
			Version: "v1.2.0", Node: "web1/k4m7tq", Started: now.Add(-76*time.Hour - 12*time.Minute), Now: now, Ready: true,
			Config:  api.Config{File: "/etc/hookferry.yaml", Loaded: now.Add(-90 * time.Minute)},
			Calls:   api.Calls{Requests: 1300, Accepted: 123456, Rejected: 2, Limited: 0, Unknown: 1},
			Totals:  api.Totals{Delivered: 123300, Retried: 45, Dead: map[string]int64{"refused": 2, "expired": 1}, InFlight: 4},
			Waiting: 152, Dead: 3, Oldest: ago(3*time.Minute + 20*time.Second),
			Rates: api.Rates{Accepted: 123.4, Delivered: 99.95, Retried: 0.01},
		},
		Destinations: api.Destinations{States: map[string]int{"ok": 1, "paused": 1, "failing": 1}, Page: api.Page[api.Destination]{Total: 3, Items: []api.Destination{
			{ID: "acme", State: "ok", Enabled: true, Waiting: 0, InFlight: 4, Delivered: 120300, DeadLetters: number(0), Rates: api.Rates{Delivered: 99.9},
				Latency: webhook.Latency{Requests: 120300, P50: ms(3.14), P99: ms(41.5)}},
			{ID: "billing-and-invoices-of-the-old-system", State: "paused", Enabled: true, Paused: true, Waiting: 120, Delivered: 3000, Held: &webhook.Hold{Kind: "paused", Since: ago(5 * time.Minute)},
				Latency: webhook.Latency{Requests: 3000, P50: ms(120), P99: ms(1870)}},
			{ID: "crm\x1b[31m", State: "failing", Enabled: true, Retried: 45, Dead: map[string]int64{"refused": 2, "expired": 1}, DeadLetters: number(3),
				Held: &webhook.Hold{Kind: "failing", Since: ago(2 * time.Minute), Until: in(12 * time.Second), Reason: "server_error"}},
		}}},
	}
}

// guideOverview sets v to the overview that docs/cli.md shows.
func guideOverview(v *overview) {
	now := v.Status.Now
	failed := func(status int, answer string, try int, ago, next time.Duration) *webhook.Failure {
		f := &webhook.Failure{Attempt: webhook.Attempt{At: now.Add(-ago), Try: try, Status: status, Answer: answer}}
		if next > 0 {
			f.Due = now.Add(next)
		}
		return f
	}
	v.Status.Config = api.Config{}
	items := v.Destinations.Items
	acme, crm, shop := items[0], items[2], items[2]
	acme.Waiting = 32
	crm.ID, crm.Waiting, crm.Delivered, crm.Dead, crm.Latency = "crm", 120, 3000, map[string]int64{"expired": 1}, items[1].Latency
	crm.DeadLetters, crm.Failure = new(1), failed(503, "come back later", 5, 3*time.Second, 12*time.Second)
	shop.ID, shop.State, shop.Held, shop.Retried, shop.Latency = "shop", "refusing", nil, 0, acme.Latency
	shop.Dead, shop.DeadLetters, shop.Failure = map[string]int64{"refused": 2}, new(2), failed(422, `{"error":"unknown plan"}`, 1, 8*time.Second, 0)
	v.Destinations.Items = []api.Destination{crm, shop, acme}
}

func TestStatusText(t *testing.T) {
	const counts = `
calls       123,456 accepted  2 wrong  0 over the rate  1 without a known key  0 told to try again
deliveries  123,300 delivered  45 retried  3 given up
a second    123 accepted  100.0 delivered  <0.1 retried  0 given up
now         152 waiting  3m20s the oldest  4 on their way  3 dead letters
`
	for _, tt := range []struct {
		name  string
		width int
		edit  func(*overview)
		want  string
	}{
		{name: "no limit", want: `
hookferry v1.2.0 on web1/k4m7tq  ready  up 3d4h
settings of /etc/hookferry.yaml  read 1h30m ago
` + counts + `
delivered, retried and given up: since the start, 3d4h ago
DESTINATION                             STATE    WAITING  IN FLIGHT  DELIVERED  RETRIED  GIVEN UP  DEAD    /S    P50   P99
acme                                    ok             0          4    120,300        0         0     0  99.9  3.1ms  42ms
billing-and-invoices-of-the-old-system  paused       120          0      3,000        0         0     ?     0  120ms  1.9s
  since 5m0s
crm\x1b[31m                             failing        0          0          0       45         3     3     0      -     -
  server_error, since 2m0s, next attempt in 12s
`},
		{name: "80 columns", width: 80, want: `
hookferry v1.2.0 on web1/k4m7tq  ready  up 3d4h
settings of /etc/hookferry.yaml  read 1h30m ago

calls       123,456 accepted  2 wrong  0 over the rate  1 without a known key
            0 told to try again
deliveries  123,300 delivered  45 retried  3 given up
a second    123 accepted  100.0 delivered  <0.1 retried  0 given up
now         152 waiting  3m20s the oldest  4 on their way  3 dead letters

delivered, retried and given up: since the start, 3d4h ago
DESTINATION    STATE    WAITING  DELIVERED  RETRIED  GIVEN UP  DEAD    P50   P99
acme           ok             0    120,300        0         0     0  3.1ms  42ms
billing-and-…  paused       120      3,000        0         0     ?  120ms  1.9s
  since 5m0s
crm\x1b[31m    failing        0          0       45         3     3      -     -
  server_error, since 2m0s, next attempt in 12s
`},
		{name: "40 columns", width: 40, want: `
hookferry v1.2.0 on web1/k4m7tq  ready
up 3d4h
settings of /etc/hookferry.yaml
read 1h30m ago

calls       123,456 accepted  2 wrong
            0 over the rate
            1 without a known key
            0 told to try again
deliveries  123,300 delivered
            45 retried  3 given up
a second    123 accepted
            100.0 delivered
            <0.1 retried  0 given up
now         152 waiting
            3m20s the oldest
            4 on their way
            3 dead letters

delivered, retried and given up: since …
DESTINATION       STATE    WAITING  DEAD
acme              ok             0     0
billing-and-inv…  paused       120     ?
  since 5m0s
crm\x1b[31m       failing        0     3
  server_error, since 2m0s, next attemp…
`},
		{name: "docs/cli.md", width: 80, edit: guideOverview, want: regexp.MustCompile("(?s)```text(\nhookferry v.*?)```").FindStringSubmatch(guide(t, "cli.md"))[1]},
		{name: "more destinations than are listed", edit: func(v *overview) {
			v.Destinations.Total, v.Destinations.States = 10_000, map[string]int{"ok": 9_598, "paused": 1, "failing": 400, "idle": 1}
			v.Destinations.Items = v.Destinations.Items[:1]
		}, want: `
hookferry v1.2.0 on web1/k4m7tq  ready  up 3d4h
settings of /etc/hookferry.yaml  read 1h30m ago
` + counts + `
delivered, retried and given up: since the start, 3d4h ago
DESTINATION  STATE  WAITING  IN FLIGHT  DELIVERED  RETRIED  GIVEN UP  DEAD    /S    P50   P99
acme         ok           0          4    120,300        0         0     0  99.9  3.1ms  42ms

in all      400 failing  1 paused  9,598 ok  1 idle
and 9,999 more: --all lists them
`},
		{name: "several servers", edit: func(v *overview) {
			now := v.Status.Now
			v.Destinations = api.Destinations{}
			v.Nodes = api.Nodes{Shared: true, Nodes: []api.Node{
				{Name: "web1/k4m7tq", Self: true, Seen: now.Add(-time.Second), Version: "v1.2.0", Started: now.Add(-2 * time.Hour), Ready: true,
					InFlight: 4, Delivered: 123300, Rates: api.Rates{Delivered: 99.9}},
				{Name: "web2\x1b/x", Seen: now.Add(time.Second)},
				{Name: "old"},
			}}
		}, want: `
hookferry v1.2.0 on web1/k4m7tq  ready  up 3d4h
settings of /etc/hookferry.yaml  read 1h30m ago
` + counts + `
SERVER               VERSION  STATE       UP  IN FLIGHT  DELIVERED    /S    SEEN
web1/k4m7tq (asked)  v1.2.0   ready     2h0m          4    123,300  99.9  1s ago
web2\x1b/x                    no calls     -          0          0     0  0s ago
old                           no calls     -          0          0     0       -

DESTINATION  STATE  WAITING  IN FLIGHT  DELIVERED  RETRIED  GIVEN UP  DEAD  /S  P50  P99
`},
		{name: "disabled by the server", width: 0, edit: func(v *overview) {
			gone := &webhook.Failure{Attempt: webhook.Attempt{At: v.Status.Now.Add(-time.Minute), Try: 1, Status: 410}}
			v.Destinations = api.Destinations{Page: api.Page[api.Destination]{Total: 1, Items: []api.Destination{
				{ID: "acme", State: "disabled", Enabled: true, DeadLetters: new(0), Failure: gone, Held: &webhook.Hold{Kind: "disabled", Since: v.Status.Now.Add(-time.Minute)}},
			}}}
		}, want: `
hookferry v1.2.0 on web1/k4m7tq  ready  up 3d4h
settings of /etc/hookferry.yaml  read 1h30m ago
` + counts + `
delivered, retried and given up: since the start, 3d4h ago
DESTINATION  STATE     WAITING  IN FLIGHT  DELIVERED  RETRIED  GIVEN UP  DEAD  /S  P50  P99
acme         disabled        0          0          0        0         0     0   0    -    -
  410 Gone
  try 1, 1m0s ago, given up, since 1m0s, 'hookferry resume acme' enables it
`},
		{name: "not ready, and settings with an error", width: 0, edit: func(v *overview) {
			v.Status.Ready, v.Status.Totals.Unkept = false, 7
			v.Status.Config.Error = "hookferry.yaml:3:1: unknown key \"sorces\"\nhookferry.yaml:9:1: unknown key \"x\""
			v.Status.Troubles = []api.Trouble{
				{Kind: api.TroubleRefused, At: v.Status.Now.Add(-12 * time.Second), Error: "webhook: queue is full: no space left on device"},
				{Kind: api.TroubleUnusable, Error: "read-only"},
				{Kind: api.TroubleMaintenance, Step: "janitor", At: v.Status.Now.Add(-5 * time.Minute)},
			}
			v.Status.Unrouted = []string{"web", "app"}
			v.Destinations = api.Destinations{}
		}, want: `
hookferry v1.2.0 on web1/k4m7tq  takes no calls  up 3d4h
settings of /etc/hookferry.yaml  read 1h30m ago
the newest settings are not in use: hookferry.yaml:3:1: unknown key "sorces"
hookferry.yaml:9:1: unknown key "x"
the store refused calls, the last one 12s ago: webhook: queue is full: no space left on device
the store cannot be used: read-only
maintenance of the store keeps failing: janitor, for 5m0s; the log says why
no destination gets the calls of web, app
` + strings.Replace(counts, "3 given up\n", "3 given up  7 not kept\n", 1) + `
DESTINATION  STATE  WAITING  IN FLIGHT  DELIVERED  RETRIED  GIVEN UP  DEAD  /S  P50  P99
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := exampleOverview()
			if tt.edit != nil {
				tt.edit(v)
			}
			got := "\n" + v.lines(screen{width: tt.width})
			if diff := cmp.Diff(strings.Trim(tt.want, "`"), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for line := range strings.Lines(got) {
				if n := columns(strings.TrimSuffix(line, "\n")); tt.width > 0 && n > tt.width {
					t.Errorf("a line takes %d columns, want at most %d: %q", n, tt.width, line)
				}
			}
		})
	}
}

// TestStatusListsAllDestinations shows that status --all reads all pages of the list.
func TestStatusListsAllDestinations(t *testing.T) {
	pages := map[string]api.Page[api.Destination]{
		"":  {Items: []api.Destination{{ID: "a"}}, After: "1", Total: 3},
		"1": {Items: []api.Destination{{ID: "b"}}, After: "2", Total: 3},
		"2": {Items: []api.Destination{{ID: "c"}}, Total: 3},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == api.DestinationsPath {
			json.NewEncoder(w).Encode(pages[r.FormValue(api.ParamAfter)])
		} else {
			fmt.Fprint(w, "{}")
		}
	}))
	defer server.Close()
	out, problems, exit := runCommand(t.Context(), "", map[string]string{"HOOKFERRY_ADMIN": server.URL}, "status", "--all")
	if exit != exitOK || !regexp.MustCompile(`(?s)\na  .*\nb  .*\nc  [^\n]*\n$`).MatchString(out) {
		t.Errorf("exit status %d, printed %q and\n%s\nwant %d and the destinations a, b and c", exit, problems, out, exitOK)
	}
}

// TestStatusWithoutDestinations shows that the JSON of a server without destinations has an empty
// list of them, as the admin API has.
func TestStatusWithoutDestinations(t *testing.T) {
	var asked []string
	answers := map[string]any{"GET /api/v1/status": api.Status{}, "GET /api/v1/nodes": api.Nodes{}, "GET /api/v1/sources": api.Page[api.Source]{},
		"GET /api/v1/destinations": api.Destinations{Page: api.Page[api.Destination]{Items: []api.Destination{}}}}
	out, problems, exit := runCommand(t.Context(), "", map[string]string{"HOOKFERRY_ADMIN": fakeAdmin(t, &asked, answers)}, "status", "--json")
	if exit != exitOK || !strings.Contains(out, `"sources":[],"destinations":{"items":[],`) {
		t.Errorf("exit status %d, printed %q and\n%s\nwant %d and empty lists", exit, problems, out, exitOK)
	}
}

// TestWhySaysWhatDestinationsWaitFor shows the lines below a destination that does not accept
// its deliveries: its last answer, and when the next attempt is due.
func TestWhySaysWhatDestinationsWaitFor(t *testing.T) {
	now := time.Date(2026, 11, 21, 22, 40, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return now.Add(d) }
	failed := func(try, status int, reason, text string, due time.Time) *webhook.Failure {
		a := webhook.Attempt{At: now.Add(-3 * time.Second), Try: try, Status: status, Reason: webhook.Reason(reason), Answer: text}
		if status == 0 {
			a.Answer, a.Error = "", text
		}
		return &webhook.Failure{MessageID: "m1", Attempt: a, Due: due}
	}
	for _, tt := range []struct {
		name string
		of   api.Destination
		want []string
	}{
		{"destination that works", api.Destination{State: api.StateOK, Failure: failed(1, 503, "server_error", "busy", at(-time.Second))}, nil},
		{"nothing sent", api.Destination{State: api.StateIdle}, nil},
		{"refused", api.Destination{State: api.StateRefusing, Failure: failed(1, 422, "refused", "{\n  \"error\": \"unknown plan\"\n}\n", time.Time{})},
			[]string{`422 Unprocessable Entity: { "error": "unknown plan" }`, "try 1, 3s ago, given up"}},
		{"refused with an empty body", api.Destination{State: api.StateRefusing, Failure: failed(1, 404, "refused", "", time.Time{}), Next: at(time.Minute)},
			[]string{"404 Not Found", "try 1, 3s ago, given up"}},
		{"HTML that is cut", api.Destination{State: api.StateRefusing, Failure: failed(1, 403, "refused", "<!DOCTYPE html>\n<html><head><title>403 Forbidden</title></head>\n<body cla", time.Time{})},
			[]string{"403 Forbidden: 403 Forbidden", "try 1, 3s ago, given up"}},
		{"a status without a name", api.Destination{State: api.StateRefusing, Failure: failed(1, 499, "refused", "\x1b[31mno", time.Time{})},
			[]string{`499: \x1b[31mno`, "try 1, 3s ago, given up"}},
		{"retried", api.Destination{State: api.StateRetrying, Failure: failed(2, 503, "server_error", "come back later", at(8*time.Second)), Next: at(time.Second)},
			[]string{"503 Service Unavailable: come back later", "try 2, 3s ago, next attempt in 8s"}},
		{"no answer", api.Destination{State: api.StateRetrying, Failure: failed(1, 0, "timeout", "no answer within 5s", at(time.Second))},
			[]string{"timeout: no answer within 5s", "try 1, 3s ago, next attempt in 1s"}},
		{"held", api.Destination{State: api.StateFailing, Failure: failed(5, 503, "server_error", "busy", at(time.Hour)),
			Held: &webhook.Hold{Kind: "failing", Since: at(-2 * time.Minute), Until: at(12 * time.Second), Reason: "server_error"}},
			[]string{"503 Service Unavailable: busy", "try 5, 3s ago, since 2m0s, next attempt in 12s"}},
		{"held, as an older server reports it", api.Destination{State: api.StateFailing, Held: &webhook.Hold{Kind: "failing", Until: at(12 * time.Second), Reason: "server_error"}},
			[]string{"server_error, next attempt in 12s"}},
		{"given up after many attempts", api.Destination{State: api.StateFailing, Failure: failed(31, 0, "connection", "connection refused", time.Time{})},
			[]string{"connection: connection refused", "try 31, 3s ago, given up"}},
		{"retried now", api.Destination{State: api.StateRetrying, InFlight: 1, Failure: failed(2, 503, "server_error", "busy", at(-4*time.Second))},
			[]string{"503 Service Unavailable: busy", "try 2, 3s ago, an attempt is in flight"}},
		{"due, but without a slot", api.Destination{State: api.StateRetrying, Failure: failed(2, 503, "server_error", "busy", at(400*time.Millisecond))},
			[]string{"503 Service Unavailable: busy", "try 2, 3s ago, the next attempt is due"}},
		{"probed now", api.Destination{State: api.StateFailing, InFlight: 1, Held: &webhook.Hold{Kind: "failing", Reason: "timeout"}},
			[]string{"timeout, an attempt is in flight"}},
		{"failing, and nothing waits", api.Destination{State: api.StateFailing, Held: &webhook.Hold{Kind: "failing", Since: at(-time.Minute), Reason: "timeout"}},
			[]string{"timeout, since 1m0s"}},
		{"looked up now", api.Destination{State: "unknown", InFlight: 1, Held: &webhook.Hold{Kind: "unknown", Until: at(-time.Second)}}, []string{"looked up again now"}},
		{"disabled", api.Destination{State: "disabled", Held: &webhook.Hold{Kind: "disabled", Until: at(26 * time.Second)}}, []string{"looked up again in 26s"}},
		{"paused", api.Destination{State: "paused", Failure: failed(1, 503, "server_error", "busy", time.Time{}), Held: &webhook.Hold{Kind: "paused", Since: at(-5 * time.Minute)}},
			[]string{"since 5m0s"}},
	} {
		if diff := cmp.Diff(tt.want, explain(tt.of, now)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
