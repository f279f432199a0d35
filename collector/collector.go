// Package collector serves the HTTP tracking API: it takes the calls of clients, in
// any language and in the browser, and passes them to a forwarder.
//
// A [Handler] is an [http.Handler]; mount it at the root of a server of its own:
//
//	h, err := collector.New(collector.Config{
//		Forwarder: forwarder, // a *webhook.Forwarder
//		Sources:   collector.Keys(map[string]collector.Source{writeKey: {Destinations: []string{"crm"}}}),
//	})
//	...
//	err = http.ListenAndServe(":8080", h)
//
// Do not put an [http.ServeMux] in front of a Handler. A ServeMux redirects paths with a
// doubled slash. Some clients send such paths, and do not follow redirects.
//
// # Requests
//
//	POST /v1/batch, /v1/b, /v1/import      a batch: {"batch":[...],"context":...,"integrations":...,"sentAt":...}
//	POST /v1/identify, /v1/i               a call; its path gives its type
//	POST /v1/track, /v1/t
//	POST /v1/page, /v1/p
//	POST /v1/screen, /v1/s
//	POST /v1/group, /v1/g
//	POST /v1/alias, /v1/a
//	POST /v1/m                             a client's metrics, which are dropped
//	GET  /v1/projects/{writeKey}/settings  what the browser library asks for first
//	OPTIONS of all these                   a browser's preflight
//
// Slashes may be doubled, and a path may end with one. The write key is the user name of Basic authentication,
// with or without the colon after it, or else the body's writeKey. A Bearer token is
// ignored. Bodies are JSON, whatever their Content-Type, also behind a byte order mark, and may be
// compressed with gzip. Before compression, a call has at most analytics.MaxCallSize bytes. A batch has
// at most analytics.MaxBatchSize bytes and analytics.MaxBatchCalls calls.
//
// [event.Encoder.Append] describes calls. The context and integrations of a batch are
// merged into each of its calls. Every webhook repeats the context of its batch, so a
// context has at most analytics.MaxCallSize bytes, without its white space.
//
// The bodies of all webhooks of a request together may have 4 MiB plus four times the
// size of the request before compression. Each body counts once for each destination of
// the source, and as at least the size of the batch's context. Calls that exceed the
// bound are rejected one by one, with the code too_large. If a call exceeds the bound and
// no other call of the request is good, the whole request is refused.
//
// A batch is refused if its context or its integrations are not an object, or are nested too
// deeply. An empty array counts as an empty object, because PHP writes empty maps so. A time that
// cannot be read, of a call or a batch, counts as missing: clients drop what is refused, so
// refusing it would lose the calls. Answered.BadTimes counts them.
//
// # Answers
//
// Every answer except that to a preflight is JSON. Pages of any origin may read the answers.
//
//	200  {"success":true}  All calls are durable in the queue.
//	200  {"success":true,"rejected":[{"index":3,"code":"missing_field","message":"event is required"}]}
//	     All other calls of the batch are durable.
//	400  {"success":false,"code":"...","message":"..."}  The request or its one call is wrong.
//	401  The write key is missing or unknown.
//	404, 405, 415  As usual.
//	408  The body came too slowly.
//	429  The source sends more calls than its Limit, or more bytes than its
//	     ByteLimit. Nothing was taken. Send the same request again after the
//	     seconds of Retry-After, which X-RateLimit-Reset repeats.
//	503  The queue is full or fails, or did not answer in time, or there are
//	     more requests than there is memory for. Send the same request again
//	     after Retry-After seconds. If the queue did not answer in time, it may
//	     have taken the calls. When they are sent again, the queue recognises
//	     them by source and messageId, so none is forwarded twice.
package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/weburl"
)

// DefaultMaxMemory is the MaxMemory of a Config that sets none: 256 MiB.
const DefaultMaxMemory = 256 << 20

// DefaultMaxRequests is the MaxRequests of a Config that sets none.
const DefaultMaxRequests = 32

// A Forwarder takes events; a [webhook.Forwarder] is one.
type Forwarder interface {
	// ForwardEvents returns nil once the events are durable for each of the destinations.
	// After an error, clients send the same calls again. So ForwardEvents gets their events
	// again, with the same Source and ID, even events that it took before the error. It
	// does not forward an event that is Off, or whose Source and ID it remembers.
	//
	// ForwardEvents may keep the bodies of the events, which share an array and do not
	// change. It must not keep the slices destinations and events. It is called
	// concurrently.
	ForwardEvents(ctx context.Context, destinations []string, events ...event.Event) error
}

