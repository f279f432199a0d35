package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

// fakeAdmin starts an admin API that gives fixed answers and records the requests in asked. It
// returns the URL.
func fakeAdmin(t *testing.T, asked *[]string, answers map[string]any) string {
	t.Helper()
	server := httptest.NewServer(fakeAPI(t, asked, answers))
	t.Cleanup(server.Close)
	return server.URL
}

func fakeAPI(t *testing.T, asked *[]string, answers map[string]any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		question := strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Method, r.RequestURI, body))
		*asked = append(*asked, question)
		path, _, _ := strings.Cut(r.RequestURI, "?")
		answer, ok := answers[r.Method+" "+path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			answer = api.Error{Code: api.CodeNotFound, Message: "no " + path + " \x1b[31mhere"}
		}
		if refused, ok := answer.(*api.Error); ok {
			w.WriteHeader(map[string]int{api.CodeUnauthorized: 401}[refused.Code])
		}
		if stream, ok := answer.([]api.Progress); ok {
			for _, p := range stream {
				json.NewEncoder(w).Encode(p)
			}
			return
		}
		json.NewEncoder(w).Encode(answer)
	}
}

// runCommand runs a command in the test process.
func runCommand(ctx context.Context, stdin string, env map[string]string, args ...string) (stdout, stderr string, status int) {
	var out, errs bytes.Buffer
	status = run(ctx, args, process{getenv: func(name string) string { return env[name] }, stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs})
	return out.String(), errs.String(), status
}

