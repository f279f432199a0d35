package webhook

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/weburl"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook/store"
)

const (
	MaxStandardSecrets = 5 // of a destination

	// The limits of the public webhook documentation.
	maxEndpoints = store.MaxEndpoints // of a destination
	maxHeaders   = 5                  // static headers of an endpoint

	maxURL         = 8 << 10 // bytes of an endpoint's URL
	maxHeaderValue = 8 << 10 // bytes of a static header's value
	maxID          = store.MaxID
)

// A Destination is a customer's set of endpoints. A delivery is done when one of them takes it.
type Destination struct {
	ID string // 1 to 255 bytes, stored with the deliveries
	// Tenant owns the destination, and is stored with the deliveries: up to 255 bytes. Empty means that
	// the destination is the program's own.
	Tenant string
	// Trusted says that the operator wrote the URLs: the address guard allows any IP address in them,
	// and "localhost". Other host names must resolve to addresses that are public or in
	// Config.AllowAddresses. Never set it for URLs that customers wrote.
	Trusted bool
	// Endpoints lists one to five endpoints, each with a URL of its own. The first attempt of a
	// delivery goes to all at once.
	Endpoints []Endpoint
	// Secret is the key of the X-Signature of every request; see package signature. Empty means no
	// such header. Before you replace it, make the receiver accept both.
	Secret signature.Secret
	// StandardSecrets add the headers of Standard Webhooks to every request, with a signature for each
	// of up to MaxStandardSecrets secrets. Use several only while one replaces another. Empty means no
	// such headers.
	//
	// A secret is "whsec_" and the base64 of 24 to 64 bytes; see signature.NewStandardSecret. Or it is
	// "whsk_" and the base64 of an Ed25519 key; see signature.NewStandardPrivateKey. Then the receiver
	// needs only the public key, and a signature takes about 25 us.
	//
	// The webhook-id is the ID of the Delivery, in which full stops, percent signs and all bytes but
	// visible ASCII are percent-encoded.
	StandardSecrets []signature.Secret
	TLS             *TLS // for the connections to this destination; nil means Config.TLSClientConfig
	// NetHTTP makes the requests with net/http instead of this package's own HTTP/1.1 client. Both
	// take answers in the same way, so this helps only if the own client has a fault. A request then
	// costs two to four times as much CPU, and about 60 allocations. All limits and the address guard
	// still apply.
	// HTTP/2, proxies and internationalised host names use net/http anyway.
	NetHTTP bool
	// Timeout bounds an attempt, at most that of Retries, or else Config.Timeout. Zero means that limit.
	Timeout time.Duration
	// Window is how long a delivery is attempted, at most that of Retries, or else Config.Window. Zero
	// means that limit. A change applies only to deliveries that were not attempted before.
	Window   time.Duration
	Schedule Schedule // how long a delivery waits between its attempts
	Retries  *Retries // in place of Config.Retries, unless nil
	Disabled bool     // stops the attempts of this destination; its deliveries stay in the store
	// Filter selects the events that Forward and its variants store for this destination, except
	// deletion notices and audiences. Stats counts those left out as Filtered.
	Filter Filter
	// Transform makes the body that this destination gets for an event that Filter takes. It may
	// change the event that it is given. The Body of its result must be a JSON object of at most 128
	// KB, which is re-encoded as JSON.stringify would. If Off is set in the result, the destination
	// does not get the event, which counts as Filtered. Other fields of the result have no effect.
	//
	// Forward waits for Transform, which has 1 s for an event, and must end with its context. If
	// Transform returns an error, panics, is late, or returns a wrong result, the destination does not
	// get the event, and Stats counts it in TransformErrors. The error is logged, so it must hold no
	// secret. If no event may be lost, Transform must return the events that it cannot change as they
	// are. Transform is called concurrently, but not for replayed deliveries, deletion notices and
	// audiences. Nil stores events as they are.
	Transform func(context.Context, event.Event) (event.Event, error)
	// Authorize returns headers of one request, such as an access token that expires. It is called
	// before each request, with the endpoint's URL as it is in Endpoints. It may return up to
	// five headers, but not traceparent, tracestate, one that Endpoint.Headers may not set, or
	// one that the endpoint has already.
	//
	// Authorize may take as long as the attempt, and must return when its context ends. If it returns
	// an error, panics or returns a header that is not allowed, the attempt fails with
	// ReasonAuthorize, and is repeated as after a 5xx. Up to 256 bytes of the error are stored and
	// logged, without the values. Authorize is called concurrently, also by Try. Nil adds nothing.
	Authorize     func(ctx context.Context, url string) (map[string]string, error)
	MaxConcurrent int // bounds the deliveries, or batches of them, attempted at once; zero means Config.MaxConcurrent
	// MaxRate bounds how many attempts each Forwarder makes in a second: from 1/86,400, one a day,
	// to 1,000,000. A batch is one attempt. Further deliveries wait in the store; the retry window
	// of a fresh one does not begin. Zero means no bound.
	MaxRate float64
	// MaxBurst is the size of the token bucket that MaxRate fills: any t seconds have at most
	// MaxBurst + t*MaxRate attempts. It is at most a day's attempts. Zero means the attempts of 0.1
	// s, but at least 1.
	MaxBurst int
	Order    Order // which deliveries come one after the other
	Batch    Batch // how many deliveries a request may have; zero: each has a request of its own
}

