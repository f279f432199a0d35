package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	documents "github.com/hookferry/analytics/webhook/store"
)

// A customer opens the page of its tenant by a link, which shows that tenant alone, until the link ends or
// is revoked. The text of a link is in no log.
func TestLinksOpenThePortalOfOneTenant(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.start("sources: [{name: web, keys: [web-key]}]\ntenants: {keys: [publish-key]}\nlog: {access: 1}\n")
		send := func(method, to, cookie, body string) (*http.Response, string) {
			t.Helper()
			r, err := http.NewRequest(method, to, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			if cookie != "" {
				r.Header.Set("Cookie", portalCookie+"="+cookie)
			}
			answer, err := w.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			b, err := io.ReadAll(answer.Body)
			if err != nil {
				t.Fatal(err)
			}
			return answer, string(b)
		}
		ask := func(method, path, body string, to any) {
			t.Helper()
			answer, text := send(method, s.admin()+api.TenantsPath+path, "", body)
			if err := json.Unmarshal([]byte(text), to); answer.StatusCode != 200 || err != nil {
				t.Fatalf("%s %s: %s %s, %v", method, path, answer.Status, text, err)
			}
		}
		destinations := map[string]string{}
		for _, tenant := range []string{"acme", "beta"} {
			ask("POST", "", `{"id": "`+tenant+`"}`, new(tenants.Tenant))
			var made api.NewTenantDestination
			ask("POST", "/"+tenant+"/destinations", `{"endpoints": [{"url": "https://`+tenant+`.example/hook"}]}`, &made)
			_, destinations[tenant], _ = strings.Cut(made.Destination.ID, "/")
		}
		link := func(tenant, parameters string) (base, text string) {
			t.Helper()
			var l api.PortalLink
			ask("POST", "/"+tenant+"/portal"+parameters, "", &l)
			u, err := url.Parse(l.URL)
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSuffix("http://"+s.public()+u.Path, "open"), u.Fragment
		}
		// begin does what the page at a link does, and returns the cookie.
		begin := func(base, text string, want int) string {
			t.Helper()
			if answer, page := send("GET", base+"open", "", ""); answer.StatusCode != 200 || !strings.Contains(page, `src="open.js"`) || !strings.Contains(answer.Header.Get("Content-Security-Policy"), "script-src 'self'") {
				t.Errorf("the page at the link: %s %v %s", answer.Status, answer.Header, page)
			}
			answer, _ := send("POST", base+"session", "", text)
			if answer.StatusCode != want {
				t.Errorf("a session: %s, want %d", answer.Status, want)
			}
			if want != 204 {
				return ""
			}
			c := answer.Cookies()[0]
			if at, _ := url.Parse(base); c.Path != at.Path || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Expires.Before(time.Now()) {
				t.Errorf("the cookie is %+v", c)
			}
			return c.Value
		}

		base, text := link("acme", "?for=ann@acme.example")
		cookie := begin(base, text, 204)
		if _, page := send("GET", base, cookie, ""); !strings.Contains(page, `src="app.js"`) {
			t.Errorf("the page: %s", page)
		}
		if _, list := send("GET", base+"api/v1/endpoints", cookie, ""); !strings.Contains(list, "acme.example") || strings.Contains(list, "beta") {
			t.Errorf("the endpoints are %s, want those of acme", list)
		}
		at := base + "api/v1/endpoints/" + destinations["acme"]
		_, one := send("GET", at, cookie, "")
		var e struct{ Version string }
		if err := json.Unmarshal([]byte(one), &e); err != nil {
			t.Fatal(err)
		}
		if answer, text := send("PATCH", at, cookie, `{"version": "`+e.Version+`", "description": "CRM"}`); answer.StatusCode != 200 {
			t.Errorf("a change: %s %s", answer.Status, text)
		}
		var changed api.TenantDestination
		ask("GET", "/acme/destinations/"+destinations["acme"], "", &changed)
		if changed.Name != "CRM" || changed.Changes[0].By != "ann@acme.example" {
			t.Errorf("the destination is %+v, want the change of ann", changed)
		}

		// The answer for a thing of another tenant is the answer for a thing that does not exist.
		// Without the link, nothing is there.
		nobody := strings.Repeat("0", len(destinations["beta"]))
		for _, path := range []string{"endpoints/", "deliveries?endpoint="} {
			foreign, a := send("GET", base+"api/v1/"+path+destinations["beta"], cookie, "")
			unknown, b := send("GET", base+"api/v1/"+path+nobody, cookie, "")
			if foreign.StatusCode != unknown.StatusCode || a != b || strings.Contains(a, "beta") {
				t.Errorf("%s: %s %s of another tenant, %s %s of nobody", path, foreign.Status, a, unknown.Status, b)
			}
		}
		betaBase, betaText := link("beta", "")
		for _, tt := range []struct{ name, base, cookie string }{
			{"no cookie", base, ""}, {"the cookie of another link", base, betaText}, {"a cut cookie", base, cookie[:len(cookie)-1]}, {"the id alone", base, api.LinkID(text)},
		} {
			for _, path := range []string{"", "api/v1/endpoints", "api/v1/settings"} {
				if answer, text := send("GET", tt.base+path, tt.cookie, ""); answer.StatusCode != 401 || strings.Contains(text, "example") {
					t.Errorf("%s, %q: %s %s, want 401", tt.name, path, answer.Status, text)
				}
			}
		}
		begin(base, betaText, 401)
		begin(betaBase, text, 401)
		if answer, _ := send("GET", base+"session", "", ""); answer.StatusCode != 403 {
			t.Errorf("GET of the session: %s, want 403", answer.Status)
		}

		// A link ends, and so do all links of a tenant when they are revoked.
		brief, briefText := link("acme", "?lasts=10s")
		briefCookie := begin(brief, briefText, 204)
		time.Sleep(10 * time.Second)
		begin(brief, briefText, 401)
		if answer, page := send("GET", brief, briefCookie, ""); answer.StatusCode != 401 || !strings.Contains(page, "This link has ended") {
			t.Errorf("after the end: %s %s", answer.Status, page)
		}
		betaCookie := begin(betaBase, betaText, 204)
		ask("DELETE", "/acme/portal", "", new(tenants.Tenant))
		if answer, _ := send("GET", base+"api/v1/endpoints", cookie, ""); answer.StatusCode != 401 {
			t.Errorf("after the links were revoked: %s, want 401", answer.Status)
		}
		if answer, _ := send("GET", betaBase+"api/v1/endpoints", betaCookie, ""); answer.StatusCode != 200 {
			t.Errorf("the link of another tenant: %s, want 200", answer.Status)
		}
		for _, secret := range []string{text, betaText, briefText, text[strings.Index(text, ".")+1:]} {
			if strings.Contains(s.text(), secret) {
				t.Errorf("the log has a link:\n%s", s.text())
			}
		}
	})
}