// A Source is where calls come from: an application with a write key.
type Source struct {
	// Name is the name of the source in logs, and the Source of its events. Calls are deduplicated
	// by Name and messageId, so that no source can suppress the calls of another. The Name must be
	// no secret, and must stay the same after a restart. Sources with the same Name count as one
	// source. Without a Name, a digest of the write key takes its place.
	Name string
	// Destinations lists the ids of the destinations that get the calls of the source.
	// Without destinations, the calls are checked and dropped.
	Destinations []string
	// Filter selects the calls that are forwarded. The other good calls are accepted and dropped. It
	// is called concurrently, and must not keep the event's Body. Nil selects all calls.
	Filter func(event.Event) bool
	// Limit bounds the calls of the source. ByteLimit bounds the bytes of its webhooks, which count
	// once for each destination, because the store has to write these bytes. Webhooks may have many
	// more bytes than the request, if it is compressed or its calls share a context. Nil means no
	// limit. Config.Sources must return the same Limits for each request of a source.
	Limit, ByteLimit *Limit
}

// An Answered describes a request that was answered.
type Answered struct {
	// Path is the path of the request, without doubled slashes or one at its end. It never has a write key: it is
	// "/v1/projects/..." for the settings of the browser library, and "" for a path that the handler
	// does not serve.
	Path string
	// Source is the Name of the request's source, "" if the source is not known.
	Source string
	// Status is the HTTP status of the answer. Code is the code in its body, "" for a 2xx.
	Status int
	Code   string
	// Accepted counts the good calls. They are durable, or were dropped: because the source has no
	// destinations, because their integrations switch webhooks off, or by the source's Filter. Of
	// them, Filtered counts the calls that Filter left out, and BadTimes the calls that have a time
	// that could not be read, or whose batch has one. Rejected counts the wrong calls.
	Accepted, Filtered, BadTimes, Rejected int
	// Size is the size of the body as it was sent, in bytes. It is 0 if the body was not
	// read to its end.
	Size int
	// Took is the time from the end of the request's header to the end of the answer.
	Took time.Duration
}

// ErrUnknownKey is returned by Config.Sources for a write key that belongs to no source.
var ErrUnknownKey = errors.New("collector: unknown write key")

// Config configures a Handler. New copies it.
type Config struct {
	// Forwarder takes the events. Required.
	Forwarder Forwarder

	// Sources finds the source of a write key. The key is never empty. For a key of no source it
	// returns ErrUnknownKey, wrapped or not. After any other error the client is told to try again
	// later. Sources is called concurrently, for every request, and should take the same time for
	// every key. The function Keys makes a Sources from a map. Required.
	Sources func(ctx context.Context, writeKey string) (Source, error)

	// BaseURL is the URL at which browsers reach the handler, such as "https://t.example.com". The
	// browser library is told to send its calls there. BaseURL is needed behind a proxy that ends
	// TLS, or below a path. Empty means the Host of the request, with the scheme of the connection.
	BaseURL string

	// ClientIP returns the address of the client, or "" if it is not known. The handler uses it for
	// context.ip, MaxMemory and MaxRequests. Behind a proxy ClientIP may read a header that the
	// proxy sets. Nil means the address at the other end of the connection.
	ClientIP func(r *http.Request) string

	// AllowHeaders names headers that pages may send beside those that clients need: the answer to a
	// preflight lists them. For traces that begin in the browser these are traceparent, tracestate and
	// baggage.
	AllowHeaders []string

	// Answered is called for every request after its answer, for counts and logs. It is called
	// concurrently. The client may have to wait until Answered returns. Nil is not called.
	Answered func(r *http.Request, a Answered)

	// MaxMemory bounds the memory, in bytes, that all requests together hold for bodies
	// and for events on their way to the Forwarder. Zero means DefaultMaxMemory.
	//
	// A source, or an address that ClientIP returns, may hold at most as much of this
	// memory as is still free. So a single source gets at most half of it, and two that
	// want all of it get a third each. Some memory always stays free for one more source
	// or address. A client beyond its share is told to try again later. A request that
	// needs more than half of the memory is refused as too large. Sources with the same
	// Name count as one, and so do the addresses of an IPv6 /64.
	//
	// MaxMemory does not include the buffers in which calls are read and encoded: up to
	// about 1 MB for each processor.
	MaxMemory int64

	// MaxRequests bounds the requests of one address that are in progress: from the
	// arrival of their body to their answer. A request counts as one more for each 256 KB
	// of its webhooks, and each webhook counts once for each destination. Requests of the
	// address beyond the bound wait, for some seconds at most. Meanwhile the requests of
	// other addresses are served in turn. Zero means DefaultMaxRequests.
	MaxRequests int

	// Logger gets a line when the Forwarder begins to refuse events, when Sources begins
	// to fail, and when they work again. At the debug level it also gets a line for each
	// batch with rejected calls. Nil means no logs.
	Logger *slog.Logger
}

