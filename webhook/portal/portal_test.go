package portal_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/portal"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A world is a program with two tenants, acme and globex, whose session is a header.
type world struct {
	t         *testing.T
	network   *webhooktest.Network
	store     *hookedStore
	tenants   *tenants.Directory
	forwarder *webhook.Forwarder
	handler   http.Handler
	mu        sync.Mutex // guards changes while requests are answered
	changes   []portal.Change
}

var catalogue = func() *event.Catalogue {
	c, err := event.NewCatalogue(
		event.Type{Type: "invoice.paid", Description: "An invoice was paid.", Example: map[string]any{"id": "inv-7"}},
		event.Type{Type: "invoice.voided", Example: map[string]any{"id": "inv-8"}},
		event.Type{Type: "order.placed", Example: map[string]any{"id": "order-1"}})
	if err != nil {
		panic(err)
	}
	return c
}()

func tenantOf(r *http.Request) (tenant, actor string, err error) {
	switch session := r.Header.Get("Session"); session {
	case "":
		return "", "", errors.New("no session")
	case "intern":
		return "", "", fmt.Errorf("interns: %w", portal.ErrForbidden)
	default:
		return session, "ann@" + session, nil
	}
}

// inWorld calls f in a bubble with a world. The forwarder runs.
func inWorld(t *testing.T, c portal.Config, f func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, network: webhooktest.NewNetwork()}
		defer w.network.Close()
		w.open(c)
		ran := make(chan error, 1)
		go func() { ran <- w.forwarder.Run(context.Background()) }() // until Shutdown
		f(w)
		if err := errors.Join(w.forwarder.Shutdown(context.Background()), <-ran, w.store.Close()); err != nil {
			t.Error(err)
		}
	})
}

func (w *world) open(c portal.Config) {
	var errs [6]error
	w.store = new(hookedStore)
	w.store.Store, errs[0] = memqueue.Open(memqueue.Config{HistoryBytes: 1 << 20})
	w.tenants, errs[1] = tenants.New(w.store, tenants.Config{MaxDestinations: 3})
	w.forwarder, errs[2] = webhook.New(webhook.Config{Store: w.store, Directory: w.tenants, DisableAfter: 2 * time.Hour, DialContext: w.network.DialContext, TLSClientConfig: w.network.TLSClientConfig()})
	for i, id := range []string{"acme", "globex"} {
		_, errs[3+i] = w.tenants.CreateTenant(w.t.Context(), tenants.Tenant{ID: id}, "setup")
	}
	c.Forwarder, c.Tenants, c.Tenant, c.Catalogue = w.forwarder, w.tenants, tenantOf, catalogue
	c.Changed = func(_ context.Context, change portal.Change) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.changes = append(w.changes, change)
	}
	w.handler, errs[5] = portal.Handler(c)
	if err := errors.Join(errs[:]...); err != nil {
		w.t.Fatal(err)
	}
}

// send sends a request of a tenant. The body is JSON, or nil.
func (w *world) send(tenant, method, target string, body any, header ...string) *httptest.ResponseRecorder {
	w.t.Helper()
	var b bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&b).Encode(body); err != nil {
			w.t.Fatal(err)
		}
	}
	r := httptest.NewRequest(method, target, &b)
	r.Header.Set("Session", tenant)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer := httptest.NewRecorder()
	w.handler.ServeHTTP(answer, r)
	return answer
}

type object = map[string]any

// do sends a request of acme that has to be answered with a status, and returns the answer.
func (w *world) do(status int, method, target string, body any) object {
	w.t.Helper()
	answer := w.send("acme", method, target, body)
	if answer.Code != status {
		w.t.Fatalf("%s %s: %d, want %d: %s", method, target, answer.Code, status, answer.Body)
	}
	var o object
	if err := json.Unmarshal(answer.Body.Bytes(), &o); err != nil {
		w.t.Fatalf("%s %s: %v: %s", method, target, err, answer.Body)
	}
	return o
}

// create makes an endpoint of acme, and returns its id and secret.
func (w *world) create(url string, types ...string) (id, secret string) {
	w.t.Helper()
	o := w.do(http.StatusCreated, "POST", "/api/v1/endpoints", object{"url": url, "types": append([]string{}, types...)})
	return o["endpoint"].(object)["id"].(string), o["secret"].(string)
}

