package webhook

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/signature"
)

// The limits of Destination and Endpoint. Those of endpoints and headers are of the
// public webhook documentation.
const (
	// MaxEndpoints is how many endpoints a destination may have.
	MaxEndpoints = 5
	// MaxHeaders is how many static headers an endpoint may have.
	MaxHeaders = 5
	// MaxStandardSecrets is how many secrets for Standard Webhooks a
	// destination may have.
	MaxStandardSecrets = 5

	maxURL         = 8 << 10 // bytes of an endpoint's URL
	maxHeaderValue = 8 << 10 // bytes of a static header's value
	maxID          = 255     // bytes of a destination's id and of a delivery's
)

// A Destination is a customer's set of endpoints. A delivery is done when one
// of them takes it.
type Destination struct {
	// ID names the destination, in 1 to 255 bytes. Deliveries are stored
	// with it.
	ID string
	// Endpoints are where its deliveries go: 1 to MaxEndpoints, each with a
	// URL of its own. The first attempt goes to all of them at once.
	Endpoints []Endpoint
	// Secret signs every request in X-Signature (package signature). Empty
	// means that it is not sent. There is one, because there is one signature:
	// while it is replaced, the receiver accepts both.
	Secret signature.Secret
	// StandardSecrets add the headers of Standard Webhooks to every request,
	// with a signature for each secret: at most MaxStandardSecrets, and
	// several only while one replaces another. Each is "whsec_" and the base64
	// of 24 to 64 bytes, as signature.NewStandardSecret makes them, or a private key, "whsk_"
	// and the base64 of an Ed25519 key, as signature.NewStandardPrivateKey does: then the
	// receiver has only its public key. A signature by a private key takes some 25 us. The
	// webhook-id is the ID of the Delivery: the messageId, or with a source what is
	// derived from both. Bytes other than visible ASCII, full stops and percent signs
	// are percent-encoded. Empty means no such headers.
	StandardSecrets []signature.Secret
	// TLS has client certificates and authorities for the connections to this
	// destination alone, which are not used for any with other settings. Nil
	// means those of Config.TLSClientConfig.
	TLS *TLS
	// NetHTTP makes the requests with net/http instead of the package's own client of
	// HTTP/1.1. It is for a receiver whose answers the latter refuses as malformed
	// (ReasonProtocol) although other clients take them. A request then costs twice to
	// four times as much CPU, and about 60 allocations. Everything else stays: time
	// limits, bounds, the address guard, and that redirects are not followed. HTTP/2,
	// proxies and internationalised host names go through net/http in any case.
	NetHTTP bool
	// Timeout is the time that one attempt has, at most Config.Timeout. Zero means that.
	Timeout time.Duration
	// Window is how long a delivery is attempted, at most Config.Window. Zero means that. A
	// change counts for deliveries that were not attempted before.
	Window time.Duration
	// Schedule says how long a delivery waits between its attempts.
	Schedule Schedule
	// Disabled keeps the deliveries until the destination is enabled.
	Disabled bool
	// Filter selects the events that Forward, ForwardEvents and Deliveries store for this
	// destination; Stats counts the others as Filtered. With Config.Lookup it is set only
	// together with Config.LookupFilters. Deletion notices and audiences pass it.
	Filter Filter
	// FilterFunc is a filter in Go beside Filter: it reports whether the destination gets
	// the event, of those that Filter takes. It is called concurrently, and changes nothing
	// of the event. Nil takes all.
	FilterFunc func(*event.Event) bool
	// Transform makes the body that this destination gets of each event that its filters take,
	// before Forward, ForwardEvents, ForwardTx and ForwardEventsTx store it. The Body of the
	// result has to be a JSON object of at most 128 KB; it is written in the form of all
	// bodies, and its other fields do not count. A result that is Off leaves the event out,
	// which Stats counts as Filtered. The event that Transform is given is its own to change.
	//
	// It has 1 s for an event, and must end with its context; Forward waits for it. An error,
	// a panic, and a result that comes later or is not valid leave the event out for this
	// destination alone: it is not stored, so it is lost to the destination. Stats counts it
	// in TransformErrors, and the error is logged, so it must not hold what is secret. A
	// Transform that may lose no event returns those it fails for as they are. It is called
	// concurrently. What is replayed was transformed before. Deletion notices and audiences
	// are not transformed. With Config.Lookup it is set only together with
	// Config.LookupFilters. Nil stores events as they are.
	Transform func(context.Context, event.Event) (event.Event, error)
	// Authorize sets headers of one request to one endpoint, such as an access token that
	// expires. It is called before each request with the endpoint's URL as it stands in
	// Endpoints, and with an empty header: what it sets is sent with this request alone. It may set up to
	// MaxHeaders headers, each with one value, and none that Endpoint.Headers may not
	// replace or that the endpoint has already, nor traceparent and tracestate.
	//
	// It has the time of the attempt, and must end with its context. An error, a panic or a
	// header that is not allowed is a failed attempt with ReasonAuthorize, for which no request
	// is sent and which is repeated as one that the endpoint answered by 5xx. The error is
	// stored and logged, in up to 256 bytes, without the values that were set. It is called
	// concurrently, also by Try. Nil sets nothing.
	Authorize func(ctx context.Context, url string, header http.Header) error
	// MaxConcurrent bounds the deliveries attempted at once. Zero means
	// Config.MaxConcurrent.
	MaxConcurrent int
	// MaxRate bounds the attempts a second, from one a day to 1,000,000. What
	// exceeds it waits in the store, with its window not begun if it was not
	// attempted before. Zero means no bound. Each Forwarder keeps its own
	// count, and begins anew with the process.
	MaxRate float64
	// MaxBurst is how many attempts may be made at once after a time with
	// fewer than MaxRate: in t seconds there are at most MaxBurst + t*MaxRate.
	// Zero means a tenth of a second's worth, at least 1. It is not set without
	// MaxRate, and at most a day's worth of it.
	MaxBurst int
}

