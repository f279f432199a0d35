package server

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/tenants"
)

// TestPublishStoresForTheDestinationsOfATenant sends events with a key of the settings and with a token,
// restarts the server, and checks the signature of what arrives.
func TestPublishStoresForTheDestinationsOfATenant(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const trace = "00-0af7651916cd43dd8448eb211c80319c-"
		arrived, secret := make(chan string, 100), make(chan signature.Secret, 1)
		url := w.receiver(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			key := <-secret
			if err := signature.VerifyStandard(body, r.Header, 0, key); err != nil {
				t.Error(err)
			}
			secret <- key
			if at := r.Header.Get("traceparent"); !strings.HasPrefix(at, trace) || strings.Contains(at, "b7ad6b7169203331") {
				t.Errorf("the webhook has the traceparent %q, want another span of the client's trace %s", at, trace)
			}
			arrived <- r.Header.Get("webhook-id") + " " + string(body)
		})
		const file = "webhooks: {allow: [127.0.0.1]}\nsources: [{name: web, keys: [web-key]}]\ntenants: {keys: [publish-key]}\n" +
			"tracing: {endpoint: 'http://127.0.0.1:1', trustClients: true}\n"
		s := w.start(file)
		send := func(base, path, key, idempotency, body string) (int, string) {
			t.Helper()
			r, err := http.NewRequest("POST", base+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("traceparent", trace+"b7ad6b7169203331-01")
			if key != "" {
				r.Header.Set("Authorization", "Bearer "+key)
			}
			if idempotency != "" {
				r.Header.Set("Idempotency-Key", idempotency)
			}
			return w.do(w.client, r)
		}
		admin := func(path, body string, to any) {
			t.Helper()
			status, text := send(s.admin(), "/api/v1/tenants"+path, "", "", body)
			if err := json.Unmarshal([]byte(text), to); status != 200 || err != nil {
				t.Fatalf("POST %s: %d %s, %v", path, status, text, err)
			}
		}
		const paid = `{"type": "invoice.paid", "data": {"n": 1}`
		admin("", `{"id": "acme"}`, new(tenants.Tenant))
		if status, text := send("http://"+s.public(), "/v1/tenants/acme/events", "publish-key", "", paid+"}"); status != 200 || !strings.Contains(text, `"result":"nobody"`) {
			t.Errorf("without destinations: %d %s", status, text)
		}
		var made api.NewTenantDestination
		admin("/acme/destinations", `{"endpoints": [{"url": "`+url+`"}], "filter": {"include": ["invoice.*"]}}`, &made)
		secret <- signature.Secret(made.Secret)
		var token api.NewToken
		admin("/acme/tokens", `{"name": "backend"}`, &token)

		many := "[" + strings.Repeat(paid+"},", 100) + paid + "}]"
		for _, tt := range []struct {
			name, tenant, key, idempotency, body string
			status                               int
			want                                 string
		}{
			{"no key", "acme", "", "", paid + "}", 401, `"field":"Authorization"`},
			{"a write key", "acme", "web-key", "", paid + "}", 401, ""},
			{"a token of another tenant", "beta", token.Text, "", paid + "}", 401, ""},
			{"no tenant", "", "publish-key", "", paid + "}", 400, `"field":"tenant"`},
			{"no type", "acme", "publish-key", "", `{"data": 1}`, 400, `"field":"type"`},
			{"a type of tracking calls", "acme", "publish-key", "", `{"type": "track", "data": 1}`, 400, `"field":"type"`},
			{"no data", "acme", "publish-key", "", `{"type": "a.b"}`, 400, `"field":"data"`},
			{"the second is wrong", "acme", "publish-key", "", "[" + paid + `, "id": "first"}, {"type": "a b", "data": 1}]`, 400, "event 2 of 2"},
			{"a wrong time", "acme", "publish-key", "", paid + `, "timestamp": "today"}`, 400, "event 0"},
			{"an unknown field", "acme", "publish-key", "", paid + `, "tpye": "x"}`, 400, "tpye"},
			{"a number as the key", "acme", "publish-key", "", paid + `, "key": 7}`, 400, `"field":"key"`},
			{"a long id", "acme", "publish-key", "", paid + `, "id": "` + strings.Repeat("x", 256) + `"}`, 413, "255"},
			{"a long body", "acme", "publish-key", "", paid + `, "user": "` + strings.Repeat("x", 1<<20) + `"}`, 413, "1048576"},
			{"too many", "acme", "publish-key", "", many, 400, "100"},
			{"two values", "acme", "publish-key", "", paid + "}, " + paid + "}", 400, "more text"},
			{"no values", "acme", "publish-key", "", "", 400, "no JSON"},
			{"no events", "acme", "publish-key", "", "[]", 400, "no JSON"},
			{"two ids", "acme", "publish-key", "i-1", paid + `, "id": "i-2"}`, 400, "Idempotency-Key"},
			{"one id for two", "acme", "publish-key", "i-1", "[" + paid + "}," + paid + "}]", 400, "Idempotency-Key"},

			{"one event", "acme", "publish-key", "i-1", paid + "}", 200, `{"events":[{"result":"stored","stored":1,"duplicates":0,"filtered":0}]}`},
			{"the same", "acme", token.Text, "", paid + `, "id": "i-1"}`, 200, `{"events":[{"result":"duplicate","stored":0,"duplicates":1,"filtered":0}]}`},
			{"a list", "acme", token.Text, "", ` [` + paid + `, "id": "i-2"}, {"type": "user.left", "data": null}]`, 200,
				`{"events":[{"result":"stored","stored":1,"duplicates":0,"filtered":0},{"result":"filtered","stored":0,"duplicates":0,"filtered":1}]}`},
			{"an unknown tenant", "nobody", "publish-key", "", paid + "}", 200, `"result":"nobody"`},
		} {
			status, text := send("http://"+s.public(), "/v1/tenants/"+tt.tenant+"/events", tt.key, tt.idempotency, tt.body)
			if status != tt.status || !strings.Contains(text, tt.want) {
				t.Errorf("%s: %d %s, want %d and %s", tt.name, status, text, tt.status, tt.want)
			}
		}
		got := []string{<-arrived, <-arrived} // in any order: they have no key
		slices.Sort(got)
		for i, id := range []string{"i-1", "i-2"} {
			if got := got[i]; !strings.HasPrefix(got, id+` {"type":"invoice.paid","timestamp":"`) || !strings.HasSuffix(got, `,"data":{"n":1}}`) {
				t.Errorf("arrived: %s, want %s", got, id)
			}
		}
		if status, _ := w.request("OPTIONS", "http://"+s.public()+"/v1/tenants/acme/events"); status != 405 {
			t.Errorf("OPTIONS: %d, want 405: pages may not call it", status)
		}
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		s = w.start(file)
		if status, text := send("http://"+s.public(), "/v1/tenants/acme/events", token.Text, "i-3", paid+"}"); status != 200 || !strings.Contains(text, "stored") {
			t.Errorf("after a restart: %d %s", status, text)
		}
		if got := <-arrived; !strings.HasPrefix(got, "i-3 ") {
			t.Errorf("arrived: %s, want i-3", got)
		}
	})
}
