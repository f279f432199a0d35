package admin

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

// Every route below api.TenantPath is bound to the tenant in its path: a destination's id is made of
// that tenant and the name in the path, and a delivery must be of such a destination. So no request can
// name what another tenant has.

func listTenants(q *request) (any, error) {
	return page(q, q.handler.config.Tenants.Tenants(q.http.Context(), q.param(api.ParamAfter)), same, func(t *tenants.Tenant) string { return t.ID })
}

func createTenant(q *request, body *document) (any, error) {
	var s api.TenantSettings
	if err := config.Parse(*body, &s); err != nil {
		return nil, err
	}
	t, err := q.handler.config.Tenants.CreateTenant(q.http.Context(), tenants.Tenant{ID: s.ID, Name: s.Name, Disabled: s.Disabled}, q.by())
	if errors.Is(err, tenants.ErrConflict) {
		err = conflict("id", "there is a tenant with this id")
	}
	return q.tenant(t, err)
}

func getTenant(q *request) (any, error) {
	return q.tenant(q.handler.config.Tenants.Tenant(q.http.Context(), q.http.PathValue("tenant")))
}

func changeTenant(q *request, body *document) (any, error) {
	t, err := q.handler.config.Tenants.Tenant(q.http.Context(), q.http.PathValue("tenant"))
	s := api.TenantSettings{ID: t.ID, Name: t.Name, Disabled: t.Disabled}
	if err == nil {
		err = config.Parse(*body, &s)
	}
	if err == nil && s.ID != t.ID {
		err = badRequest("id", "id differs from the id in the path")
	}
	if err == nil {
		err = q.sameVersion(t.Version)
	}
	if err != nil {
		return nil, err
	}
	t.Name, t.Disabled = s.Name, s.Disabled
	return q.tenant(q.handler.config.Tenants.UpdateTenant(q.http.Context(), t, q.by()))
}

func deleteTenant(q *request) (any, error) {
	id := q.http.PathValue("tenant")
	var destinations []string
	for d, err := range q.handler.config.Tenants.List(q.http.Context(), id, "") {
		if err != nil {
			return nil, err
		}
		destinations = append(destinations, d.ID)
	}
	defer q.handler.config.Forwarder.Recheck(id)
	if err := q.handler.config.Tenants.DeleteTenant(q.http.Context(), id, q.by()); err != nil {
		return nil, err
	}
	return q.discardWaiting(destinations...)
}

// tenant answers with a tenant that was read or changed.
func (q *request) tenant(t tenants.Tenant, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	q.changed(t.ID)
	return t, nil
}

// changed makes a change effective in this process at once.
func (q *request) changed(tenant string, destinations ...string) {
	if q.http.Method != "GET" && q.http.Method != "HEAD" {
		q.handler.config.Forwarder.Recheck(tenant, destinations...)
	}
}

// by returns the author of a change: the token of a tenant, or else the parameter "by", or the address.
func (q *request) by() string {
	if actor, ok := q.http.Context().Value(actorKey{}).(string); ok {
		return actor
	}
	address, _, _ := net.SplitHostPort(q.http.RemoteAddr)
	return cmp.Or(q.param(api.ParamBy), address)
}

// sameVersion refuses a change whose parameter "version" is given and differs from version.
func (q *request) sameVersion(version uint64) error {
	asked, err := q.number(api.ParamVersion, 1, math.MaxUint64, "a version")
	if err == nil && asked != nil && *asked != version {
		return tenants.ErrConflict
	}
	return err
}

// existing refuses a tenant that does not exist.
func (q *request) existing() error {
	_, err := q.handler.config.Tenants.Tenant(q.http.Context(), q.http.PathValue("tenant"))
	return err
}

func listTokens(q *request) (any, error) {
	if err := q.existing(); err != nil {
		return nil, err
	}
	return page(q, q.handler.config.Tenants.Tokens(q.http.Context(), q.http.PathValue("tenant"), q.param(api.ParamAfter)),
		same, func(t *tenants.Token) string { return t.Name })
}

