package admin

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

const acme = api.TenantsPath + "/acme"

// made makes a tenant with a destination, and returns the name that the destination has in paths.
func (s *server) made(tenant string) (destination string) {
	s.t.Helper()
	ask[tenants.Tenant](s, 200, "POST", api.TenantsPath, `{"id": "`+tenant+`"}`)
	d := ask[api.NewTenantDestination](s, 200, "POST", api.TenantsPath+"/"+tenant+"/destinations", `{"endpoints": [{"url": "https://u:p4ss@acme.example/?k=s3cret", "headers": {"X-Key": "s3cret"}}]}`)
	if d.Secret == "" {
		s.t.Error("the answer has no secret")
	}
	_, name, _ := strings.Cut(d.Destination.ID, "/")
	return name
}

func TestTenantsAndTheirDestinations(t *testing.T) {
	s := newServer(t, nil)
	name := s.made("acme")
	s.made("beta")
	path := acme + "/destinations/" + name

	tenant := ask[tenants.Tenant](s, 200, "PATCH", acme+"?by=ann", `{"name": "Acme Ltd"}`)
	if tenant.Name != "Acme Ltd" || tenant.Changes[0].By != "ann" {
		t.Errorf("the tenant is %+v, want the name and the author of the change", tenant)
	}
	ask[api.Error](s, 409, "PATCH", acme+"?version=1", `{"disabled": true}`)
	list := ask[api.Page[tenants.Tenant]](s, 200, "GET", api.TenantsPath+"?limit=1", nil)
	if len(list.Items) != 1 || list.Items[0].ID != "acme" || list.After != "acme" {
		t.Errorf("the list is %+v, want acme", list)
	}
	if list = ask[api.Page[tenants.Tenant]](s, 200, "GET", api.TenantsPath+"?after=acme", nil); len(list.Items) != 1 || list.Items[0].ID != "beta" {
		t.Errorf("behind acme the list is %+v, want beta", list)
	}

	changed := ask[api.TenantDestination](s, 200, "PATCH", path, `{"timeout": "2s", "filter": {"include": ["invoice.*"]}, "disabled": true}`)
	if changed.Timeout != webhook.Duration(2*time.Second) || !changed.Disabled || changed.Filter.Include[0] != "invoice.*" || changed.Endpoints[0].URL != "https://acme.example/" {
		t.Errorf("the destination is %+v, want what was changed and what was before", changed)
	}
	if again := ask[api.TenantDestination](s, 200, "PATCH", path+"?version="+fmt.Sprint(changed.Version), `{"timeout": null, "disabled": false, "order": "user", "batch": {"maxEvents": 10, "maxWait": "1s"}}`); again.Timeout != 0 || again.Order != "user" || again.Filter.Include == nil || again.Batch.MaxWait != time.Second {
		t.Errorf("the destination is %+v, want the default timeout and the same filter", again)
	}
	if e := ask[api.Error](s, 400, "PATCH", path, `{"endpoints": [{"url": "http://169.254.169.254/"}]}`); e.Field != "endpoints[0].url" {
		t.Errorf("the error is %+v, want one about the URL", e)
	}
	ask[api.Error](s, 400, "PATCH", path, `{"window": "long"}`)
	ask[api.Error](s, 400, "POST", path+"/rotate?overlap=800h", nil)
	if r := ask[api.NewTenantDestination](s, 200, "POST", path+"/rotate?overlap=1h", nil); !strings.HasPrefix(r.Secret, "whsec_") {
		t.Error("the answer has no new secret")
	}
	if p := ask[api.Page[api.TenantDestination]](s, 200, "GET", acme+"/destinations", nil); len(p.Items) != 1 || p.Items[0].ID != "acme/"+name {
		t.Errorf("the destinations are %+v, want one", p)
	}
	if _, text := s.do(s.request("GET", path, nil)); strings.Contains(string(text), "s3cret") || strings.Contains(string(text), "p4ss") {
		t.Errorf("the answer has a secret: %s", text)
	}

	for _, id := range []string{"acme", "beta"} {
		if _, err := s.forwarder.Send(t.Context(), id, &event.Custom{Type: "invoice.paid", ID: "inv-7"}); err != nil {
			t.Fatal(err)
		}
	}
	deliveries := ask[api.Page[api.Delivery]](s, 200, "GET", acme+"/deliveries?id=inv-7", nil).Items
	if len(deliveries) != 1 || deliveries[0].Destination != "acme/"+name {
		t.Fatalf("the deliveries are %+v, want the one of acme", deliveries)
	}
	ask[api.Delivery](s, 200, "GET", acme+"/deliveries/"+strings.ReplaceAll(deliveries[0].Key, "/", "%2F"), nil)
	if p := ask[api.Destinations](s, 200, "GET", api.DestinationsPath, nil); p.Total != 2 {
		t.Errorf("there are %d destinations of no tenant, want 2", p.Total)
	}
	for _, query := range []string{`{"keys": ["` + deliveries[0].Key + `"]}`, `{"query": {"state": ["waiting"]}}`} {
		if last := s.work("POST", api.TenantsPath+"/beta/deliveries/retry", query); strings.HasPrefix(query, `{"keys`) && last.Done != 0 {
			t.Errorf("beta has retried %d deliveries of acme", last.Done)
		}
	}
	if last := s.work("POST", acme+"/deliveries/discard", `{"query": {"state": ["waiting"]}}`); last.Done != 1 {
		t.Errorf("acme has discarded %d deliveries, want its one", last.Done)
	}

	ask[api.TenantDestination](s, 200, "DELETE", path, nil)
	ask[api.Error](s, 404, "GET", path, nil)
	if empty := ask[api.Page[api.Delivery]](s, 200, "GET", acme+"/deliveries", nil); len(empty.Items) != 0 {
		t.Errorf("without destinations, the deliveries are %+v, want none", empty)
	}
	ask[api.NewToken](s, 200, "POST", acme+"/tokens", `{"name": "portal"}`)
	ask[api.Error](s, 409, "POST", acme+"/tokens", `{"name": "portal"}`)
	ask[api.Error](s, 400, "POST", acme+"/tokens", `{"name": "a_b"}`)
	if p := ask[api.Page[tenants.Token]](s, 200, "GET", acme+"/tokens", nil); len(p.Items) != 1 || p.Items[0].Name != "portal" {
		t.Errorf("the tokens are %+v, want portal", p)
	}
	ask[tenants.Token](s, 200, "DELETE", acme+"/tokens/portal", nil)
	if l := ask[api.PortalLink](s, 200, "POST", acme+"/portal?for=ann&lasts=2h", nil); !strings.Contains(l.URL, "/portal/") || time.Until(l.Ends) < time.Hour {
		t.Errorf("the link is %+v, want one for two hours", l)
	}
	for _, lasts := range []string{"0s", "25h", "long"} {
		ask[api.Error](s, 400, "POST", acme+"/portal?lasts="+lasts, nil)
	}
	ask[api.Error](s, 404, "POST", api.TenantsPath+"/nobody/portal", nil)
	ask[tenants.Tenant](s, 200, "DELETE", acme+"/portal?by=ann", nil)
	ask[tenants.Tenant](s, 200, "DELETE", acme, nil)
	ask[api.Error](s, 404, "GET", acme, nil)
	ask[api.Error](s, 404, "DELETE", acme, nil)
}