func (w *world) forward(tenant, kind string) {
	w.t.Helper()
	if _, err := w.forwarder.Send(w.t.Context(), tenant, &event.Custom{Type: kind, Data: object{"n": 1}}); err != nil {
		w.t.Fatal(err)
	}
}

// items returns the elements of a list.
func items(o object) (all []object) {
	for _, item := range o["items"].([]any) {
		all = append(all, item.(object))
	}
	return all
}

// With StandardRetries, what failed waits for hours after the endpoint is mended, and sending again
// does not leave it out.
func TestSendAgainTakesWhatWaits(t *testing.T) {
	inWorld(t, portal.Config{}, func(w *world) {
		receiver := w.network.Receiver("https://acme.example/hook", "", step.Answer(503))
		id, _ := w.create("https://acme.example/hook", "invoice.*")
		d, err := w.tenants.Get(t.Context(), "acme/"+id)
		if err == nil {
			d.Retries = webhook.StandardRetries()
			d, err = w.tenants.Update(t.Context(), d, "test")
		}
		if err != nil {
			t.Fatal(err)
		}
		w.forward("acme", "invoice.paid")
		time.Sleep(time.Hour)
		receiver.SetScript(step.Answer(204))
		before := len(receiver.Requests())
		lines := strings.Split(strings.TrimSpace(w.send("acme", "POST", "/api/v1/endpoints/"+id+"/resend", object{"since": time.Now().Add(-2 * time.Hour)}).Body.String()), "\n")
		if last := lines[len(lines)-1]; last != `{"changed":1,"claimed":0,"total":1,"ended":true}` {
			t.Errorf("sending again ended with %s", last)
		}
		time.Sleep(time.Second)
		if n := len(receiver.Requests()) - before; n != 1 {
			t.Errorf("%d requests a second after sending again, want 1", n)
		}
	})
}

func TestFailingEndpointIsUnderstoodMendedAndSentAgain(t *testing.T) {
	inWorld(t, portal.Config{}, func(w *world) {
		receiver := w.network.Receiver("https://acme.example/hook", "", step.Answer(422).WithBody("unknown invoice").Times(2), step.Answer(200))
		id, secret := w.create("https://acme.example/hook", "invoice.*")
		if !strings.HasPrefix(secret, "whsec_") {
			t.Errorf("the secret is %q", secret)
		}
		path := "/api/v1/endpoints/" + id
		if got := w.do(200, "GET", path, nil); got["state"] != "idle" || got["url"] != "https://acme.example/hook" {
			t.Errorf("a new endpoint is %v", got)
		}
		w.forward("acme", "invoice.paid")
		w.forward("acme", "order.placed")
		time.Sleep(5 * time.Second)
		got := w.do(200, "GET", path, nil)
		if failure, _ := got["failure"].(object); got["state"] != "refusing" || failure["answer"] != "unknown invoice" || failure["status"] != 422.0 {
			t.Errorf("an endpoint that refuses is %v", got)
		}
		dead := items(w.do(200, "GET", "/api/v1/deliveries?state=dead&endpoint="+id, nil))
		if len(dead) != 1 || dead[0]["type"] != "invoice.paid" || dead[0]["reason"] != "refused" {
			t.Fatalf("failed deliveries: %v", dead)
		}
		whole := w.do(200, "GET", "/api/v1/deliveries/"+dead[0]["id"].(string), nil)
		if body := whole["body"].(object); body["type"] != "invoice.paid" || len(whole["attempts"].([]any)) != 1 {
			t.Errorf("the delivery is %v", whole)
		}

		tests := items(w.do(200, "POST", path+"/test", object{"type": "invoice.voided"}))
		if len(tests) != 1 || tests[0]["status"] != 422.0 || tests[0]["answer"] != "unknown invoice" || tests[0]["body"].(object)["data"].(object)["id"] != "inv-8" {
			t.Errorf("a test: %v", tests)
		}
		if last := receiver.Requests()[1]; !strings.HasPrefix(last.Header.Get("webhook-id"), "test_") {
			t.Errorf("a test has the webhook-id %q", last.Header.Get("webhook-id"))
		}

		lines := strings.Split(strings.TrimSpace(w.send("acme", "POST", path+"/resend", object{"since": time.Now().Add(-time.Minute)}).Body.String()), "\n")
		if last := lines[len(lines)-1]; last != `{"changed":1,"claimed":0,"total":1,"ended":true}` || lines[0] != `{"changed":0,"claimed":0,"total":1}` {
			t.Errorf("sending again ended with %s", last)
		}
		time.Sleep(5 * time.Second)
		if got := w.do(200, "GET", path, nil); got["state"] != "ok" || got["failure"] != nil {
			t.Errorf("a mended endpoint is %v", got)
		}
		delivered := items(w.do(200, "GET", "/api/v1/deliveries?state=delivered&endpoint="+id, nil))
		if len(delivered) != 1 {
			t.Fatalf("delivered: %v", delivered)
		}
		if p := w.do(200, "POST", "/api/v1/deliveries/"+delivered[0]["id"].(string)+"/resend", object{}); p["changed"] != 1.0 {
			t.Errorf("sending one again: %v", p)
		}
		time.Sleep(5 * time.Second)
		if n := len(receiver.Requests()); n != 4 {
			t.Errorf("%d requests, want 4", n)
		}
		var done []portal.Action
		for _, c := range w.changes {
			if done = append(done, c.Action); c.Tenant != "acme" || c.Actor != "ann@acme" || c.Destination != "acme/"+id {
				t.Errorf("the change %+v, want it of acme", c)
			}
		}
		if got := fmt.Sprint(done); got != "[create test resend resend]" {
			t.Errorf("changes %s", got)
		}
	})
}