// An Endpoint is a URL that takes webhooks.
type Endpoint struct {
	// URL is absolute, with the scheme http or https, in at most 8,192 bytes.
	// User and password in it are sent as basic authentication. The host is a
	// name, or an address in its usual form: 2130706433 and 0x7f.1, which are
	// addresses to some resolvers, are refused.
	URL string
	// Headers are added to each request: at most MaxHeaders, with values of up
	// to 8,192 bytes, and names that differ by more than case. They may not
	// replace those that carry the message: Host, Content-Length,
	// Content-Type, Transfer-Encoding, Connection, User-Agent, X-Signature
	// and those of Standard Webhooks; nor be about the connection: Expect,
	// Keep-Alive, Proxy-Connection, TE, Trailer and Upgrade.
	Headers map[string]string
}

// Validate checks the destination as New does, and returns everything that is wrong with it: a
// *ConfigError, or several of them joined as errors.Join does.
func (d *Destination) Validate() error {
	_, wrong := compile(d, &Config{
		ServiceName: DefaultServiceName, MaxConcurrent: DefaultMaxConcurrent, Timeout: DefaultTimeout, Window: DefaultWindow,
	})
	return wrong.join()
}

// forbiddenHeaders are those that carry the message or are about the connection
// (RFC 9110, section 7.6.1), which is the client's business; in canonical form.
var forbiddenHeaders = map[string]bool{
	"Host": true, "Content-Length": true, "Content-Type": true, "Transfer-Encoding": true,
	"Connection": true, "User-Agent": true, signature.Header: true,
	"Expect": true, "Keep-Alive": true, "Proxy-Connection": true, "Te": true, "Trailer": true, "Upgrade": true,
	"Webhook-Id": true, "Webhook-Timestamp": true, "Webhook-Signature": true,
}

func checkURL(field, s string) (*url.URL, error) {
	if s == "" {
		return nil, refuse(field, "is required")
	}
	if len(s) > maxURL {
		return nil, refuse(field, "is %d bytes long, the limit is %d", len(s), maxURL)
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, refuse(field, "is no URL") // what is wrong may be in a password
	}
	if u.Scheme == "" {
		return nil, refuse(field, "has no scheme; want one such as https://example.com/hook")
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, refuse(field, "has the scheme %q; http and https are allowed", u.Scheme)
	}
	if u.Hostname() == "" {
		return nil, refuse(field, "has no host")
	}
	if err := checkHost(field, u); err != nil {
		return nil, err
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, refuse(field, "has the port %s; 1 to 65535 are allowed", port)
		}
	}
	if strings.Contains(u.RawQuery, " ") {
		return nil, refuse(field, "has a space in its query")
	}
	return u, nil
}

func checkHeader(field, name, value string) error {
	if !isToken(name) {
		return refuse(field, "is not a header name")
	}
	if len(value) > maxHeaderValue {
		return refuse(field, "has a value of %d bytes, the limit is %d", len(value), maxHeaderValue)
	}
	if strings.Trim(value, " \t") != value {
		return refuse(field, "has a value with white space around it")
	}
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return refuse(field, "has a value with a control character")
		}
	}
	return nil
}

// checkRate returns the least time between the attempts of a Destination, and its burst.
func checkRate(perSecond float64, burst int) (time.Duration, int, error) {
	const day = 24 * time.Hour
	switch {
	case perSecond == 0 && burst == 0:
		return 0, 0, nil
	case perSecond == 0:
		return 0, 0, refuse("MaxBurst", "is set without a rate")
	case !(perSecond >= 1/day.Seconds()) || perSecond > 1e6:
		return 0, 0, refuse("MaxRate", "%v is not between one a day and 1,000,000 a second", perSecond)
	case burst < 0:
		return 0, 0, refuse("MaxBurst", "%d is negative", burst)
	case burst == 0:
		burst = max(int(perSecond/10), 1)
	}
	if float64(burst) > max(perSecond*day.Seconds(), 1) {
		return 0, 0, refuse("MaxBurst", "%d is more than a day's worth of MaxRate", burst)
	}
	return time.Duration(math.Ceil(float64(time.Second) / perSecond)), burst, nil
}