// The operator sees the destinations of tenants that are in trouble, and can look at, pause and
// test every destination of a tenant.
func TestOperatorHelpsTenants(t *testing.T) {
	s := newServer(t, nil)
	id := "acme/" + s.made("acme")
	path := api.Path(api.DestinationPath, id)
	listed := func() (ids []string) {
		for _, d := range ask[api.Destinations](s, 200, "GET", api.DestinationsPath, nil).Items {
			if d.Tenant != "" {
				ids = append(ids, d.ID+" "+d.State+" "+d.Endpoints[0].URL)
			}
		}
		return ids
	}
	diff(t, "listed while all is well", listed(), []string(nil))
	if d := ask[api.Destination](s, 200, "POST", path+"/pause", nil); !d.Paused || d.Tenant != "acme" {
		t.Errorf("the paused destination is %+v, want one of acme that is paused", d)
	}
	diff(t, "listed while it is paused", listed(), []string{id + " paused https://acme.example/"})
	ask[api.Destination](s, 200, "POST", path+"/resume", nil)
	diff(t, "listed after the pause", listed(), []string(nil))
	ask[api.TenantDestination](s, 200, "PATCH", api.TenantsPath+"/acme/destinations/"+id[len("acme/"):], `{"disabled": true, "timeout": "2s"}`)
	diff(t, "listed while its tenant has disabled it", listed(), []string(nil))
	if d := ask[api.Destination](s, 200, "GET", path, nil); d.State != "disabled" || d.Settings.Timeout != webhook.Duration(2*time.Second) || d.Enabled {
		t.Errorf("the destination is %+v, want a disabled one with its settings", d)
	}
	nobody := api.Path(api.DestinationPath, "acme/"+strings.Repeat("x", len(id)-len("acme/")))
	for _, of := range []string{"", "/pause", "/resume"} {
		ask[api.Error](s, 404, map[bool]string{true: "GET", false: "POST"}[of == ""], nobody+of, nil)
	}
	ask[api.Error](s, 404, "POST", api.TestPath, api.TestRequest{Destination: "acme/" + strings.Repeat("x", len(id)-len("acme/"))})
	if e := ask[api.Error](s, 400, "POST", api.TestPath, api.TestRequest{Destination: id, Types: []string{"a b"}}); e.Field != "types" {
		t.Errorf("the error is %+v, want one about the types", e)
	}
	got := ask[api.TestResult](s, 200, "POST", api.TestPath, api.TestRequest{Destination: id})
	if len(got.Exchanges) != 1 || got.Exchanges[0].Type != "webhook.test" || !strings.Contains(string(got.Exchanges[0].Body), `"data":{"test":true}`) {
		t.Errorf("the test is %+v, want one event", got)
	}
}