func TestEndpointIsChangedDisabledRotatedAndDeleted(t *testing.T) {
	inWorld(t, portal.Config{Overlap: time.Hour}, func(w *world) {
		w.network.Receiver("https://old.example/", "")
		receiver := w.network.Receiver("https://new.example/", "")
		id, first := w.create("https://ann:hush@old.example/")
		path := "/api/v1/endpoints/" + id
		was := w.do(200, "GET", path, nil)
		if was["url"] != "https://ann:xxxxx@old.example/" {
			t.Errorf("the URL is shown as %v", was["url"])
		}
		// The URL as it was shown changes nothing, so the password stays.
		now := w.do(200, "PATCH", path, object{"version": was["version"], "url": was["url"], "description": "CRM", "types": []string{"order.placed"}})
		d, err := w.tenants.Get(t.Context(), "acme/"+id)
		if err != nil || d.Endpoints[0].URL != "https://ann:hush@old.example/" || d.Name != "CRM" || d.Changes[0].By != "ann@acme" {
			t.Errorf("the destination is %+v, %v", d, err)
		}
		if answer := w.send("acme", "PATCH", path, object{"version": was["version"], "description": "late"}); answer.Code != http.StatusConflict {
			t.Errorf("a change of an old version: %d, want 409", answer.Code)
		}
		now = w.do(200, "PATCH", path, object{"version": now["version"], "url": "https://new.example/", "enabled": false})
		if now["state"] != "disabled" || now["enabled"] != false {
			t.Errorf("a disabled endpoint is %v", now)
		}
		w.forward("acme", "order.placed")
		time.Sleep(5 * time.Second)
		if n := len(receiver.Requests()); n != 0 {
			t.Errorf("a disabled endpoint got %d requests", n)
		}
		w.do(200, "PATCH", path, object{"version": now["version"], "enabled": true})
		time.Sleep(5 * time.Second)
		rotated := w.do(200, "POST", path+"/rotate", object{})
		ends := rotated["endpoint"].(object)["oldSecrets"].([]any)
		if rotated["secret"] == first || len(ends) != 1 {
			t.Errorf("a rotated secret: %v", rotated)
		}
		w.forward("acme", "order.placed")
		time.Sleep(5 * time.Second)
		for i, r := range receiver.Requests() {
			if n := len(strings.Fields(r.Header.Get("webhook-signature"))); i > 1 || n != i+1 {
				t.Errorf("request %d has %d signatures, want one before the secret was rotated, and two after", i, n)
			}
		}
		d, _ = w.tenants.Get(t.Context(), "acme/"+id)
		d.Filter.Include = []string{"*"}
		d.Batch = webhook.Batch{MaxEvents: 10, MaxWait: time.Second}
		if _, err := w.tenants.Update(t.Context(), d, "setup"); err != nil {
			t.Fatal(err)
		}
		now = w.do(200, "GET", path, nil)
		if batch := now["batch"].(object); len(batch) != 2 || batch["maxEvents"] != 10.0 || batch["maxWait"] != "1s" {
			t.Errorf("the batches are said to be %v", batch)
		}
		if len(now["types"].([]any)) != 0 {
			t.Errorf("the types are %v, want none, which are all", now["types"])
		}
		w.do(200, "DELETE", path+"?version="+now["version"].(string), nil)
		w.do(404, "GET", path, nil)
	})
}

