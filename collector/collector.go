// Package collector speaks the HTTP tracking API: it takes the calls that
// clients make, in any language and in the browser, and hands them to a
// forwarder.
//
// A [Handler] is an [http.Handler]; mount it at the root of a server of its
// own:
//
//	h, err := collector.New(collector.Config{
//		Forwarder: forwarder, // a *webhook.Forwarder
//		Sources:   collector.Keys(map[string]collector.Source{writeKey: {Destinations: []string{"crm"}}}),
//	})
//	...
//	err = http.ListenAndServe(":8080", h)
//
// An [http.ServeMux] in front of it would redirect paths with a doubled slash,
// which some clients send and then do not follow.
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
// Slashes may be doubled. The write key is the user name of Basic
// authentication, with or without the colon after it, or else the body's
// writeKey; a Bearer token is not looked at. Bodies are JSON whatever their
// Content-Type says, and may be compressed with gzip. A call has at most
// analytics.MaxCallSize bytes, a batch analytics.MaxBatchSize bytes and
// analytics.MaxBatchCalls calls, counted before compression.
//
// What a call has to look like is said at [event.Encoder.Append]. The context and
// integrations of a batch are merged into each of its calls. As every webhook
// repeats the context, it has at most analytics.MaxCallSize bytes without its
// white space.
//
// A request may not become much larger than it was: the bodies of its webhooks, times the
// destinations of its source, come to at most 4 MB (of 1,048,576 bytes) and four times its
// size, counted before compression. Each body counts with at least the context of the batch.
// Calls that do not fit are rejected one by one, with the code too_large; the request is
// refused only if none fits.
//
// A context or integrations of another type than an object, or nested too
// deeply, have the batch refused; a sentAt of a batch that is no time counts as
// not known, because clients drop a batch that is refused.
//
// # Answers
//
// Every answer but a preflight's is JSON, and every answer may be read by
// pages of any origin.
//
//	200  {"success":true}  All calls are durable in the queue.
//	200  {"success":true,"rejected":[{"index":3,"code":"missing_field","message":"event is required"}]}
//	     So are all calls of the batch but those.
//	400  {"success":false,"code":"...","message":"..."}  The request or its one call is wrong.
//	401  The write key is missing or unknown.
//	404, 405, 415  As usual.
//	408  The body came too slowly.
//	429  The source sends more calls than its Limit, or more bytes than its
//	     ByteLimit. Nothing was taken. Send the same request again after the
//	     seconds of Retry-After, which X-RateLimit-Reset repeats.
//	503  The queue is full or fails, or did not answer in time, or there are
//	     more requests than there is memory for. Send the same
//	     request again after Retry-After seconds. Nothing was taken, unless
//	     the queue was about to take it when the time was over; calls are
//	     told apart by their source and messageId, so none is forwarded twice.
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
	"strings"
	"time"

	"github.com/hookferry/analytics/event"
)

// DefaultMaxMemory is the MaxMemory of a Config that sets none: 256 MB, 1 MB
// being 1,048,576 bytes.
const DefaultMaxMemory = 256 << 20

// DefaultMaxRequests is the MaxRequests of a Config that sets none.
const DefaultMaxRequests = 32

// A Forwarder takes events; a [webhook.Forwarder] is one.
type Forwarder interface {
	// ForwardEvents returns nil once the events are durable for each of the
	// destinations. After an error clients send their calls again: what was taken
	// nevertheless comes twice, unless it is recognised by its ID. Events that are
	// Off are not forwarded, nor are those whose Source and ID were seen before. It may keep the
	// events' bodies, which nobody changes and which share an array, but not the
	// slices. It is called concurrently.
	ForwardEvents(ctx context.Context, destinations []string, events ...event.Event) error
}

// A Source is where calls come from: an application with a write key.
type Source struct {
	// Name is what logs call the source, and the Source of its events: calls are
	// deduplicated by it and their messageId, so that no source can suppress another's.
	// It is no secret, and the same after a restart. Sources with the same Name are one
	// source. A source without a Name goes by a digest of its write key instead.
	Name string
	// Destinations are the ids of the destinations that get its calls.
	// Without any, its calls are checked and dropped.
	Destinations []string
	// Limit bounds its calls, and ByteLimit the bytes of the webhooks that they become,
	// each counted once for each destination: that is what the store has to write, and
	// the disk to hold, whatever the size of a request that was compressed or whose
	// calls have a context in common. Nil means no limit. They are to be the same for
	// every request.
	Limit, ByteLimit *Limit
}

