// Package admin has the handler of the admin listener: the admin API, and the page that uses it.
//
// Package api has the paths and types, and openapi.json describes them. Tests check that both agree
// with the routes of this package. Long work, such as a retry or a sync, is one request, which the
// handler answers with a line of progress every second, and ends when the client disconnects. What
// is done stays done, so a client can repeat the request to do the rest.
//
// Package feed has the data about single deliveries. The live stream tells a slow reader how many
// events it missed. A slow reader never delays a delivery.
package admin

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/sync/semaphore"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

// Config has the parts of the server that a Handler uses. Every field is required unless its
// comment says otherwise. The functions are called concurrently.
type Config struct {
	Forwarder *webhook.Forwarder
	Store     webhook.Store           // the store of the Forwarder
	Roster    audience.Roster         // keeps the audiences
	Feed      *feed.Feed              // observes the Forwarder
	Settings  func() *config.Settings // returns the settings in use; called for each request
	Tenants   *tenants.Directory      // in the Store; Load was called
	Sources   func() []api.Source     // the sources with their counts, in any order
	Calls     func() api.Calls        // the counts of all sources together
	Send      api.Send                // says how a client sends a call to the server
	PublicURL string                  // of the listener for calls, as customers reach it; the portal is below
	// Token is the bearer token of requests. "" means none, which is safe only on a loopback address.
	Token   string
	Private map[string]http.Handler // further handlers, which need the token, too, by their patterns; may be nil
	Page    http.Handler            // serves all other paths, without a token; nil means no page
	Node    func() api.Node         // describes this server
	// Troubles returns why calls could not be stored, the newest reason only; may be nil.
	Troubles func() []api.Trouble
	Logger   *slog.Logger
}

// A Handler is the http.Handler of the admin listener.
type Handler struct {
	config    Config
	announcer *audience.Announcer
	mux       *http.ServeMux
	cross     *http.CrossOriginProtection
	works     *semaphore.Weighted // of requests with long work
	tests     *semaphore.Weighted
	live      *semaphore.Weighted // of live streams
	dead      deadCounts
	open      context.Context // done after Close
	close     context.CancelFunc
}

// How many requests of a kind run at the same time. Further ones get CodeUnavailable.
const (
	maxWorks = 8
	maxTests = 4
	maxLive  = 64
)

// New returns a Handler.
func New(c Config) *Handler {
	h := &Handler{
		config:    c,
		announcer: audience.New(c.Forwarder, c.Roster),
		mux:       http.NewServeMux(),
		cross:     http.NewCrossOriginProtection(),
		works:     semaphore.NewWeighted(maxWorks),
		tests:     semaphore.NewWeighted(maxTests),
		live:      semaphore.NewWeighted(maxLive),
	}
	h.open, h.close = context.WithCancel(context.Background())
	for _, r := range routes() {
		handler := h.answering(r.serve, strings.Fields(r.params))
		switch {
		case slices.Contains(tenantPaths, r.path):
			handler = h.guardTenant(handler)
		case r.path != api.AccessPath:
			handler = h.guard(handler)
		}
		h.mux.Handle(r.method+" "+r.path, handler)
	}
	h.mux.Handle("/api/", h.guard(http.HandlerFunc(h.noRoute)))
	for pattern, handler := range c.Private {
		h.mux.Handle(pattern, h.guard(handler))
	}
	if c.Page != nil {
		h.mux.Handle("/", c.Page)
	}
	return h
}

// Close ends live streams and long work. It is registered with http.Server.RegisterOnShutdown.
func (h *Handler) Close() { h.close() }

type route struct {
	method, path string
	// params names the query parameters. A name that ends in "*" may be repeated, in "!" is required.
	params string
	serve  handlerFunc
}