// walk has a request for every route, in the order of portal.Patterns, below the ids of an endpoint, a
// delivery and cursors.
func walk(endpoint, delivery, cursor, version string) []struct {
	method, target string
	body           any
} {
	e, d := "/api/v1/endpoints/"+endpoint, "/api/v1/deliveries/"+delivery
	return []struct {
		method, target string
		body           any
	}{
		{"GET", "/api/v1/endpoints?after=" + endpoint, nil},
		{"GET", e, nil},
		{"PATCH", e, object{"version": version, "description": "mine"}},
		{"PATCH", e, object{"version": version, "enabled": false}},
		{"DELETE", e + "?version=" + version, nil},
		{"POST", e + "/rotate", object{}},
		{"POST", e + "/test", object{"type": "invoice.paid"}},
		{"POST", e + "/resend", object{"since": time.Time{}}},
		{"GET", "/api/v1/deliveries?endpoint=" + endpoint, nil},
		{"GET", "/api/v1/deliveries?state=dead&endpoint=" + endpoint, nil},
		{"GET", "/api/v1/deliveries?endpoint=" + endpoint + "&after=" + cursor, nil},
		{"GET", d, nil},
		{"POST", d + "/resend", object{}},
	}
}

func TestForeignAndUnknownThingsAreAnsweredAlike(t *testing.T) {
	inWorld(t, portal.Config{}, func(w *world) {
		receiver := w.network.Receiver("https://acme.example/hook", "", step.Answer(400))
		id, _ := w.create("https://acme.example/hook")
		w.forward("acme", "invoice.paid")
		w.forward("acme", "invoice.paid")
		time.Sleep(5 * time.Second)
		page := w.do(200, "GET", "/api/v1/deliveries?limit=1&endpoint="+id, nil)
		before := w.everything()
		version := w.do(200, "GET", "/api/v1/endpoints/"+id, nil)["version"].(string)
		w.changes = nil

		unknown := strings.Repeat("0", len(id))
		delivery := items(page)[0]["id"].(string)
		foreign := walk(id, delivery, page["after"].(string), version)
		nobodys := walk(unknown, unknown+delivery[len(id):], "AAAAAAAAAAAAAAAAAAAAAA", version)
		for i := range foreign {
			a := w.send("globex", foreign[i].method, foreign[i].target, foreign[i].body)
			b := w.send("globex", nobodys[i].method, nobodys[i].target, nobodys[i].body)
			if a.Code != b.Code || a.Body.String() != b.Body.String() || fmt.Sprint(a.Header()) != fmt.Sprint(b.Header()) {
				t.Errorf("%s %s: %d %s of another tenant, %d %s of nobody", foreign[i].method, foreign[i].target, a.Code, a.Body, b.Code, b.Body)
			}
			if strings.Contains(a.Body.String(), id) || strings.Contains(a.Body.String(), "acme") {
				t.Errorf("%s %s tells of another tenant: %s", foreign[i].method, foreign[i].target, a.Body)
			}
		}
		// Ids cannot lead out of the tenant.
		for _, name := range []string{"..%2Facme%2F" + id, "acme%2F" + id, "%2e%2e", id + "%00", "*"} {
			for _, r := range walk(name, name+".1", "", version) {
				if a := w.send("globex", r.method, r.target, r.body); a.Code == http.StatusOK {
					t.Errorf("%s %s: %s", r.method, r.target, a.Body)
				}
			}
		}
		time.Sleep(5 * time.Second)
		if after := w.everything(); after != before {
			t.Errorf("requests of another tenant changed\n%s\nto\n%s", before, after)
		}
		if n := len(receiver.Requests()); n != 2 || len(w.changes) != 0 {
			t.Errorf("%d requests and the changes %v, want 2 and none", n, w.changes)
		}
	})
}

