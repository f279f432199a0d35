package admin

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

func TestGuardAcceptsOnlyTrustedRequests(t *testing.T) {
	open := newServer(t, func(c *Config) {
		c.Page = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("the page")) })
	})
	closed := newServer(t, func(c *Config) {
		c.Token = "right-token"
		c.Page = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("the page")) })
	})
	type headers map[string]string
	const path, page = api.StatusPath, "/"
	token := headers{"Authorization": "Bearer right-token"}
	with := func(more headers) headers {
		h := headers{"Authorization": "Bearer right-token"}
		for name, value := range more {
			h[name] = value
		}
		return h
	}
	tests := []struct {
		name    string
		server  *server
		method  string
		path    string
		host    string
		peer    string
		headers headers
		want    int
	}{
		{"without a token", open, "GET", path, "localhost:8081", "127.0.0.1:1", nil, 200},
		{"other loopback names", open, "GET", path, "127.0.0.1:8081", "[::1]:1", nil, 200},
		{"IPv6", open, "GET", path, "[::1]:8081", "[::1]:1", nil, 200},
		{"no port", open, "GET", path, "LocalHost", "127.8.0.1:1", nil, 200},
		{"IPv4 mapped to IPv6", open, "GET", path, "[::ffff:127.0.0.1]", "[::ffff:127.0.0.1]:1", nil, 200},
		{"rebinding", open, "GET", path, "evil.example:8081", "127.0.0.1:1", nil, 403},
		{"rebinding of the page", open, "GET", page, "evil.example:8081", "127.0.0.1:1", nil, 403},
		{"a name that begins like localhost", open, "GET", path, "localhost.evil.example", "127.0.0.1:1", nil, 403},
		{"a name that begins like an address", open, "GET", path, "127.0.0.1.evil.example", "127.0.0.1:1", nil, 403},
		{"no host", open, "GET", path, "", "127.0.0.1:1", nil, 403},
		{"all addresses", open, "GET", path, "0.0.0.0:8081", "127.0.0.1:1", nil, 403},
		{"another machine", open, "GET", path, "localhost:8081", "192.0.2.1:1", nil, 403},
		{"no known peer", open, "GET", path, "localhost:8081", "@", nil, 403},
		{"a proxy on this machine", open, "GET", path, "localhost:8081", "127.0.0.1:1", headers{"X-Forwarded-For": "192.0.2.1"}, 403},
		{"a proxy that names no client", open, "GET", path, "localhost:8081", "127.0.0.1:1", headers{"X-Forwarded-For": ""}, 403},
		{"a proxy with the header of RFC 7239", open, "GET", path, "localhost:8081", "127.0.0.1:1", headers{"Forwarded": "for=192.0.2.1"}, 403},
		{"a proxy with the header Via", open, "GET", page, "localhost:8081", "127.0.0.1:1", headers{"Via": "1.1 proxy"}, 403},
		{"the head of a stream", open, "HEAD", api.LivePath, "localhost:8081", "127.0.0.1:1", nil, 200},
		{"the page", open, "GET", page, "localhost:8081", "127.0.0.1:1", nil, 200},

		{"a POST of the page", open, "POST", api.PausePath, "localhost:8081", "127.0.0.1:1", headers{"Origin": "http://localhost:8081", "Sec-Fetch-Site": "same-origin"}, 404},
		{"a POST without a browser", open, "POST", api.PausePath, "localhost:8081", "127.0.0.1:1", nil, 404},
		{"a POST of another site", open, "POST", api.PausePath, "localhost:8081", "127.0.0.1:1", headers{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 403},
		{"a POST of another port", open, "POST", api.PausePath, "localhost:8081", "127.0.0.1:1", headers{"Origin": "http://localhost:8000", "Sec-Fetch-Site": "same-site"}, 403},
		{"a POST of another site, old browser", open, "POST", api.PausePath, "localhost:8081", "127.0.0.1:1", headers{"Origin": "https://evil.example"}, 403},
		{"a POST of an opaque origin", open, "POST", api.PausePath, "localhost:8081", "127.0.0.1:1", headers{"Origin": "null"}, 403},
		{"a GET of another site", open, "GET", api.LivePath, "localhost:8081", "127.0.0.1:1", headers{"Sec-Fetch-Site": "cross-site"}, 403},
		{"a GET of another port", open, "GET", path, "localhost:8081", "127.0.0.1:1", headers{"Sec-Fetch-Site": "same-site"}, 403},
		{"an address typed by the user", open, "GET", path, "localhost:8081", "127.0.0.1:1", headers{"Sec-Fetch-Site": "none"}, 200},

		{"the token", closed, "GET", path, "admin.example", "192.0.2.1:1", token, 200},
		{"the token, scheme in lower case", closed, "GET", path, "admin.example", "192.0.2.1:1", headers{"Authorization": "bearer right-token"}, 200},
		{"the token, through a proxy", closed, "GET", path, "localhost:8081", "127.0.0.1:1", with(headers{"X-Forwarded-For": "192.0.2.1"}), 200},
		{"no token", closed, "GET", path, "localhost", "127.0.0.1:1", nil, 401},
		{"an empty token", closed, "GET", path, "localhost", "127.0.0.1:1", headers{"Authorization": "Bearer "}, 401},
		{"a wrong token", closed, "GET", path, "localhost", "127.0.0.1:1", headers{"Authorization": "Bearer right-tokem"}, 401},
		{"a longer token", closed, "GET", path, "localhost", "127.0.0.1:1", headers{"Authorization": "Bearer right-token2"}, 401},
		{"another scheme", closed, "GET", path, "localhost", "127.0.0.1:1", headers{"Authorization": "Basic right-token"}, 401},
		{"an unknown path without a token", closed, "GET", "/api/v2", "localhost", "127.0.0.1:1", nil, 401},
		{"another site that knows the token", closed, "POST", api.PausePath, "admin.example", "192.0.2.1:1", with(headers{"Sec-Fetch-Site": "cross-site"}), 403},
		{"the page needs no token", closed, "GET", page, "admin.example", "192.0.2.1:1", nil, 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest(tt.method, strings.NewReplacer("{destination}", "other").Replace(tt.path), nil)
			r.Host, r.RemoteAddr = tt.host, tt.peer
			for name, value := range tt.headers {
				r.Header.Set(name, value)
			}
			w := httptest.NewRecorder()
			tt.server.handler.ServeHTTP(w, r)
			if w.Code != tt.want {
				t.Fatalf("status %d, want %d: %s", w.Code, tt.want, w.Body)
			}
			for _, name := range []string{"X-Content-Type-Options", "X-Frame-Options", "Content-Security-Policy", "Cross-Origin-Resource-Policy", "Referrer-Policy"} {
				if w.Header().Get(name) == "" {
					t.Errorf("the answer lacks the header %s", name)
				}
			}
			if w.Header().Get("Access-Control-Allow-Origin") != "" {
				t.Error("the answer has Access-Control-Allow-Origin, want that no other origin may read it")
			}
			if tt.path != page && w.Header().Get("Cache-Control") != "no-store" {
				t.Error("the answer lacks Cache-Control: no-store")
			}
			if (w.Code == 401) != (w.Header().Get("WWW-Authenticate") != "") {
				t.Errorf("the header WWW-Authenticate is %q, want one for 401 only", w.Header().Get("WWW-Authenticate"))
			}
			if w.Code >= 400 {
				var e api.Error
				if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Code == "" || e.Message == "" || strings.Contains(w.Body.String(), "right-token") {
					t.Errorf("the body is %[2]s, error %[1]v, want an error with code and message, and without the token", err, w.Body)
				}
			}
		})
	}
}