func routes() []route {
	const (
		queryParams = "destination* state* type event id user reason from to"
		eventParams = "destination type kind* q"
		page        = " limit after"
	)
	return []route{
		{"GET", api.StatusPath, "", getStatus},
		{"GET", api.NodesPath, "", listNodes},
		{"GET", api.SourcesPath, "q" + page, listSources},
		{"GET", api.DestinationsPath, "q source state* sort" + page, listDestinations},
		{"GET", api.DestinationPath, "", getDestination},
		{"PUT", api.DestinationPath, "by version", withBody(writeDestination)},
		{"PATCH", api.DestinationPath, "by version", withBody(writeDestination)},
		{"DELETE", api.DestinationPath, "by version waiting!", deleteDestination},
		{"POST", api.SecretsPath, "by version", addSecret},
		{"DELETE", api.SecretsPath, "by version", dropSecrets},
		{"POST", api.PausePath, "", pause},
		{"POST", api.ResumePath, "", resume},
		{"GET", api.SeriesPath, "destination range", getSeries},
		{"GET", api.EventsPath, eventParams + " limit", listEvents},
		{"GET", api.LivePath, eventParams + " after", streamEvents},
		{"GET", api.StoryPath, "destination! id! source", getStory},
		{"GET", api.DeliveriesPath, queryParams + " order" + page, listDeliveries},
		{"GET", api.CountPath, queryParams, countDeliveries},
		{"GET", api.DeliveryPath, "", getDelivery},
		{"POST", api.RetryPath, "", withBody(change((*webhook.Forwarder).RetryAll, (*webhook.Forwarder).Retry))},
		{"POST", api.DiscardPath, "", withBody(change((*webhook.Forwarder).DiscardAll, (*webhook.Forwarder).Discard))},
		{"POST", api.TestPath, "", withBody(sendTest)},
		{"POST", api.DeletionsPath, "id source*", deleteUsers},
		{"POST", api.ErasuresPath, "", withBody(eraseUser)},
		{"GET", api.AudiencesPath, "destination q" + page, listAudiences},
		{"POST", api.AudiencesPath, "", withBody(createAudience)},
		{"GET", api.MembersPath, "", downloadMembers},
		{"PUT", api.MembersPath, api.ParamAllowShrink, syncMembers},
		{"GET", api.TenantsPath, "limit after", listTenants},
		{"POST", api.TenantsPath, "by", withBody(createTenant)},
		{"GET", api.TenantPath, "", getTenant},
		{"PATCH", api.TenantPath, "by version", withBody(changeTenant)},
		{"DELETE", api.TenantPath, "by waiting", deleteTenant},
		{"GET", api.TokensPath, "limit after", listTokens},
		{"POST", api.TokensPath, "by", withBody(createToken)},
		{"DELETE", api.TokenPath, "by", revokeToken},
		{"POST", api.PortalPath, "by for lasts", createLink},
		{"DELETE", api.PortalPath, "by", revokeLinks},
		{"GET", api.TenantDestinationsPath, "limit after", listTenantDestinations},
		{"POST", api.TenantDestinationsPath, "by", withBody(createTenantDestination)},
		{"GET", api.TenantDestinationPath, "", getTenantDestination},
		{"PATCH", api.TenantDestinationPath, "by version", withBody(changeTenantDestination)},
		{"DELETE", api.TenantDestinationPath, "by version waiting", deleteTenantDestination},
		{"POST", api.TenantRotatePath, "by overlap", rotateTenantSecret},
		{"GET", api.TenantDeliveriesPath, queryParams + " order" + page, listDeliveries},
		{"GET", api.TenantCountPath, queryParams, countDeliveries},
		{"GET", api.TenantDeliveryPath, "", getDelivery},
		{"POST", api.TenantRetryPath, "", withBody(change((*webhook.Forwarder).RetryAll, (*webhook.Forwarder).Retry))},
		{"POST", api.TenantDiscardPath, "", withBody(change((*webhook.Forwarder).DiscardAll, (*webhook.Forwarder).Discard))},
		{"GET", api.AccessPath, "", getAccess},
		{"GET", api.OpenAPIPath, "", getOpenAPI},
	}
}

// tenantPaths are the paths that take a token of the tenant in them, too. A path that makes tokens or
// links does not: these would stay valid after the token was revoked.
var tenantPaths = []string{
	api.TenantDestinationsPath, api.TenantDestinationPath, api.TenantRotatePath,
	api.TenantDeliveriesPath, api.TenantCountPath, api.TenantDeliveryPath, api.TenantRetryPath, api.TenantDiscardPath,
}

// noRoute refuses a path or a method without a route.
func (h *Handler) noRoute(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, m := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
		_, pattern := h.mux.Handler(&http.Request{Method: m, URL: r.URL, Host: r.Host})
		if pattern != "/api/" {
			allowed = append(allowed, m)
		}
	}
	if allowed == nil {
		writeError(w, notFound("there is no such path in this API; %s lists them", api.OpenAPIPath))
		return
	}
	list := strings.Join(allowed, ", ")
	w.Header().Set("Allow", list)
	writeError(w, refuse(api.CodeUnsupported, http.StatusMethodNotAllowed, "", "the method %s is not allowed here; want one of %s", r.Method, list))
}