// everything is all that acme has.
func (w *world) everything() string {
	var b strings.Builder
	for d, err := range w.tenants.List(w.t.Context(), "acme", "") {
		fmt.Fprintln(&b, d, err)
	}
	for r, err := range w.forwarder.Deliveries(w.t.Context(), webhook.Query{}) {
		fmt.Fprintln(&b, r, err)
	}
	return b.String()
}

// walk has every route, except those of things without an id.
func TestWalkHasEveryRoute(t *testing.T) {
	mux := http.NewServeMux()
	walked := make(map[string]bool)
	for _, pattern := range portal.Patterns() {
		mux.HandleFunc(pattern, func(_ http.ResponseWriter, r *http.Request) { walked[r.Pattern] = true })
	}
	for _, r := range walk("a", "a.1", "", "1") {
		mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(r.method, r.target, nil))
	}
	for _, pattern := range portal.Patterns() {
		of := pattern == "GET /api/v1/settings" || pattern == "GET /api/v1/types" || pattern == "POST /api/v1/endpoints"
		if walked[pattern] == of {
			t.Errorf("%s: walked is %v", pattern, walked[pattern])
		}
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	inWorld(t, portal.Config{}, func(w *world) {
		for _, tt := range []struct {
			name, tenant, method, target string
			body                         any
			header                       []string
			status                       int
			code                         string
		}{
			{"without a session", "", "GET", "/api/v1/endpoints", nil, nil, 401, "unauthorized"},
			{"somebody else", "intern", "GET", "/api/v1/endpoints", nil, nil, 403, "forbidden"},
			{"a page of another site", "acme", "POST", "/api/v1/endpoints", object{}, []string{"Sec-Fetch-Site", "cross-site"}, 403, "cross_origin"},
			{"a page of a site beside it", "acme", "DELETE", "/api/v1/endpoints/a?version=1", nil, []string{"Sec-Fetch-Site", "same-site"}, 403, "cross_origin"},
			{"an old browser for another site", "acme", "POST", "/api/v1/endpoints", object{}, []string{"Origin", "https://evil.example"}, 403, "cross_origin"},
			{"a form", "acme", "POST", "/api/v1/endpoints", object{}, []string{"Content-Type", "text/plain"}, 415, "media_type"},
			{"a large body", "acme", "POST", "/api/v1/endpoints", object{"description": strings.Repeat("x", 70_000)}, nil, 413, "too_large"},
			{"another field", "acme", "POST", "/api/v1/endpoints", object{"tenant": "globex"}, nil, 400, "malformed"},
			{"a log of no endpoint", "acme", "GET", "/api/v1/deliveries", nil, nil, 422, "invalid"},
			{"a log of an unknown endpoint", "acme", "GET", "/api/v1/deliveries?endpoint=a/b", nil, nil, 404, "not_found"},
			{"another path", "acme", "GET", "/api/v1/nothing", nil, nil, 404, "not_found"},
		} {
			answer := w.send(tt.tenant, tt.method, tt.target, tt.body, tt.header...)
			if answer.Code != tt.status || !strings.Contains(answer.Body.String(), `"code":"`+tt.code+`"`) {
				t.Errorf("%s: %d %s, want %d and the code %s", tt.name, answer.Code, answer.Body, tt.status, tt.code)
			}
			for name, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"} {
				if got := answer.Header().Get(name); got != want {
					t.Errorf("%s: the header %s is %q, want %q", tt.name, name, got, want)
				}
			}
		}
		if answer := w.send("", "GET", "/", nil); answer.Code != 401 || !strings.Contains(answer.Body.String(), "<h1>Sign in") {
			t.Errorf("the page without a session: %d %s", answer.Code, answer.Body)
		}
	})
}