func TestGuardProtectsOtherHandlers(t *testing.T) {
	h := newServer(t, func(c *Config) {
		c.Token = "right-token"
		c.Private = map[string]http.Handler{"GET /metrics": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) })}
	}).handler
	for token, want := range map[string]int{"right-token": 204, "other": 401} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("token %s: status %d, want %d", token, w.Code, want)
		}
	}
}

// TestWrongRequestsNameTheField shows that the answer to a wrong request names the wrong field.
func TestWrongRequestsNameTheField(t *testing.T) {
	long := strings.Repeat("x", maxJSON)
	many := `{"keys":["` + strings.Repeat(`k","`, maxKeys) + `k"]}`
	tests := []struct {
		name   string
		method string
		path   string
		body   any
		want   int
		code   string
		field  string
	}{
		{"no such path", "GET", "/api/v1/other", nil, 404, api.CodeNotFound, ""},
		{"no such version", "GET", "/api/v2/status", nil, 404, api.CodeNotFound, ""},
		{"method", "DELETE", api.StatusPath, nil, 405, api.CodeUnsupported, ""},
		{"method of a key", "PUT", "/api/v1/deliveries/crm:1", nil, 405, api.CodeUnsupported, ""},
		{"unknown parameter", "GET", api.StatusPath + "?verbose=1", nil, 400, api.CodeBadRequest, "verbose"},
		{"malformed query", "GET", api.EventsPath + "?q=%zz", nil, 400, api.CodeBadRequest, ""},
		{"parameter twice", "GET", api.EventsPath + "?q=a&q=b", nil, 400, api.CodeBadRequest, "q"},
		{"parameter too often", "GET", api.EventsPath + "?" + strings.Repeat("kind=dead&", 101), nil, 400, api.CodeBadRequest, "kind"},
		{"kind", "GET", api.EventsPath + "?kind=dad", nil, 400, api.CodeBadRequest, "kind"},
		{"kind of live", "GET", api.LivePath + "?kind=dad", nil, 400, api.CodeBadRequest, "kind"},
		{"after of live", "GET", api.LivePath + "?after=x", nil, 400, api.CodeBadRequest, "after"},
		{"limit", "GET", api.EventsPath + "?limit=0", nil, 400, api.CodeBadRequest, "limit"},
		{"high limit", "GET", api.DeliveriesPath + "?limit=501", nil, 400, api.CodeBadRequest, "limit"},
		{"high limit of destinations", "GET", api.DestinationsPath + "?limit=501", nil, 400, api.CodeBadRequest, "limit"},
		{"state", "GET", api.DestinationsPath + "?state=good", nil, 400, api.CodeBadRequest, "state"},
		{"sort", "GET", api.DestinationsPath + "?sort=name", nil, 400, api.CodeBadRequest, "sort"},
		{"after of destinations", "GET", api.DestinationsPath + "?after=crm", nil, 400, api.CodeBadRequest, "after"},
		{"high limit of sources", "GET", api.SourcesPath + "?limit=501", nil, 400, api.CodeBadRequest, "limit"},
		{"high limit of audiences", "GET", api.AudiencesPath + "?limit=501", nil, 400, api.CodeBadRequest, "limit"},
		{"after of audiences", "GET", api.AudiencesPath + "?after=crm", nil, 400, api.CodeBadRequest, "after"},
		{"a story without a destination", "GET", api.StoryPath + "?id=m1", nil, 400, api.CodeBadRequest, "destination"},
		{"a story without an id", "GET", api.StoryPath + "?destination=crm&id=", nil, 400, api.CodeBadRequest, "id"},
		{"time", "GET", api.CountPath + "?from=yesterday", nil, 400, api.CodeBadRequest, "from"},
		{"range", "GET", api.SeriesPath + "?range=1y", nil, 400, api.CodeBadRequest, "range"},

		{"no JSON", "POST", api.RetryPath, strings.NewReader("x"), 415, api.CodeUnsupported, "Content-Type"},
		{"no body", "POST", api.RetryPath, "", 400, api.CodeBadRequest, ""},
		{"malformed JSON", "POST", api.RetryPath, `{"keys":`, 400, api.CodeBadRequest, ""},
		{"two values", "POST", api.RetryPath, `{"keys":["a"]} {}`, 400, api.CodeBadRequest, ""},
		{"unknown field", "POST", api.RetryPath, `{"key":"a"}`, 400, api.CodeBadRequest, ""},
		{"wrong type", "POST", api.RetryPath, `{"keys":"a"}`, 400, api.CodeBadRequest, "keys"},
		{"too large", "POST", api.RetryPath, `{"keys":["` + long + `"]}`, 413, api.CodeTooLarge, ""},
		{"no selection", "POST", api.DiscardPath, `{}`, 400, api.CodeBadRequest, ""},
		{"state of deliveries", "GET", api.DeliveriesPath + "?state=ok", nil, 400, api.CodeBadRequest, "state"},
		{"state of counted deliveries", "GET", api.CountPath + "?state=ok", nil, 400, api.CodeBadRequest, "state"},
		{"after of deliveries", "GET", api.DeliveriesPath + "?after=k.", nil, 400, api.CodeBadRequest, "after"},
		{"order", "GET", api.DeliveriesPath + "?order=due", nil, 400, api.CodeBadRequest, "order"},
		{"key", "GET", "/api/v1/deliveries/0123", nil, 400, api.CodeBadRequest, "key"},
		{"key of a selection", "POST", api.RetryPath, `{"keys":["crm:1","crm"]}`, 400, api.CodeBadRequest, "keys"},
		{"state of a selection", "POST", api.DiscardPath, `{"query":{"state":["ok"]}}`, 400, api.CodeBadRequest, "state"},
		{"order of a selection", "POST", api.DiscardPath, `{"query":{"order":"oldest"}}`, 400, api.CodeBadRequest, ""},
		{"history that is off", "GET", api.DeliveriesPath + "?state=delivered", nil, 404, api.CodeNotFound, ""},
		{"selection of a history that is off", "POST", api.RetryPath, `{"query":{"state":["delivered"]}}`, 404, api.CodeNotFound, ""},
		{"two selections", "POST", api.DiscardPath, `{"keys":["a"],"query":{}}`, 400, api.CodeBadRequest, ""},
		{"too many keys", "POST", api.DiscardPath, many, 400, api.CodeBadRequest, "keys"},

		{"nothing to test", "POST", api.TestPath, `{}`, 400, api.CodeBadRequest, "destination"},
		{"two to test", "POST", api.TestPath, `{"destination":"crm","url":"https://a.example"}`, 400, api.CodeBadRequest, "destination"},
		{"unknown destination to test", "POST", api.TestPath, `{"destination":"other"}`, 404, api.CodeNotFound, ""},
		{"no URL", "POST", api.TestPath, `{"url":"ftp://a.example"}`, 400, api.CodeBadRequest, "url"},
		{"unknown type", "POST", api.TestPath, `{"destination":"crm","types":["delete"]}`, 400, api.CodeBadRequest, "types"},
		{"type twice", "POST", api.TestPath, `{"destination":"crm","types":["track","track"]}`, 400, api.CodeBadRequest, "types"},

		{"erasure without a user", "POST", api.ErasuresPath, `{}`, 400, api.CodeBadRequest, "user"},
		{"no users", "POST", api.DeletionsPath, `{"users":[]}`, 400, api.CodeBadRequest, "users"},
		{"empty user", "POST", api.DeletionsPath, `{"users":["a",""]}`, 400, api.CodeBadRequest, "users"},
		{"unknown source", "POST", api.DeletionsPath, `{"users":["a"],"sources":["other"]}`, 400, api.CodeBadRequest, "sources"},
		{"unknown source of lines", "POST", api.DeletionsPath + "?source=other", strings.NewReader("a\n"), 400, api.CodeBadRequest, "sources"},
		{"long id", "POST", api.DeletionsPath, `{"users":["a"],"id":"` + long[:256] + `"}`, 400, api.CodeBadRequest, "id"},

		{"audience of an unknown destination", "POST", api.AudiencesPath, `{"destination":"other","name":"vip"}`, 404, api.CodeNotFound, ""},
		{"audience without a name", "POST", api.AudiencesPath, `{"destination":"crm","name":"--"}`, 400, api.CodeBadRequest, "name"},
		{"audience with another trait", "POST", api.AudiencesPath, `{"destination":"crm","name":"vip","trait":"top"}`, 400, api.CodeBadRequest, "trait"},
		{"members of an unknown destination", "GET", "/api/v1/destinations/other/audiences/vip/members", nil, 404, api.CodeNotFound, ""},
		{"members that are JSON", "PUT", "/api/v1/destinations/crm/audiences/vip/members", `{}`, 415, api.CodeUnsupported, "Content-Type"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // net/http waits half a second for a client that still sends
				got := ask[api.Error](newServer(t, nil), tt.want, tt.method, tt.path, tt.body)
				if got.Code != tt.code || got.Field != tt.field || got.Message == "" || len(got.Message) > 300 {
					t.Errorf("the error is %+v, want the code %s and the field %q", got, tt.code, tt.field)
				}
			})
		})
	}
}

func TestAllowHeaderHasTheMethodsOfThePath(t *testing.T) {
	s := newServer(t, nil)
	for path, want := range map[string]string{
		api.StatusPath:           "GET, HEAD",
		api.AudiencesPath:        "GET, HEAD, POST",
		"/api/v1/deliveries/key": "GET, HEAD",
		api.RetryPath:            "GET, HEAD, POST", // GET is for the delivery with the key "retry"
		"/api/v1/destinations/crm/audiences/vip/members": "GET, HEAD, PUT",
	} {
		resp, _ := s.do(s.request("PATCH", path, nil))
		if got := resp.Header.Get("Allow"); got != want || resp.StatusCode != 405 {
			t.Errorf("PATCH %s: %s, Allow: %q, want 405 and %q", path, resp.Status, got, want)
		}
	}
}