func createToken(q *request, s *api.TokenSettings) (any, error) {
	made, text, err := q.handler.config.Tenants.CreateToken(q.http.Context(), q.http.PathValue("tenant"), s.Name, q.by())
	if errors.Is(err, tenants.ErrConflict) {
		err = conflict("name", "the tenant has a token with this name")
	}
	return api.NewToken{Token: made, Text: text.Reveal()}, err
}

func revokeToken(q *request) (any, error) {
	err := q.handler.config.Tenants.RevokeToken(q.http.Context(), q.http.PathValue("tenant"), q.http.PathValue("token"), q.by())
	return tenants.Token{Name: q.http.PathValue("token")}, err
}

// linkTime is how long a link to the portal usually lasts.
const linkTime = time.Hour

// createLink answers with a link to the portal. The part after the "#" opens the portal, and
// browsers send this part to no server.
func createLink(q *request) (any, error) {
	lasts := linkTime
	if text := q.param(api.ParamLasts); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil || lasts < time.Second || lasts > tenants.MaxLinkTime {
			return nil, badRequest(api.ParamLasts, "lasts is not a time from 1s to %v", tenants.MaxLinkTime)
		}
	}
	actor := cmp.Or(q.param(api.ParamFor), "a link of "+q.by())
	l, text, err := q.handler.config.Tenants.CreateLink(q.http.Context(), q.http.PathValue("tenant"), actor, lasts)
	if err != nil {
		return nil, err
	}
	at := strings.TrimSuffix(q.handler.config.PublicURL, "/") + "/portal/" + api.LinkID(text.Reveal()) + "/open#" + text.Reveal()
	return api.PortalLink{URL: at, Ends: l.Ends}, nil
}

func revokeLinks(q *request) (any, error) {
	if err := q.handler.config.Tenants.RevokeLinks(q.http.Context(), q.http.PathValue("tenant"), q.by()); err != nil {
		return nil, err
	}
	return getTenant(q)
}

func listTenantDestinations(q *request) (any, error) {
	if err := q.existing(); err != nil {
		return nil, err
	}
	after := q.param(api.ParamAfter)
	if after != "" && !q.mayReach(after) {
		return nil, errAfter
	}
	held := q.held()
	return page(q, q.handler.config.Tenants.List(q.http.Context(), q.http.PathValue("tenant"), after),
		func(d *tenants.Destination) api.TenantDestination { return destinationOf(d, held) },
		func(d *tenants.Destination) string { return d.ID })
}

// held returns the destinations that are held in this process, by id.
func (q *request) held() map[string]*webhook.Hold {
	by := make(map[string]*webhook.Hold)
	for _, h := range q.handler.config.Forwarder.Held() {
		by[h.Destination] = &h
	}
	return by
}

func createTenantDestination(q *request, body *document) (any, error) {
	d := tenants.Destination{Tenant: q.http.PathValue("tenant")}
	existing, err := readSettings(&d, *body)
	if err != nil {
		return nil, err
	}
	secret := cmp.Or(existing, signature.NewStandardSecret())
	made, err := q.handler.config.Tenants.Import(q.http.Context(), d, secret, q.by())
	if err != nil {
		return nil, err
	}
	q.changed(made.Tenant, made.ID)
	return api.NewTenantDestination{Destination: destinationOf(&made, nil), Secret: secret.Reveal()}, nil
}

// destinationID returns the id of the destination that the path names.
func (q *request) destinationID() string {
	return q.http.PathValue("tenant") + "/" + q.http.PathValue("name")
}

func getTenantDestination(q *request) (any, error) {
	d, err := q.handler.config.Tenants.Get(q.http.Context(), q.destinationID())
	if err != nil {
		return nil, err
	}
	shown := destinationOf(&d, q.held())
	shown.OldSecrets, err = q.handler.config.Tenants.OldSecrets(q.http.Context(), d.ID)
	return shown, err
}