func TestFormsNameTheirFields(t *testing.T) {
	inWorld(t, portal.Config{Ports: []int{443, 8443}}, func(w *world) {
		for _, tt := range []struct {
			name         string
			body         object
			field, wants string
		}{
			{"no URL", object{}, "url", "is required"},
			{"no URL at all", object{"url": "acme"}, "url", "has to begin with https://"},
			{"another scheme", object{"url": "http://acme.example/"}, "url", "has to begin with https://"},
			{"another port", object{"url": "https://acme.example:22/"}, "url", "has the port 22"},
			{"a private address", object{"url": "https://10.0.0.1/"}, "url", "not a public address"},
			{"an unknown type", object{"url": "https://acme.example/", "types": []string{"invoice.lost"}}, "types", `"invoice.lost" is no type`},
			{"a pattern of nothing", object{"url": "https://acme.example/", "types": []string{"lead.*"}}, "types", `"lead.*" is no type`},
			{"a long description", object{"url": "https://acme.example/", "description": strings.Repeat("x", 300)}, "description", "limit"},
		} {
			answer := w.do(422, "POST", "/api/v1/endpoints", tt.body)
			fields := answer["fields"].([]any)
			if f := fields[0].(object); len(fields) != 1 || f["field"] != tt.field || !strings.Contains(f["message"].(string), tt.wants) {
				t.Errorf("%s: %v, want %s: %s", tt.name, fields, tt.field, tt.wants)
			}
		}
		for range 3 {
			w.create("https://acme.example:8443/")
		}
		if answer := w.do(409, "POST", "/api/v1/endpoints", object{"url": "https://acme.example/"}); answer["code"] != "too_many" {
			t.Errorf("a fourth endpoint: %v", answer)
		}
	})
}

func TestEmbedderForbidsActions(t *testing.T) {
	inWorld(t, portal.Config{ReadOnly: true}, func(w *world) {
		for _, pattern := range portal.Patterns() {
			method, path, _ := strings.Cut(pattern, " ")
			target := strings.NewReplacer("{endpoint}", "a", "{delivery}", "a.1").Replace(path)
			if answer := w.send("acme", method, target, nil); (answer.Code == http.StatusForbidden) != (method != "GET") {
				t.Errorf("%s of a portal to read: %d %s", pattern, answer.Code, answer.Body)
			}
		}
	})
	inWorld(t, portal.Config{Forbid: []portal.Action{portal.ActionDelete}}, func(w *world) {
		id, _ := w.create("https://acme.example/")
		w.do(403, "DELETE", "/api/v1/endpoints/"+id+"?version=1", nil)
		if got := fmt.Sprint(w.do(200, "GET", "/api/v1/settings", nil)["actions"]); got != "[create change rotate test resend]" {
			t.Errorf("the actions are %s", got)
		}
	})
}

func TestTestsAndResendsHaveLimitsForEachTenant(t *testing.T) {
	inWorld(t, portal.Config{TestsPerMinute: 2}, func(w *world) {
		w.network.Receiver("https://acme.example/", "")
		id, _ := w.create("https://acme.example/")
		test := func(want int) {
			t.Helper()
			if answer := w.send("acme", "POST", "/api/v1/endpoints/"+id+"/test", object{"type": "invoice.paid"}); answer.Code != want {
				t.Errorf("a test: %d %s, want %d", answer.Code, answer.Body, want)
			}
		}
		test(200)
		test(200)
		test(429)
		time.Sleep(time.Minute)
		test(200)
	})
}

// Two requests whose bodies do not come have both turns of their tenant, and 62 others wait behind them.
func TestFewRequestsOfATenantAreAnsweredAtOnce(t *testing.T) {
	inWorld(t, portal.Config{}, func(w *world) {
		var bodies []*io.PipeWriter
		statuses := make(chan int, 64)
		ask := func(ctx context.Context, method string, body io.Reader) {
			r := httptest.NewRequestWithContext(ctx, method, "/api/v1/endpoints", body)
			r.Header.Set("Session", "acme")
			r.Header.Set("Content-Type", "application/json")
			go func() {
				answer := httptest.NewRecorder()
				w.handler.ServeHTTP(answer, r)
				statuses <- answer.Code
			}()
		}
		for range 2 {
			body, sent := io.Pipe()
			bodies = append(bodies, sent)
			ask(w.t.Context(), "POST", body)
		}
		synctest.Wait()
		gone, cancel := context.WithCancel(w.t.Context())
		ask(gone, "GET", nil)
		for range 61 {
			ask(w.t.Context(), "GET", nil)
		}
		synctest.Wait()
		if n := len(statuses); n != 0 {
			t.Errorf("%d requests were answered before their turn", n)
		}
		if answer := w.send("acme", "GET", "/api/v1/endpoints", nil); answer.Code != 429 || answer.Header().Get("Retry-After") != "1" {
			t.Errorf("one request too many: %d, want 429", answer.Code)
		}
		if answer := w.send("globex", "GET", "/api/v1/endpoints", nil); answer.Code != 200 {
			t.Errorf("a request of another tenant: %d, want 200", answer.Code)
		}
		cancel() // nobody waits for its answer any more, so another may wait
		synctest.Wait()
		<-statuses
		ask(w.t.Context(), "GET", nil)
		for _, b := range bodies {
			b.Close()
		}
		counts := make(map[int]int)
		for range 64 {
			counts[<-statuses]++
		}
		if counts[200] != 62 || counts[400] != 2 {
			t.Errorf("the statuses are %v, want 62 times 200 and 2 times 400", counts)
		}
	})
}