// An Endpoint is a URL that takes webhooks.
type Endpoint struct {
	// URL is absolute, with the scheme http or https, in at most 8,192 bytes. User and password in it
	// are sent as basic authentication. The host is a name, or an address in its usual form:
	// 2130706433 and 0x7f.1, which some resolvers take for addresses, are refused. International names
	// are mapped by UTS #46. Spaces and invisible characters are refused.
	URL string `json:"url"`
	// Headers are added to each request: at most five, with values of up to 8,192 bytes, and
	// names that differ by more than case. Not allowed are those of the message: Host, Content-Length,
	// Content-Type, Transfer-Encoding, User-Agent, X-Signature, those of Standard Webhooks; and those
	// of the connection: Connection, Expect, Keep-Alive, Proxy-Connection, TE, Trailer, Upgrade.
	Headers map[string]string `json:"headers,omitempty"`
}

// Validate checks the destination as New does, and joins all faults, *ConfigErrors, by errors.Join.
func (d *Destination) Validate() error {
	_, err := compile(d, &Config{
		ServiceName: DefaultServiceName, MaxConcurrent: DefaultMaxConcurrent, Timeout: DefaultTimeout, Window: DefaultWindow,
	}, nil)
	return err
}

// forbiddenHeaders carry the message or are about the connection (RFC 9110, section 7.6.1).
var forbiddenHeaders = map[string]bool{
	"Host": true, "Content-Length": true, "Content-Type": true, "Transfer-Encoding": true,
	"Connection": true, "User-Agent": true, signature.Header: true,
	"Expect": true, "Keep-Alive": true, "Proxy-Connection": true, "Te": true, "Trailer": true, "Upgrade": true,
	"Webhook-Id": true, "Webhook-Timestamp": true, "Webhook-Signature": true,
}

// ParseURL parses a URL that a person entered. Like New, it maps an international host to ASCII by
// UTS #46, and refuses spaces and invisible characters. The error is a predicate, such as "is no URL",
// and quotes no part of s, which may hold a password.
func ParseURL(s string) (*url.URL, error) { return weburl.Parse(s) }

// checkURL returns the URL of an endpoint, or what is wrong with it.
func checkURL(s string) (u *url.URL, problem string) {
	u, err := weburl.Parse(s)
	switch {
	case s == "":
		return nil, "is required"
	case len(s) > maxURL:
		return nil, fmt.Sprintf("is %d bytes long, the limit is %d", len(s), maxURL)
	case err != nil:
		return nil, err.Error()
	case u.Scheme == "":
		return nil, "has no scheme; want one such as https://example.com/hook"
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Sprintf("has the scheme %q; http and https are allowed", u.Scheme)
	case u.Hostname() == "":
		return nil, "has no host"
	}
	if problem := checkHost(u); problem != "" {
		return nil, problem
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, fmt.Sprintf("has the port %s; 1 to 65535 are allowed", port)
		}
	}
	return u, ""
}

// checkHeader returns what is wrong with a static header.
func checkHeader(name, value string) (problem string) {
	control := func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }
	switch {
	case !check.IsToken(name):
		return "is not a header name"
	case len(value) > maxHeaderValue:
		return fmt.Sprintf("has a value of %d bytes, the limit is %d", len(value), maxHeaderValue)
	case strings.Trim(value, " \t") != value:
		return "has a value with white space around it"
	case strings.ContainsFunc(value, control):
		return "has a value with a control character"
	case forbiddenHeaders[http.CanonicalHeaderKey(name)]:
		return "may not be replaced"
	}
	return ""
}

// checkRate returns the least time between the attempts of a Destination, and its burst.
func checkRate(perSecond float64, burst int, wrong *check.Faults) (time.Duration, int) {
	const day = 24 * time.Hour
	was := len(*wrong)
	wrong.Refuse(perSecond != 0 && !(perSecond >= 1/day.Seconds() && perSecond <= 1e6), "MaxRate", "%v is not between one a day and 1,000,000 a second", perSecond)
	wrong.Refuse(perSecond == 0 && burst != 0, "MaxBurst", "is set without a rate")
	if len(*wrong) > was || perSecond == 0 {
		return 0, 0
	}
	check.Least(wrong, "MaxBurst", &burst, 0, max(int(perSecond/10), 1))
	wrong.Refuse(float64(burst) > max(perSecond*day.Seconds(), 1), "MaxBurst", "%d is more than a day's worth of MaxRate", burst)
	return time.Duration(math.Ceil(float64(time.Second) / perSecond)), burst
}