// An Answered is a request that was answered.
type Answered struct {
	// Source is the Name of its source, "" if that is not known.
	Source string
	// Status is that of the answer, and Code its code, "" for a 2xx.
	Status int
	Code   string
	// Accepted counts the calls that are durable or, as their source has no
	// destinations or their integrations say so, dropped; Rejected those of a
	// batch that are wrong, and the one of a request that is.
	Accepted, Rejected int
	// Size is that of the body in bytes, as it came, 0 if it was not read to
	// its end.
	Size int
	// Took is the time from the end of the header to the answer.
	Took time.Duration
}

// ErrUnknownKey is returned by Config.Sources for a write key that belongs to
// no source.
var ErrUnknownKey = errors.New("collector: unknown write key")

// Config configures a Handler. New copies it.
type Config struct {
	// Forwarder takes the events. Required.
	Forwarder Forwarder

	// Sources finds the source of a write key, which is never empty. It
	// returns ErrUnknownKey, wrapped or not, if there is none; clients that get
	// another error are told to come back later. It is called concurrently,
	// for every request, and should take the same time for every key. Keys
	// makes one of a map. Required.
	Sources func(ctx context.Context, writeKey string) (Source, error)

	// BaseURL is where browsers reach the handler, such as
	// "https://t.example.com", if that is not what their requests say: behind
	// a proxy that ends TLS, or below a path. The browser library is told to
	// send its calls there. Empty means the Host of the request, with the
	// scheme of the connection.
	BaseURL string

	// ClientIP returns the address of whoever sent a request, for
	// context.ip, or "" if it is not known; behind a proxy it may read a header
	// that the proxy sets. Nil means the peer's address.
	ClientIP func(r *http.Request) string

	// PassTrace passes the headers traceparent and tracestate of a request on
	// with its events, as event.ContextWithTrace does: to the endpoints of
	// customers, who then see the trace ids. It is for a collector whose
	// clients are the operator's own services.
	PassTrace bool

	// Answered is told of every request once it is answered, such as to count
	// and to log. It is called concurrently, and the client may wait for it. Nil
	// means nobody.
	Answered func(r *http.Request, a Answered)

	// MaxMemory bounds the memory in bytes that requests hold at once for
	// bodies and for events on their way to the Forwarder. Zero means
	// DefaultMaxMemory.
	//
	// A source, and an address that ClientIP returns, may hold as much of it as they
	// leave to all others: half, if they alone have requests, a third each of two that
	// want all of it. So there is room for others whatever they do. Clients that want
	// more are told to come back later, and those whose request would need more than
	// half of all, that it is too large. Sources with the same Name count as one, and
	// so do the addresses of an IPv6 /64.
	//
	// The space in which calls are read and encoded comes on top: up to about 1 MB for
	// each processor.
	MaxMemory int64

	// MaxRequests bounds the requests of an address that are in progress at once, from
	// when their body is there to their answer. One counts once more for each 256 KB of
	// webhooks, times destinations, that it becomes. More of them wait, for some seconds
	// at most, while those of other addresses are served in turn. Zero means
	// DefaultMaxRequests.
	MaxRequests int

	// Logger is told when the Forwarder begins to refuse events or Sources to
	// fail, and when they work again, and, at the debug level, of calls that
	// are refused in a batch. Nil means no logs.
	Logger *slog.Logger
}

// A Handler serves the HTTP tracking API. It is safe for concurrent use.
//
// ReadHeaderTimeout and ReadTimeout of the [http.Server] guard against slow clients. The
// Handler itself only wants 4 KB of a body, or its end, within each 5 seconds. It stops
// reading a body when the context of the request ends. A request whose body it has read it
// serves to the end, also if the client is gone: some clients send and hang up.
type Handler struct {
	config   Config
	protocol string // of BaseURL
	apiHost  string // of BaseURL
	shares   *shares
	pace     pacemaker
	lookups  health
	forwards health
}

