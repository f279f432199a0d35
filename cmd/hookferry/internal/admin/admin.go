// Package admin is the handler of the admin listener: the admin API, and the
// page that uses it.
//
// Nobody is let in by mistake. Where there is a token every request of the API
// carries it, but the one that asks whether a token is needed. Where there is none,
// only this machine is answered, under a name of its own, and no page of another
// origin: see Guard.
//
// Package api has the paths and types, openapi.json describes them, and tests hold all three to
// each other. Long work, such as a replay or a sync, is one request: it answers with a line a
// second and ends with the client. What was done stays done, and asking again goes on.
//
// What is shown of deliveries comes from package feed. A reader that is slow is overtaken and
// told how much it missed; it never delays a delivery.
package admin

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
	"github.com/hookferry/analytics/cmd/hookferry/internal/stored"
	"github.com/hookferry/analytics/webhook"
)

// Config is what a Handler works with. All is required but what says
// otherwise.
type Config struct {
	Forwarder *webhook.Forwarder
	// Store is that of the Forwarder.
	Store webhook.Store
	// Feed observes the Forwarder.
	Feed *feed.Feed
	// Settings returns those in use. It is called for each request.
	Settings func() *config.Settings
	// Stored are the destinations among them that may be changed.
	Stored *stored.Destinations
	// Sources returns the sources with their counts, in any order, and Calls
	// what was counted of all.
	Sources func() []api.Source
	Calls   func() api.Calls
	// Ready reports whether calls are accepted.
	Ready func() bool
	// Send says how a call is sent to the server.
	Send api.Send
	// Token is what requests must carry. Empty means none, for a listener on a
	// loopback address.
	Token string
	// Page is served where nothing else is, without a token. Nil means none.
	Page http.Handler
	// Node says how the server is, by itself.
	Node   func() api.Node
	Logger *slog.Logger
}

// A Handler is the http.Handler of the admin listener.
type Handler struct {
	config    Config
	announcer *audience.Announcer
	mux       *http.ServeMux
	cross     *http.CrossOriginProtection
	works     chan struct{} // a semaphore of requests with long work
	tests     chan struct{} // and one of tests
	stored    deadCounts
	open      context.Context // done after Close
	close     context.CancelFunc
}

// How many requests with long work, and how many tests, are served at once. More
// are refused with CodeUnavailable.
const (
	maxWorks = 8
	maxTests = 4
)

// New returns a Handler.
func New(c Config) (*Handler, error) {
	switch {
	case c.Forwarder == nil, c.Store == nil, c.Feed == nil, c.Settings == nil, c.Stored == nil,
		c.Sources == nil, c.Calls == nil, c.Ready == nil, c.Node == nil, c.Logger == nil:
		return nil, errors.New("admin: the Config is not complete")
	}
	roster, _ := c.Store.(audience.Roster) // or there are no audiences
	h := &Handler{
		config:    c,
		announcer: audience.New(c.Forwarder, roster),
		mux:       http.NewServeMux(),
		cross:     http.NewCrossOriginProtection(),
		works:     make(chan struct{}, maxWorks),
		tests:     make(chan struct{}, maxTests),
	}
	h.open, h.close = context.WithCancel(context.Background())
	for _, r := range h.routes() {
		guard := h.Guard
		if r.path == api.AccessPath {
			guard = func(next http.Handler) http.Handler { return withHeaders(h.onlyLocal(next)) }
		}
		h.mux.Handle(r.method+" "+r.path, guard(h.answering(r.serve)))
	}
	h.mux.Handle("/api/", h.Guard(h.answering(h.notFound)))
	page := c.Page
	if page == nil {
		page = http.NotFoundHandler()
	}
	h.mux.Handle("/", withHeaders(h.onlyLocal(page)))
	return h, nil
}

// ServeHTTP answers a request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// Close ends what would not end by itself: live streams, and long work. It is
// for http.Server.RegisterOnShutdown.
func (h *Handler) Close() { h.close() }

// A route is a path of the API.
type route struct {
	method, path string
	serve        func(http.ResponseWriter, *http.Request) error
}

func (h *Handler) routes() []route {
	return []route{
		{"GET", api.StatusPath, h.status},
		{"GET", api.NodesPath, h.nodes},
		{"GET", api.SourcesPath, h.sources},
		{"GET", api.DestinationsPath, destinations{h}.list},
		{"GET", api.DestinationPath, destinations{h}.one},
		{"PUT", api.DestinationPath, edits{h}.replace},
		{"PATCH", api.DestinationPath, edits{h}.change},
		{"DELETE", api.DestinationPath, edits{h}.delete},
		{"POST", api.SecretsPath, edits{h}.addSecret},
		{"DELETE", api.SecretsPath, edits{h}.dropSecrets},
		{"POST", api.PausePath, destinations{h}.pause},
		{"POST", api.ResumePath, destinations{h}.resume},
		{"GET", api.SeriesPath, destinations{h}.series},
		{"GET", api.EventsPath, h.events},
		{"GET", api.LivePath, h.live},
		{"GET", api.StoryPath, deadLetters{h}.story},
		{"GET", api.DeliveredPath, delivered{h}.list},
		{"POST", api.ResendPath, delivered{h}.resend},
		{"GET", api.DeadPath, deadLetters{h}.list},
		{"GET", api.DeadCountPath, deadLetters{h}.count},
		{"GET", api.DeadLetterPath, deadLetters{h}.one},
		{"POST", api.ReplayPath, deadLetters{h}.replay},
		{"POST", api.DiscardPath, deadLetters{h}.discard},
		{"GET", api.WaitingPath, waiting{h}.list},
		{"POST", api.WaitingRetryPath, waiting{h}.retry},
		{"POST", api.WaitingDiscardPath, waiting{h}.discard},
		{"POST", api.TestPath, h.test},
		{"POST", api.DeletionsPath, users{h}.delete},
		{"POST", api.ErasuresPath, users{h}.erase},
		{"GET", api.AudiencesPath, audiences{h}.list},
		{"POST", api.AudiencesPath, audiences{h}.create},
		{"GET", api.MembersPath, audiences{h}.members},
		{"PUT", api.MembersPath, audiences{h}.sync},
		{"GET", api.AccessPath, h.access},
		{"GET", api.OpenAPIPath, h.openAPI},
	}
}

// notFound answers for paths and methods that no route has.
func (h *Handler) notFound(w http.ResponseWriter, r *http.Request) error {
	var allowed []string
	for _, m := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		try := &http.Request{Method: m, URL: r.URL, Host: r.Host}
		if _, pattern := h.mux.Handler(try); strings.HasPrefix(pattern, m+" ") {
			allowed = append(allowed, m)
		}
	}
	if slices.Contains(allowed, "GET") {
		allowed = append(allowed, "HEAD")
	}
	if len(allowed) > 0 {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		return refuse(api.CodeUnsupported, http.StatusMethodNotAllowed, "", "the method %s is not allowed here; %s is", r.Method, strings.Join(allowed, ", "))
	}
	return refuse(api.CodeNotFound, http.StatusNotFound, "", "there is no such path in this API; %s lists them", api.OpenAPIPath)
}