// A Handler serves the HTTP tracking API. It is safe for concurrent use.
//
// Set ReadHeaderTimeout and ReadTimeout of the [http.Server] against slow clients. The Handler
// itself only requires that 4 KB of a body, or its end, arrive within each 5 seconds. It stops
// reading a body when the context of the request ends. Once the body is read, it serves the request
// even if the client is gone, because some clients send their calls and close the connection.
type Handler struct {
	config Config
	base   *url.URL // BaseURL, nil if there is none
	shares *shares

	lookups  health
	forwards health
}

// New returns a Handler. The error names every field of c that is wrong.
func New(c Config) (*Handler, error) {
	var wrong check.Faults
	wrong.Refuse(c.Forwarder == nil, "Forwarder", "is required")
	wrong.Refuse(c.Sources == nil, "Sources", "is required")
	var base *url.URL
	if c.BaseURL != "" {
		var err error
		base, err = weburl.ParseBase(c.BaseURL)
		wrong.Refuse(err != nil, "BaseURL", "%v", err)
	}
	c.AllowHeaders = slices.Clone(c.AllowHeaders)
	for i, name := range c.AllowHeaders {
		bad := name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == ',' || r > '~' })
		wrong.Refuse(bad, fmt.Sprintf("AllowHeaders[%d]", i), "%q is not a header name", name)
	}
	check.Least(&wrong, "MaxMemory", &c.MaxMemory, 0, DefaultMaxMemory)
	check.Least(&wrong, "MaxRequests", &c.MaxRequests, 0, DefaultMaxRequests)
	if wrong != nil {
		return nil, wrong.Err("collector")
	}
	if c.ClientIP == nil {
		c.ClientIP = peer
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Handler{
		config: c,
		base:   base,
		shares: newShares(c.MaxMemory, c.MaxRequests, runtime.GOMAXPROCS(0)),

		lookups:  health{logger: c.Logger, fails: "collector: write keys cannot be looked up; clients are told to try again later", recovers: "collector: write keys can be looked up again"},
		forwards: health{logger: c.Logger, fails: "collector: the forwarder refuses events; clients are told to try again later", recovers: "collector: the forwarder takes events again"},
	}, nil
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var a Answered
	begin := time.Now()
	// Let the other goroutines run before each request, because a request that is refused never
	// blocks. Without this, a client that sends many such requests on a connection would keep the
	// processor for 10 ms, and hundreds of such clients would keep it for seconds.
	runtime.Gosched()
	h.serve(w, r, &a)
	if h.config.Answered != nil {
		a.Took = time.Since(begin)
		h.config.Answered(r, a)
	}
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, a *Answered) {
	allowOrigins(w)
	path := r.URL.Path
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	path = strings.TrimSuffix(path, "/")
	methods := []string{http.MethodPost, http.MethodOptions}
	kind, served := kinds[path]
	key := settingsKey(path)
	if key != "" {
		methods = []string{http.MethodGet, http.MethodHead, http.MethodOptions}
		path, served = "/v1/projects/...", true
	}
	if !served {
		a.error(w, refuse(http.StatusNotFound, "not_found", "there is nothing at this path"))
		return
	}
	a.Path = path
	switch {
	case r.Method == http.MethodOptions:
		headers := append([]string{"authorization", "content-type", "x-retry-count"}, h.config.AllowHeaders...)
		a.preflight(w, strings.Join(methods, ", "), strings.Join(headers, ", "))
	case !slices.Contains(methods, r.Method):
		allowed := strings.Join(methods, ", ")
		w.Header().Set("Allow", allowed)
		a.error(w, refuse(http.StatusMethodNotAllowed, "method_not_allowed", "this path takes "+allowed))
	case key != "":
		h.serveSettings(w, r, key, a)
	case kind == "metrics":
		h.serveMetrics(w, r, a)
	default:
		h.serveCalls(w, r, kind, a)
	}
}

// kinds has the fixed paths with what they take: calls of a type, batches (""), or metrics.
var kinds = map[string]string{
	"/v1/batch": "", "/v1/b": "", "/v1/import": "", "/v1/m": "metrics",
	"/v1/identify": "identify", "/v1/i": "identify",
	"/v1/track": "track", "/v1/t": "track",
	"/v1/page": "page", "/v1/p": "page",
	"/v1/screen": "screen", "/v1/s": "screen",
	"/v1/group": "group", "/v1/g": "group",
	"/v1/alias": "alias", "/v1/a": "alias",
}

// settingsKey returns the write key in the path of the browser library's settings. It returns ""
// for any other path.
func settingsKey(path string) string {
	rest, ok := strings.CutPrefix(path, "/v1/projects/")
	key, isSettings := strings.CutSuffix(rest, "/settings")
	if !ok || !isSettings || strings.Contains(key, "/") {
		return ""
	}
	return key
}

// peer returns the IP address at the other end of the connection, or "" if it is not known.
func peer(r *http.Request) string {
	addr, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return addr.Addr().Unmap().WithZone("").String()
}