// New returns a Handler, or an error that names the field of c that is wrong.
func New(c Config) (*Handler, error) {
	switch {
	case c.Forwarder == nil:
		return nil, errors.New("collector: Forwarder: is required")
	case c.Sources == nil:
		return nil, errors.New("collector: Sources: is required")
	case c.MaxMemory < 0:
		return nil, fmt.Errorf("collector: MaxMemory: %d is negative", c.MaxMemory)
	case c.MaxRequests < 0:
		return nil, fmt.Errorf("collector: MaxRequests: %d is negative", c.MaxRequests)
	}
	if c.MaxRequests == 0 {
		c.MaxRequests = DefaultMaxRequests
	}
	if c.MaxMemory == 0 {
		c.MaxMemory = DefaultMaxMemory
	}
	if c.ClientIP == nil {
		c.ClientIP = peer
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	h := &Handler{
		config:   c,
		shares:   newShares(c.MaxMemory, c.MaxRequests, runtime.GOMAXPROCS(0)),
		pace:     pacemaker{bodies: map[*pacedBody]struct{}{}},
		lookups:  health{logger: c.Logger, fails: "collector: looking up write keys fails", recovers: "collector: looking up write keys works again"},
		forwards: health{logger: c.Logger, fails: "collector: the forwarder refuses events", recovers: "collector: the forwarder takes events again"},
	}
	if c.BaseURL != "" {
		u, err := url.Parse(c.BaseURL)
		switch {
		case err != nil:
			return nil, errors.New("collector: BaseURL: is no URL")
		case u.Scheme != "http" && u.Scheme != "https":
			return nil, fmt.Errorf("collector: BaseURL: has the scheme %q; http and https are allowed", u.Scheme)
		case u.Host == "":
			return nil, errors.New("collector: BaseURL: has no host")
		case u.User != nil || u.RawQuery != "" || u.Fragment != "":
			return nil, errors.New("collector: BaseURL: may have a scheme, a host and a path only")
		}
		h.protocol = u.Scheme
		h.apiHost = u.Host + strings.TrimRight(u.EscapedPath(), "/") + "/v1"
	}
	return h, nil
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var a Answered
	begin := time.Now()
	// Requests that are refused at once wait for nothing. While a client has sent the next
	// one, its connection would keep the processor for 10 ms, and hundreds of them for
	// seconds: so each request lets the others go first.
	runtime.Gosched()
	h.serve(w, r, &a)
	if h.config.Answered != nil {
		a.Took = time.Since(begin)
		h.config.Answered(r, a)
	}
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, a *Answered) {
	allowOrigins(w)
	to := route(r.URL.Path)
	if to.endpoint == nowhere {
		a.error(w, refuse(http.StatusNotFound, "not_found", "there is nothing at this path"))
		return
	}
	methods := "POST, OPTIONS"
	if to.endpoint == settings {
		methods = "GET, HEAD, OPTIONS"
	}
	switch {
	case r.Method == http.MethodOptions:
		a.preflight(w, methods)
		return
	case to.endpoint == settings && (r.Method == http.MethodGet || r.Method == http.MethodHead):
	case to.endpoint != settings && r.Method == http.MethodPost:
	default:
		w.Header().Set("Allow", methods)
		a.error(w, refuse(http.StatusMethodNotAllowed, "method_not_allowed", "this path takes "+methods))
		return
	}
	switch to.endpoint {
	case calls:
		h.serveCalls(w, r, to.kind, a)
	case metrics:
		h.serveMetrics(w, r, a)
	case settings:
		h.serveSettings(w, r, to.key, a)
	}
}

// An endpoint is a kind of request.
type endpoint int

const (
	nowhere endpoint = iota
	calls
	metrics
	settings
)

// A target is what a path leads to.
type target struct {
	endpoint endpoint
	kind     string // of the one call, "" of a batch
	key      string // of settings
}

// route finds what a path leads to.
func route(path string) target {
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	rest, ok := strings.CutPrefix(path, "/v1/")
	if !ok {
		return target{}
	}
	switch rest {
	case "batch", "b", "import":
		return target{endpoint: calls}
	case "m":
		return target{endpoint: metrics}
	case "identify", "i":
		return target{endpoint: calls, kind: "identify"}
	case "track", "t":
		return target{endpoint: calls, kind: "track"}
	case "page", "p":
		return target{endpoint: calls, kind: "page"}
	case "screen", "s":
		return target{endpoint: calls, kind: "screen"}
	case "group", "g":
		return target{endpoint: calls, kind: "group"}
	case "alias", "a":
		return target{endpoint: calls, kind: "alias"}
	}
	if rest, ok = strings.CutPrefix(rest, "projects/"); ok {
		if key, ok := strings.CutSuffix(rest, "/settings"); ok && key != "" && !strings.Contains(key, "/") {
			return target{endpoint: settings, key: key}
		}
	}
	return target{}
}

// peer returns the address of the other end of the connection.
func peer(r *http.Request) string {
	addr, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return addr.Addr().Unmap().WithZone("").String()
}