func TestPagesOfDeliveriesAndEndpoints(t *testing.T) {
	inWorld(t, portal.Config{}, func(w *world) {
		w.network.Receiver("https://acme.example/", "")
		var ids []string
		for range 3 {
			id, _ := w.create("https://acme.example/", "invoice.paid")
			ids = append(ids, id)
			time.Sleep(time.Millisecond)
		}
		for range 7 {
			w.forward("acme", "invoice.paid")
		}
		time.Sleep(5 * time.Second)
		for _, tt := range []struct {
			list string
			want []int
		}{
			{"/api/v1/endpoints?limit=2", []int{2, 1}},
			{"/api/v1/deliveries?limit=3&endpoint=" + ids[1], []int{3, 3, 1}},
		} {
			seen := make(map[any]bool)
			after := ""
			for i, n := range tt.want {
				page := w.do(200, "GET", tt.list+"&after="+after, nil)
				for _, item := range items(page) {
					seen[item["id"]] = true
				}
				after, _ = page["after"].(string)
				if len(items(page)) != n || (after == "") != (i == len(tt.want)-1) {
					t.Errorf("page %d of %s has %d elements and after=%q, want %d", i, tt.list, len(items(page)), after, n)
				}
			}
			if sum := tt.want[0] * 7 / 3; tt.want[0] == 3 && len(seen) != sum || tt.want[0] == 2 && len(seen) != 3 {
				t.Errorf("%s: %d different elements", tt.list, len(seen))
			}
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	_, err := portal.Handler(portal.Config{
		Name: strings.Repeat("x", 61), Logo: []byte("GIF89a"), Theme: "blue", Accent: "#cccccc", AccentDark: "blue", Language: "en us",
		Forbid: []portal.Action{"jump"}, Schemes: []string{"ftp"}, Ports: []int{0}, TestsPerMinute: -1, ResendsPerMinute: -1, Overlap: time.Second,
	})
	if err == nil {
		t.Fatal("a wrong Config was taken")
	}
	for _, want := range []string{
		"Forwarder: is required", "Tenants: is required", "Tenant: is required", "Name: has 61 bytes", "Logo: is none of", `Theme: is "blue"`,
		"Accent: is #cccccc, whose contrast to the page is 1.5", `AccentDark: is "blue"`, `Language: is "en us"`, `Forbid: has "jump"`, `Schemes: has "ftp"`,
		"Ports: has 0", "TestsPerMinute: is -1", "ResendsPerMinute: is -1", "Overlap: is 1s",
	} {
		if !strings.Contains(err.Error(), "portal: "+want) {
			t.Errorf("the error lacks %q:\n%v", want, err)
		}
	}
}

func TestOpenAPIDescribesEveryRoute(t *testing.T) {
	inWorld(t, portal.Config{}, func(w *world) {
		document := w.do(200, "GET", "/api/v1/openapi.json", nil)
		described := make(map[string]bool)
		for path, methods := range document["paths"].(object) {
			for method := range methods.(object) {
				if method != "parameters" {
					described[strings.ToUpper(method)+" "+path] = true
				}
			}
		}
		for _, pattern := range portal.Patterns() {
			if !described[pattern] {
				t.Errorf("the document lacks %s", pattern)
			}
			delete(described, pattern)
		}
		if len(described) != 0 {
			t.Errorf("there are no routes for %v", described)
		}
	})
}