func TestAdminCommands(t *testing.T) {
	ended := func(p api.Progress) []api.Progress { p.Ended = true; return []api.Progress{{Done: p.Done / 2}, p} }
	at := time.Now().Add(-90 * time.Minute)
	letter := api.Delivery{Key: "acme:19c5", Names: api.Names{Destination: "acme", ID: "m1", Source: "shop", User: "u1", Event: "Signed Up\x1b", Type: "track"}, State: webhook.StateDead, Reason: "refused", Accepted: at, Ended: at, Tries: 1,
		Attempts: []webhook.Attempt{{At: at, Took: ms(12.3), Try: 1, Endpoint: "http://a.example/hook", Status: 400, Reason: "refused", Answer: "no\x1b]0;x\x07 such"}},
		Body:     json.RawMessage(`{"type":"track","event":"A\u202eB` + "\u202e" + `"}`)}
	waits := api.Delivery{Key: "crm:1", Names: api.Names{Destination: "crm", ID: "m2", Event: "A\x1bB", Type: "track"}, State: webhook.StateWaiting, Accepted: at, Due: time.Now().Add(59500 * time.Millisecond)}
	settled := api.Destination{ID: "acme", State: "ok", Signed: true, Standard: true,
		Endpoints: []api.ShownEndpoint{{URL: "https://a.example/\x1bhook", Headers: []string{"X-Key"}}, {URL: "https://b.example/"}},
		Stored:    &api.Stored{Changed: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), By: "alice"},
		Settings: &api.DestinationSettings{Sources: []string{"app", "web"}, StandardSecrets: 2, Settings: webhook.Settings{Timeout: webhook.Duration(2 * time.Second), Window: webhook.Duration(time.Hour), Schedule: "fast", NetHTTP: true,
			MaxConcurrent: 3, MaxRate: 0.5, MaxBurst: 7, Order: "user", Batch: webhook.Batch{MaxEvents: 50, MaxWait: time.Second}, Filter: webhook.Filter{Include: []string{"track"}, Exclude: []string{"page", "track:Debug *"}}}},
	}
	v := exampleOverview()
	answers := map[string]any{
		"GET /api/v1/status":                                             v.Status,
		"GET /api/v1/sources":                                            api.Page[api.Source]{Items: []api.Source{{Name: "web"}}},
		"GET /api/v1/destinations":                                       api.Destinations{Page: api.Page[api.Destination]{Items: v.Destinations.Items[:1], Total: 1}},
		"POST /api/v1/destinations/acme/pause":                           v.Destinations.Items[0],
		"POST /api/v1/destinations/a%2Fb/pause":                          v.Destinations.Items[0],
		"POST /api/v1/destinations/acme/resume":                          v.Destinations.Items[0],
		"GET /api/v1/destinations/acme":                                  settled,
		"PUT /api/v1/destinations/a%2Fb":                                 settled,
		"PATCH /api/v1/destinations/acme":                                settled,
		"DELETE /api/v1/destinations/acme":                               api.Changed{Changed: 2},
		"POST /api/v1/destinations/acme/secrets":                         api.NewSecret{Secret: "whsec_new", Valid: 2},
		"DELETE /api/v1/destinations/acme/secrets":                       settled,
		"GET /api/v1/deliveries":                                         api.Page[api.Delivery]{Items: []api.Delivery{letter, waits}},
		"GET /api/v1/deliveries/count":                                   api.Count{Count: 1234},
		"GET /api/v1/deliveries/acme:19c5":                               letter,
		"POST /api/v1/deliveries/retry":                                  ended(api.Progress{Done: 1234, Total: 1234}),
		"POST /api/v1/deliveries/discard":                                ended(api.Progress{Done: 1, Claimed: 2}),
		"GET /api/v1/nodes":                                              api.Nodes{Nodes: []api.Node{{Name: "a", Self: true}}},
		"POST /api/v1/erasures":                                          api.Erased{Erased: 2, Claimed: 1},
		"POST /api/v1/deletions":                                         ended(api.Progress{Done: 2}),
		"GET /api/v1/audiences":                                          api.Page[api.Audience]{Items: []api.Audience{{Destination: "acme", Name: "Big Spenders", Trait: "big_spenders", Generation: 3}, {Destination: "crm", Name: "VIP"}}},
		"POST /api/v1/audiences":                                         api.Audience{Destination: "acme", Name: "Big Spenders", Trait: "big_spenders"},
		"PUT /api/v1/destinations/acme/audiences/Big%20Spenders/members": ended(api.Progress{Done: 2, Joined: 2, Left: 1}),
		"GET /api/v1/destinations/acme/audiences/VIP/members":            "u1",
		"POST /api/v1/test": api.TestResult{Exchanges: []api.Exchange{
			{Type: "track", Endpoint: "http://a.example/hook", Headers: []api.Header{{Name: "X-Signature", Value: "0123"}}, Signature: "0123",
				Body: json.RawMessage(`{"type":"track"}`), Status: 204, Got: []api.Header{{Name: "Server", Value: "a\x1b[2Jb"}},
				Outcome: "delivered", Timing: api.Timing{Connected: ms(1.25), FirstByte: ms(20), Total: ms(21)}},
			{Type: "page", Endpoint: "http://a.example/hook", Body: json.RawMessage(`{}`), Status: 0, Reason: "timeout", Error: "deadline exceeded", Outcome: "retryable", Timing: api.Timing{Total: ms(5000)}},
		}},
		"GET /api/v1/events/live": api.Live{Event: &api.Event{At: at, Kind: "accepted", Names: api.Names{Destination: "acme", ID: "m1", Type: "track"},
			Body: json.RawMessage(`{"type":"track","event":"Signed\u0007 Up","userId":"u1"}`)}, Skipped: 3},
	}
	yaml := filepath.Join(t.TempDir(), "acme.yaml")
	if err := os.WriteFile(yaml, []byte("sources: [web]\nendpoints: [{url: https://a.example/}]\ntimeout: 2s # short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "users.txt")
	if err := os.WriteFile(file, []byte("u1\nu2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		args   []string
		stdin  string
		status int
		asked  []string // the requests; nil if they are not compared
		stdout string   // a regular expression
		stderr string
	}{
		{name: "status", args: []string{"status"}, stdout: `(?s)^hookferry v1\.2\.0 on web1/k4m7tq  ready  up 3d4h\n.*\nacme  `},
		{name: "status, watched without a terminal, is printed once", args: []string{"status", "--watch"}, stdout: `(?s)^hookferry [^\n]*\n.*acme [^\n]*\n$`},
		{name: "status as JSON", args: []string{"status", "--json"}, stdout: `^\{"status":\{"version":"v1\.2\.0".*"sources":\[\{"name":"web".*"destinations":\{"items":\[\{"id":"acme".*"total":1,.*\}\n$`,
			asked: []string{"GET /api/v1/status", "GET /api/v1/nodes", "GET /api/v1/sources?limit=500", "GET /api/v1/destinations?limit=20&sort=state"}},
		{name: "status of some destinations", args: []string{"status", "-q", "ac", "--source", "web", "--state", "ok", "--state", "idle", "--sort", "dead", "--limit", "5"},
			asked: []string{"GET /api/v1/status", "GET /api/v1/nodes", "GET /api/v1/destinations?limit=5&q=ac&sort=dead&source=web&state=ok&state=idle"}},
		{name: "status of all destinations", args: []string{"status", "--all"}, asked: []string{"GET /api/v1/status", "GET /api/v1/nodes", "GET /api/v1/destinations?limit=500&sort=state"}},
		{name: "pause", args: []string{"pause", "acme", "a/b"}, stdout: `^acme paused\na/b paused\n$`,
			asked: []string{"POST /api/v1/destinations/acme/pause", "POST /api/v1/destinations/a%2Fb/pause"}},
		{name: "pause, flags after the arguments", args: []string{"pause", "acme", "--json"}, stdout: `^\{"id":"acme",.*\}\n$`},
		{name: "pause, one unknown destination", args: []string{"pause", "nobody", "acme"}, status: 3, stdout: `^acme paused\n$`,
			stderr: `^hookferry pause: nobody: no /api/v1/destinations/nobody/pause \\x1b\[31mhere\n$`},
		{name: "resume", args: []string{"resume", "acme"}, stdout: `^acme resumed\n$`},

		{name: "destination show", args: []string{"destination", "show", "acme"}, stdout: `(?s)^destination      acme\nstate            ok\nendpoint         https://a\.example/\\x1bhook\n` +
			`  headers        X-Key\nendpoint         https://b\.example/\nsources          app, web\nX-Signature      yes\nstandardSecrets  2\ninclude          track\n` +
			`exclude          page, track:Debug \*\ntimeout          2s\nwindow           1h0m0s\nschedule         fast\nnetHTTP          true\nmaxConcurrent    3\n` +
			`maxRate          0\.5\nmaxBurst         7\norder            user\nbatch\.maxEvents  50\nbatch\.maxWait    1s\nchanged          2026-01-02T03:04:05Z by alice\n$`},
		{name: "destination show as JSON", args: []string{"destination", "show", "acme", "--json"}, stdout: `^\{"id":"acme",.*\}\n$`},
		{name: "destination set", args: []string{"destination", "set", "a/b", yaml, "--by", "bob"}, stdout: `^a/b set\n$`,
			asked: []string{`PUT /api/v1/destinations/a%2Fb?by=bob {"endpoints":[{"url":"https://a.example/"}],"sources":["web"],"timeout":"2s"}`}},
		{name: "destination set with no settings", args: []string{"destination", "set", "acme", "-"}, stdin: "- SECRET", status: 1, stderr: `^hookferry destination set: - is not YAML or JSON with keys and values\n$`, asked: []string{}},
		{name: "destination change", args: []string{"destination", "change", "acme", "-", "--json"}, stdin: `{"timeout": null}`, stdout: `^\{"id":"acme",.*\}\n$`,
			asked: []string{`PATCH /api/v1/destinations/acme {"timeout":null}`}},
		{name: "destination disable", args: []string{"destination", "disable", "acme"}, stdout: `^acme disabled\n$`, asked: []string{`PATCH /api/v1/destinations/acme {"disabled":true}`}},
		{name: "destination enable", args: []string{"destination", "enable", "acme"}, stdout: `^acme enabled\n$`, asked: []string{`PATCH /api/v1/destinations/acme {"disabled":false}`}},
		{name: "destination rotate", args: []string{"destination", "rotate", "acme"}, stdout: `^whsec_new\n$`, stderr: `^2 secrets are valid now; 'hookferry destination rotate acme --finish' leaves this one:\n$`,
			asked: []string{"POST /api/v1/destinations/acme/secrets"}},
		{name: "destination rotate --finish", args: []string{"destination", "rotate", "acme", "--finish"}, stdout: `^acme has its newest secret alone\n$`,
			asked: []string{"DELETE /api/v1/destinations/acme/secrets"}},
		{name: "destination delete", args: []string{"destination", "delete", "acme", "--waiting", "discard", "--yes"}, stdout: `^acme deleted\n2 deliveries discarded\n$`,
			asked: []string{"DELETE /api/v1/destinations/acme?waiting=discard"}},
		{name: "destination delete that keeps deliveries", args: []string{"destination", "delete", "acme", "--waiting", "keep", "--yes"}, stdout: `^acme deleted\n`,
			asked: []string{"DELETE /api/v1/destinations/acme?waiting=keep"}},

		{name: "deliveries ls", args: []string{"deliveries", "ls", "--destination", "acme", "--state", "dead", "--state", "waiting", "--type", "track", "--event", "S*"},
			stdout: `^KEY +ACCEPTED  STATE +TYPE   EVENT +USER  TRIES  ID  LAST ANSWER\nacme:19c5  1h30m ago  dead: refused +track  Signed Up\\x1b  u1 +1  m1  400 Bad Request: no\\x1b\]0;x\\a such\ncrm:1 +1h30m ago  waiting, in \d+s +track  A\\x1bB +0  m2  -\n$`,
			asked:  []string{"GET /api/v1/deliveries?destination=acme&event=S%2A&limit=100&order=newest&state=dead&state=waiting&type=track"}},
		{name: "deliveries ls with a limit", args: []string{"deliveries", "ls", "--limit", "1"}, stdout: `^KEY.*\nacme:19c5.*\n$`, stderr: `^There may be more; --limit 1 ends the list here.\n$`},
		{name: "deliveries ls as JSON", args: []string{"deliveries", "ls", "--json"}, stdout: `^\{"key":"acme:19c5".*"body":\{"type":"track","event":"A\\u202eB\\u202e"\}\}\n\{"key":"crm:1".*\}\n$`},
		{name: "deliveries ls by time", args: []string{"deliveries", "ls", "--from", "2026-01-31T12:00:00+01:00", "--to", "2026-02-01T00:00:00.5Z", "--after", "k3"},
			asked: []string{"GET /api/v1/deliveries?after=k3&from=2026-01-31T11%3A00%3A00Z&limit=100&order=newest&to=2026-02-01T00%3A00%3A00.5Z"}},
		{name: "deliveries show", args: []string{"deliveries", "show", "acme:19c5"},
			stdout: `(?s)^key          acme:19c5\nstate        dead\nreason       refused\ndestination  acme\nid           m1\nsource       shop\ntype         track\nevent        Signed Up\\x1b\nuser         u1\naccepted     \S+\nended        \S+\ntries        1\n.*\n  1  \S+  +12ms  http://a.example/hook  400 Bad Request: no\\x1b\]0;x\\a such\n\n\{\n  "type": "track",\n  "event": "A\\u202eB\\u202e"\n\}\n$`},
		{name: "deliveries show as JSON", args: []string{"deliveries", "show", "--json", "acme:19c5"}, stdout: `^\{"key":"acme:19c5".*\}\n$`},
		{name: "deliveries show of an unknown key", args: []string{"deliveries", "show", "acme:19c6"}, status: 3, stderr: `^hookferry deliveries show: no /api/v1/deliveries/acme:19c6`},
		{name: "retry by keys", args: []string{"deliveries", "retry", "a:1", "a:2"}, stdout: `^1,234 deliveries retried\n$`,
			asked: []string{`POST /api/v1/deliveries/retry {"keys":["a:1","a:2"]}`}},
		{name: "retry by flags", args: []string{"deliveries", "retry", "--destination", "acme", "--id", "m1", "--yes"}, stdout: `^1,234 dead letters retried\n$`,
			asked: []string{`GET /api/v1/deliveries/count?destination=acme&id=m1&state=dead`, `POST /api/v1/deliveries/retry {"query":{"destination":["acme"],"id":"m1","state":["dead"]}}`}},
		{name: "retry all as JSON", args: []string{"deliveries", "retry", "--all", "--yes", "--json"},
			stdout: `^\{"done":617\}\n\{"done":1234,"total":1234,"ended":true\}\n$`, asked: []string{`GET /api/v1/deliveries/count?state=dead`, `POST /api/v1/deliveries/retry {"query":{"state":["dead"]}}`}},
		{name: "discard by flags without --yes", args: []string{"deliveries", "discard", "--state", "waiting", "--user", "u1"}, status: 2,
			stderr: `discard 1,234 deliveries\? There is no terminal to answer on: add --yes`, asked: []string{`GET /api/v1/deliveries/count?state=waiting&user=u1`}},
		{name: "discard by keys", args: []string{"deliveries", "discard", "a:1"}, stdout: `^1 delivery discarded\n2 deliveries left: being attempted\n$`},

		{name: "delete users", args: []string{"delete-user", "u1", "u2", "--id", "d1", "--source", "web"}, stdout: `^deletion of 2 users on its way\n$`,
			asked: []string{`POST /api/v1/deletions {"id":"d1","users":["u1","u2"],"sources":["web"]}`}},
		{name: "delete users of a file", args: []string{"delete-user", "--id", "d1", "--source", "web", "--file", file}, stdout: `^deletion of 2 users`,
			asked: []string{"POST /api/v1/deletions?id=d1&source=web u1\nu2"}},
		{name: "delete users of standard input", args: []string{"delete-user", "--file", "-"}, stdin: "u3\n", asked: []string{"POST /api/v1/deletions u3"}, stdout: "deletion"},
		{name: "delete users of a missing file", args: []string{"delete-user", "--file", file + ".not"}, status: 1, stderr: `users.txt.not`, asked: []string{}},

		{name: "erase users", args: []string{"erase-user", "u1", "--yes"}, stdout: `^u1: 2 erased, 1 left that are being attempted; say it again\n$`,
			asked: []string{`POST /api/v1/erasures {"user":"u1"}`}},

		{name: "audience create", args: []string{"audience", "create", "Big Spenders"}, stdout: `^Big Spenders created for acme, as the trait big_spenders\n$`,
			asked: []string{"GET /api/v1/destinations?limit=1", `POST /api/v1/audiences {"destination":"acme","name":"Big Spenders"}`}},
		{name: "audience create with members", args: []string{"audience", "create", "--destination", "acme", "Big Spenders", file},
			stdout: `^Big Spenders created for acme, as the trait big_spenders\nBig Spenders: 2 joined, 1 left\n$`,
			asked: []string{`POST /api/v1/audiences {"destination":"acme","name":"Big Spenders"}`,
				"PUT /api/v1/destinations/acme/audiences/Big%20Spenders/members u1\nu2"}},
		{name: "audience sync", args: []string{"audience", "sync", "Big Spenders", "-"}, stdin: "u9\n", stdout: `^Big Spenders: 2 joined, 1 left\n$`,
			asked: []string{"GET /api/v1/destinations?limit=1", "PUT /api/v1/destinations/acme/audiences/Big%20Spenders/members u9"}},
		{name: "audience sync that may shrink", args: []string{"audience", "sync", "--allow-shrink", "Big Spenders", "-"}, stdin: "u9\n", stdout: `^Big Spenders: 2 joined, 1 left\n$`,
			asked: []string{"GET /api/v1/destinations?limit=1", "PUT /api/v1/destinations/acme/audiences/Big%20Spenders/members?allowShrink=true u9"}},
		{name: "audience ls", args: []string{"audience", "ls"}, stdout: `^DESTINATION  AUDIENCE      TRAIT         SYNCS\nacme +Big Spenders  big_spenders +3\ncrm +VIP +0\n$`},
		{name: "audience ls of one destination", args: []string{"audience", "ls", "--json", "--destination", "crm"}, stdout: `\{"destination":"crm","name":"VIP"\}\n$`,
			asked: []string{"GET /api/v1/audiences?destination=crm&limit=500"}},
		{name: "audience ls by name", args: []string{"audience", "ls", "-q", "Big S"}, stdout: `Big Spenders`, asked: []string{"GET /api/v1/audiences?limit=500&q=Big+S"}},
		{name: "audience members", args: []string{"audience", "members", "VIP"}, stdout: `^"u1"\n$`},
		{name: "audience members as JSON", args: []string{"audience", "members", "VIP", "--json"}, stdout: `^"\\"u1\\""\n$`},

		{name: "test", args: []string{"test", "acme", "--type", "track", "--type", "page"}, status: 1,
			stdout: `^track to http://a.example/hook: answered 204, delivered in 21ms\nconnected at 1\.2ms, answer began at 20ms\n> X-Signature: 0123\n\{\n  "type": "track"\n\}\n< Server: a\\x1b\[2Jb\n` +
				`\npage to http://a.example/hook: no answer, retryable in 5\.0s\ntimeout  deadline exceeded\n\{\}\n$`,
			stderr: `^hookferry test: 1 of 2 requests failed\n$`, asked: []string{`POST /api/v1/test {"destination":"acme","types":["track","page"]}`}},
		{name: "test a URL as JSON", args: []string{"test", "http://b.example", "--json"}, status: 1, stdout: `^\{"type":"track".*\}\n\{"type":"page".*\}\n$`,
			stderr: `failed`, asked: []string{`POST /api/v1/test {"url":"http://b.example"}`}},
		{name: "test the only destination", args: []string{"test"}, status: 1, stdout: "track", stderr: "failed", asked: []string{"GET /api/v1/destinations?limit=1", `POST /api/v1/test {"destination":"acme"}`}},

		{name: "events", args: []string{"events", "--kind", "accepted", "--kind", "dead", "-q", "u1"}, status: 1,
			stdout: `^3 more events left out\n\d\d:\d\d:\d\d\.\d{3}  accepted   acme  track  "Signed\\a Up"  user u1  m1\n$`,
			stderr: `(?s)^What happens on .*ended its answer early`, asked: []string{"GET /api/v1/events/live?kind=accepted&kind=dead&q=u1"}},
		{name: "events with bodies", args: []string{"events", "--body"}, status: 1, stdout: `(?s)m1\n\{\n  "type": "track",\n  "event": "Signed\\u0007 Up",`, stderr: `early`},
		{name: "events as JSON", args: []string{"events", "--json"}, status: 1, stdout: `^\{"event":\{.*\},"skipped":3\}\n$`, stderr: `early`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked := []string{}
			env := map[string]string{"HOOKFERRY_ADMIN": fakeAdmin(t, &asked, answers)}
			stdout, stderr, status := runCommand(t.Context(), tt.stdin, env, tt.args...)
			if status != tt.status {
				t.Errorf("exit status %d, want %d", status, tt.status)
			}
			if !regexp.MustCompile(tt.stdout).MatchString(stdout) {
				t.Errorf("printed\n%s\nwant output that matches %s", stdout, tt.stdout)
			}
			if stderr == "" != (tt.stderr == "") || !regexp.MustCompile(tt.stderr).MatchString(stderr) {
				t.Errorf("printed on standard error\n%s\nwant output that matches %s", stderr, tt.stderr)
			}
			if tt.asked != nil {
				if diff := cmp.Diff(tt.asked, asked); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestErrorsOfAdminRequests(t *testing.T) {
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte("t0ken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Authorization") {
		case "Bearer t0ken":
			io.WriteString(w, "{}")
		case "Bearer html":
			w.WriteHeader(http.StatusBadGateway)
			io.WriteString(w, "<html>")
		default:
			w.WriteHeader(http.StatusUnauthorized)
			json.NewEncoder(w).Encode(api.Error{Code: api.CodeUnauthorized, Message: "no"})
		}
	}))
	defer server.Close()
	for _, tt := range []struct {
		name   string
		env    map[string]string
		args   []string
		status int
		stderr string
	}{
		{name: "no server", args: []string{"--admin", freeAddress(t)}, status: 1,
			stderr: `^hookferry status: no server at 127\.0\.0\.1:\d+: is 'hookferry serve' running\? --admin says where \(.*\)\n$`},
		{name: "no token", status: 1, stderr: `^hookferry status: 127\.0\.0\.1:\d+ wants a token: see --admin-token\n$`},
		{name: "another token", args: []string{"--admin-token", "pa55"}, status: 1, stderr: `^hookferry status: 127\.0\.0\.1:\d+ does not take the token of --admin-token\n$`},
		{name: "the token", args: []string{"--admin-token", "t0ken"}},
		{name: "the token by environment", env: map[string]string{"HOOKFERRY_ADMIN_TOKEN": "t0ken"}},
		{name: "the token by a file", args: []string{"--admin-token", "file:" + tokenFile}},
		{name: "no such file", args: []string{"--admin-token", "file:" + tokenFile + ".not"}, status: 1, stderr: `--admin-token: file:.*\.not: reading the file: no such file or directory\n$`},
		{name: "invalid token", args: []string{"--admin-token", "pa55\nword"}, status: 2, stderr: `--admin-token: has characters that no token has`},
		{name: "a server that is no admin API", args: []string{"--admin-token", "html"}, status: 1, stderr: `answered 502 Bad Gateway, which is not an answer of an admin API`},
		{name: "switched off", env: map[string]string{"HOOKFERRY_ADMIN": "", "HOOKFERRY_ADMIN_LISTEN": "off"}, status: 2, stderr: `: HOOKFERRY_ADMIN_LISTEN: the server's admin API is switched off`},
		{name: "invisible character", args: []string{"--admin", "http://a.example\u200b"}, status: 2, stderr: `--admin: want a URL or host:port; it has a space or an invisible character, U\+200B`},
		{name: "wrong scheme", args: []string{"--admin", "ftp://pa55@a.example"}, status: 2, stderr: `--admin: has the scheme "ftp"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			env := map[string]string{"HOOKFERRY_ADMIN": server.URL}
			maps.Copy(env, tt.env)
			_, stderr, status := runCommand(t.Context(), "", env, append([]string{"status"}, tt.args...)...)
			if status != tt.status || (stderr == "") != (tt.stderr == "") || !regexp.MustCompile(tt.stderr).MatchString(stderr) {
				t.Errorf("exit status %d, printed\n%s\nwant %d and output that matches %s", status, stderr, tt.status, tt.stderr)
			}
			if strings.Contains(stderr, "pa55") || strings.Contains(stderr, "t0ken\"") {
				t.Errorf("the error repeats the secret: %s", stderr)
			}
		})
	}
}

// TestInterruptEndsCommands shows that an interrupt ends long work with an error that says how
// far the work got. It ends a stream of events without an error.
func TestInterruptEndsCommands(t *testing.T) {
	for _, tt := range []struct {
		args   []string
		status int
		stderr string
	}{
		{[]string{"deliveries", "retry", "a"}, 1, "^hookferry deliveries retry: interrupted: 7 were retried; perhaps a few more, on their way\n$"},
		{[]string{"events"}, 0, `^What happens on 127\.0\.0\.1:\d+ from now on, until you interrupt:\n$`},
		{[]string{"status"}, 1, "^hookferry status: interrupted\n$"},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			ctx, interrupt := context.WithCancel(t.Context())
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == api.StatusPath {
					interrupt()
				} else {
					io.WriteString(w, `{"done":7,"skipped":7}`+"\n")
					http.NewResponseController(w).Flush()
				}
				io.ReadAll(r.Body) // net/http notices the end of the client only after the body
				<-r.Context().Done()
			}))
			defer server.Close()
			var errs bytes.Buffer
			env := func(name string) string { return map[string]string{"HOOKFERRY_ADMIN": server.URL}[name] }
			p := process{getenv: env, stdin: strings.NewReader(""), stdout: &writeHook{interrupt}, stderr: &errs}
			if status := run(ctx, append(tt.args, "--json"), p); status != tt.status {
				t.Errorf("exit status %d, want %d", status, tt.status)
			}
			if !regexp.MustCompile(tt.stderr).MatchString(errs.String()) {
				t.Errorf("printed %q, want output that matches %q", errs.String(), tt.stderr)
			}
		})
	}
}

// A writeHook calls do at each write.
type writeHook struct{ do func() }

func (n *writeHook) Write(b []byte) (int, error) {
	n.do()
	return len(b), nil
}