func changeTenantDestination(q *request, body *document) (any, error) {
	d, err := q.handler.config.Tenants.Get(q.http.Context(), q.destinationID())
	if err == nil {
		err = q.sameVersion(d.Version)
	}
	var secret signature.Secret
	if err == nil {
		secret, err = readSettings(&d, *body)
	}
	if err == nil && secret != "" {
		err = badRequest("secret", "the secret of a destination can only be rotated")
	}
	if err == nil {
		d, err = q.handler.config.Tenants.Update(q.http.Context(), d, q.by())
	}
	if err != nil {
		return nil, err
	}
	q.changed(d.Tenant, d.ID)
	if _, asked := (*body)["disabled"]; asked && !d.Disabled { // it may be the forwarder that has disabled it
		if err := q.handler.config.Forwarder.Resume(q.http.Context(), d.ID); err != nil {
			return nil, fmt.Errorf("it is changed, but may not be enabled: %w", err)
		}
	}
	return destinationOf(&d, nil), nil
}

func deleteTenantDestination(q *request) (any, error) {
	d, err := q.handler.config.Tenants.Get(q.http.Context(), q.destinationID())
	if err == nil {
		err = q.sameVersion(d.Version)
	}
	if err == nil {
		err = q.handler.config.Tenants.Delete(q.http.Context(), d.ID, d.Version, q.by())
	}
	if err != nil {
		return nil, err
	}
	defer q.changed(d.Tenant, d.ID) // after which deliveries that are left become dead letters
	return q.discardWaiting(d.ID)
}

func rotateTenantSecret(q *request) (any, error) {
	overlap := tenants.DefaultOverlap
	if text := q.param(api.ParamOverlap); text != "" {
		var err error
		if overlap, err = time.ParseDuration(text); err != nil || overlap < 0 || overlap > maxOverlap {
			return nil, badRequest(api.ParamOverlap, "overlap is not a time from 0s to %v", maxOverlap)
		}
	}
	d, secret, err := q.handler.config.Tenants.Rotate(q.http.Context(), q.destinationID(), overlap, q.by())
	if err != nil {
		return nil, err
	}
	q.changed(d.Tenant, d.ID)
	return api.NewTenantDestination{Destination: destinationOf(&d, nil), Secret: secret.Reveal()}, nil
}

const maxOverlap = 720 * time.Hour // how long an old secret may sign beside the new one

// readSettings changes the settings of d that a document has, and returns the secret in it. In the
// document, null stands for the default.
func readSettings(d *tenants.Destination, changes document) (secret signature.Secret, err error) {
	s := api.TenantDestinationSettings{Name: d.Name, Settings: d.Settings}
	if err = config.Parse(changes, &s); err != nil {
		return "", err
	}
	d.Name, d.Settings = s.Name, s.Settings
	return signature.Secret(s.Secret), nil
}

func destinationOf(d *tenants.Destination, held map[string]*webhook.Hold) api.TenantDestination {
	return api.TenantDestination{Destination: *d, Endpoints: shown(d.Endpoints), Held: held[d.ID]}
}

// shown returns what may be shown of endpoints.
func shown(endpoints []webhook.Endpoint) []api.ShownEndpoint {
	all := []api.ShownEndpoint{}
	for _, e := range endpoints {
		all = append(all, api.ShownEndpoint{URL: config.Shown(e.URL), Headers: slices.Sorted(maps.Keys(e.Headers))})
	}
	return all
}

// mayReach reports whether the path gives access to a destination. A path with a tenant gives
// access to the destinations of that tenant, and a path without a tenant to all.
func (q *request) mayReach(destination string) bool {
	tenant := q.http.PathValue("tenant")
	of, ours := tenants.TenantOf(destination)
	return tenant == "" || ours && of == tenant
}

// ofTenant restricts a query to destinations of the tenant in the path: to those that the query
// names, or to all. It refuses destinations of other tenants as if they did not exist.
func (q *request) ofTenant(query *webhook.Query) error {
	for _, id := range query.Destinations {
		if !q.mayReach(id) {
			return tenants.ErrUnknown
		}
	}
	if len(query.Destinations) > 0 {
		return nil
	}
	if err := q.existing(); err != nil {
		return err
	}
	// If the tenant has no destination, the query must select nothing. No delivery has this
	// destination.
	query.Destinations = []string{q.http.PathValue("tenant") + "/"}
	for d, err := range q.handler.config.Tenants.List(q.http.Context(), q.http.PathValue("tenant"), "") {
		if err != nil {
			return err
		}
		query.Destinations = append(query.Destinations, d.ID)
	}
	return nil
}