// The test of a tenant's destination must not reach an address that is not public. The operator's
// own tests may.
func TestTestsOfTenantsAreGuarded(t *testing.T) {
	s := newServer(t, nil)
	id := "acme/" + s.made("acme")
	made, ofTenant, err := testDestination(&request{handler: s.handler, http: s.request("POST", "/", nil)}, &api.TestRequest{Destination: id})
	if err != nil || !ofTenant || made.Trusted {
		t.Errorf("the destination is %+v, of a tenant: %v, %v; want one of a tenant, not trusted", made, ofTenant, err)
	}
}

// Each route of the OpenAPI document refuses the token of another tenant, with the same bytes
// whether the things that the path names exist or not. Below the path of its own tenant, a token
// gets the same answer for a thing of another tenant as for a thing that does not exist.
func TestATokenReachesItsTenantAlone(t *testing.T) {
	for _, token := range []string{"", "the-token-of-the-operator"} {
		s := newServer(t, func(c *Config) { c.Token = token })
		s.token = token
		s.made("acme")
		other := s.made("beta")
		if _, err := s.forwarder.Send(t.Context(), "beta", &event.Custom{Type: "a.b"}); err != nil {
			t.Fatal(err)
		}
		key := ask[api.Page[api.Delivery]](s, 200, "GET", api.TenantsPath+"/beta/deliveries", nil).Items[0].Key
		s.token = ask[api.NewToken](s, 200, "POST", acme+"/tokens", `{"name": "portal"}`).Text
		answer := func(method, path, tenant, name, key string) (int, string) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // a live stream would not end
			defer cancel()
			path = strings.NewReplacer("{tenant}", tenant, "{name}", name, "{key}", strings.ReplaceAll(key, "/", "%2F"), "{token}", "portal",
				"{destination}", "crm", "{audience}", "vip").Replace(path)
			resp, text := s.do(s.request(method, path, map[bool]any{true: "{}"}[method != "GET" && method != "DELETE"]).WithContext(ctx))
			return resp.StatusCode, string(text)
		}
		nobody, none := strings.Repeat("x", 24), "acme/"+strings.Repeat("x", 24)+":1"
		for path, item := range doc().Paths {
			for _, method := range slices.Sorted(maps.Keys(item)) {
				method = strings.ToUpper(method)
				if method == "PARAMETERS" || path == api.AccessPath || path == api.PublishPath {
					continue
				}
				status, text := answer(method, path, "beta", other, key)
				if status2, text2 := answer(method, path, "nobody", nobody, none); status != http.StatusUnauthorized || status != status2 || text != text2 {
					t.Errorf("%s %s: %d %s for another tenant, %d %s for none; want 401 and the same text", method, path, status, text, status2, text2)
				}
				status, text = answer(method, path, "acme", other, key)
				own := slices.Contains(tenantPaths, path)
				if own == (status == http.StatusUnauthorized) {
					t.Errorf("%s %s: %d below its own tenant", method, path, status)
				}
				if status2, text2 := answer(method, path, "acme", nobody, none); status != status2 || text != text2 {
					t.Errorf("%s %s: %d %s for what another tenant has, %d %s for what nobody has", method, path, status, text, status2, text2)
				}
			}
		}
		s.token = token
		if p := ask[api.Page[tenants.Token]](s, 200, "GET", acme+"/tokens", nil); len(p.Items) != 1 {
			t.Errorf("the tokens are %+v, want one", p)
		}
		ask[tenants.Token](s, 200, "DELETE", acme+"/tokens/portal", nil)
	}
}