// A blockedStore does not answer questions about links.
type blockedStore struct {
	*memqueue.Store
	reads atomic.Int64
	free  chan struct{}
}

func (s *blockedStore) Document(ctx context.Context, folder, name string) (documents.Document, error) {
	if folder == "tenant-link" {
		s.reads.Add(1)
		<-s.free
	}
	return s.Store.Document(ctx, folder, name)
}

// Many requests with links, true or not, take few connections to the store.
func TestFewLinksAreCheckedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blocked := &blockedStore{Store: testkit.Must(memqueue.Open(memqueue.Config{})), free: make(chan struct{})}
		defer blocked.Close()
		s := &server{tenants: testkit.Must(tenants.New(blocked, tenants.Config{}))}
		s.forwarder = testkit.Must(webhook.New(webhook.Config{Store: blocked, Directory: s.tenants}))
		c := testkit.Must(newCustomers(s))
		link := "hfl_" + base64.RawURLEncoding.EncodeToString([]byte(`{"tenant": "acme"}`)) + ".x"
		path := portalPath + api.LinkID(link) + "/"
		statuses := make(chan int, 10)
		for i := range 10 {
			r := httptest.NewRequest("GET", path+"api/v1/endpoints", nil)
			r.Header.Set("Cookie", portalCookie+"="+link)
			if i%2 == 0 {
				r = httptest.NewRequest("POST", path+"session", strings.NewReader(link))
			}
			go func() { // until the store is free
				answer := httptest.NewRecorder()
				c.serve(answer, r)
				statuses <- answer.Code
			}()
		}
		synctest.Wait()
		if n := blocked.reads.Load(); n != maxChecks {
			t.Errorf("%d links are read at the same time, want %d", n, maxChecks)
		}
		close(blocked.free)
		for range 10 {
			if status := <-statuses; status != http.StatusUnauthorized {
				t.Errorf("a link that nobody made: %d, want 401", status)
			}
		}
	})
}
