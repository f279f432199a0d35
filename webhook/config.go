package webhook

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// The defaults of Config. Timeout and window are those of the public webhook
// documentation.
const (
	// DefaultTimeout is the time an endpoint has for a complete answer.
	DefaultTimeout = 5 * time.Second
	// DefaultWindow is how long a delivery is attempted, from the start of its first attempt.
	DefaultWindow = 4 * time.Hour
	// DefaultServiceName is the product in the User-Agent of every request.
	DefaultServiceName = "Hookferry"
	// DefaultMaxConcurrent is how many deliveries of one destination are attempted at once.
	DefaultMaxConcurrent = 64
	// DefaultMaxInFlight is how many deliveries of all destinations are attempted at once.
	DefaultMaxInFlight = 1024
	// DefaultMaxBytesInFlight bounds the bytes of bodies in memory: 64 MB of 1,048,576 bytes.
	DefaultMaxBytesInFlight = 64 << 20
	// DefaultPoll is how often the store is asked for deliveries that other processes have put.
	DefaultPoll = time.Second

	// DefaultDeadMaxAge is how long dead letters are kept.
	DefaultDeadMaxAge = 30 * 24 * time.Hour
	// DefaultDeadMaxBytes bounds the bytes of dead letters: 1 GB of 1,073,741,824 bytes.
	DefaultDeadMaxBytes = 1 << 30
	// Unlimited switches Config.DeadMaxAge or Config.DeadMaxBytes off.
	Unlimited = -1
)

// Config configures a Forwarder. New copies it, and returns a *ConfigError if it is not valid. A panic
// in DialContext, or in the handler of Logger, ends the program, as it does under net/http and log/slog.
type Config struct {
	// Store keeps the deliveries. It is required. The caller opens it, and closes it after Run
	// has returned. Only this Forwarder uses the value: another one on the same store, also in
	// the same process, has a Store value of its own.
	Store Store

	// Note returns a text about this node, which Shared.Nodes shows on every node of a shared
	// store. A text of more than MaxNote bytes is not shown. Note is called for each heartbeat,
	// and must not wait. Nil shows nothing.
	Note func() []byte

	// Destinations are the destinations, each with an id of its own. Their URLs are trusted: IP
	// addresses and "localhost" in them pass the address guard. The addresses that another name
	// resolves to pass only if they are public or AllowAddresses lists them.
	Destinations []Destination

	// Lookup finds a destination by its id, in place of Destinations. It is called before every
	// attempt, concurrently, so that a change takes effect at once. To keep that cheap, it
	// returns the same pointer for an unchanged destination. A destination that Lookup has
	// returned must not be changed afterwards.
	//
	// While Lookup fails, or returns ErrUnknownDestination or a destination that is disabled or
	// not valid, the deliveries of the destination wait, and Lookup is called again: after a
	// failure within seconds, else every half minute. Their windows are as during a Pause.
	// Lookup has Timeout, and must end with its context. A panic in it counts as a failure. It
	// must not end its goroutine in another way.
	//
	// Its URLs are not trusted, as customers may have written them: IP addresses and "localhost"
	// in them pass the address guard only if AllowAddresses lists them, unless TrustLookup is
	// set.
	Lookup func(ctx context.Context, id string) (*Destination, error)

	// TrustLookup trusts the URLs that Lookup returns as those of Destinations. Set it if they
	// come from the operator, for example from a configuration file that is read again when it
	// changes.
	TrustLookup bool

	// LookupFilters says that Lookup returns destinations with filters or a Transform. Then
	// Forward and its variants call Lookup, too, with their context, for each destination. They
	// return its error and store nothing. ErrUnknownDestination is no error for them: it means a
	// destination without filters.
	LookupFilters bool

	// ServiceName is the product in "User-Agent: <ServiceName>/1.0". Empty means
	// DefaultServiceName.
	ServiceName string

	// Timeout is the time that one attempt has, from its start to the end of the answer's body.
	// Zero means DefaultTimeout.
	Timeout time.Duration

	// Window is the retry window: how long a delivery is attempted, from the start of its first
	// attempt. The last attempt starts Timeout before the end of the window. The end is stored
	// with the outcome of the first attempt; after a crash before that, the window begins again.
	// Zero means DefaultWindow.
	Window time.Duration

	// DisableAfter is how long all attempts of a destination may fail until the forwarder
	// disables it. The forwarder logs that, calls a DisableObserver, and keeps the deliveries
	// until Resume, as Pause does, or buries them; see BuryDisabled. Each node measures the time
	// by itself, and begins again when its process starts. Zero means never.
	DisableAfter time.Duration
	// DisableGone disables a destination in the same way when all endpoints of an attempt answer
	// 410 Gone. The delivery becomes a dead letter.
	DisableGone bool
	// BuryDisabled makes dead letters, with ReasonDisabled, of all deliveries of a destination
	// that the forwarder has disabled: those that wait, and those that come until Resume. All
	// nodes of a store need the same setting.
	BuryDisabled bool

	// MaxConcurrent bounds the attempts at once for a destination without a MaxConcurrent of its
	// own. A destination begins with four, gets one more with each answer while it uses half of
	// its attempts, and loses some with each timeout. While several destinations have
	// deliveries, each may have its share of three quarters of MaxInFlight. Zero means
	// DefaultMaxConcurrent, but at most a quarter of MaxInFlight.
	//
	// A destination that only fails (timeouts, connection errors, 5xx, 408, 425 and 429) is
	// probed: after ten failures in a row, where a timeout counts as three, there is one attempt
	// at a time. Deliveries that were attempted before keep their schedule, at most one a second.
	// The others wait, and their window does not begin. One of them is attempted if there was no
	// attempt for 1 s, and later for times that double up to 30 s. When the destination answers,
	// all deliveries go on, two at a time at first. A delivery becomes a dead letter without an
	// attempt if it was due for as long as Window while Run ran and the destination only failed.
	MaxConcurrent int

	// MaxInFlight bounds the deliveries that are attempted at once. As many again may be ready in
	// memory. All destinations that have not answered, or not of late, have at most half of it,
	// and those that fail a quarter, so that they leave room to the others. Zero means
	// DefaultMaxInFlight.
	//
	// While fresh deliveries come, few attempts begin for deliveries that have waited for over
	// 100 ms: two at a time for each processor, where an attempt counts for a millisecond at
	// most.
	MaxInFlight int

	// MaxBytesInFlight bounds the bytes of bodies in memory: of deliveries that are attempted,
	// that are ready, and whose outcome is not stored yet. A single body may exceed it. While
	// several destinations have deliveries, each has its share. At the bound nothing more is
	// fetched from the store. Zero means DefaultMaxBytesInFlight.
	MaxBytesInFlight int64

	// Poll is how often the store is asked whether another process has put deliveries. Zero
	// means DefaultPoll.
	Poll time.Duration

	// AllowAddresses are addresses that pass the guard although they are private, loopback,
	// link-local or otherwise not public. If the guard refuses all addresses that a name resolves
	// to, the delivery is given up with ReasonAddress. Otherwise the addresses that pass are
	// tried, and their errors count.
	AllowAddresses []netip.Prefix

	// Proxy is the proxy for all requests. Its scheme is http or socks5, and it gets the user
	// and password of the URL. Nil means none: proxies in the environment are not used.
	//
	// The proxy makes the connections, so the address guard sees none of them, and
	// AllowAddresses has no effect. The proxy itself must refuse addresses that customers may
	// not reach. If it makes no connection for an https URL, or answers 407, the delivery is
	// retried, with ReasonConnection. Another answer to an http URL counts as the endpoint's.
	Proxy *url.URL

	// DialContext opens connections in place of a net.Dialer. The address guard does not see
	// them. DialContext must return when its context ends, which is at the latest when the
	// attempt times out. Its connections need not support deadlines, as some tunnels do not,
	// but closing one must end its reads and writes.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)

	// TLSClientConfig is the TLS configuration of all connections. New clones it, raises its
	// MinVersion to TLS 1.2, and refuses InsecureSkipVerify. Nil means the system's roots.
	TLSClientConfig *tls.Config

	// DeadMaxAge is how long dead letters are kept. Zero means DefaultDeadMaxAge, Unlimited that
	// their age does not count.
	//
	// While Run runs, it discards dead letters over this bound and DeadMaxBytes, a minute after
	// its start and then every hour, so there may be more of them in between. It logs that, and
	// counts them in Stats.Forgotten. The store may have a lower bound of its own.
	DeadMaxAge time.Duration
	// DeadMaxBytes bounds the Sizes of all dead letters. Over it, the oldest are discarded. Zero
	// means DefaultDeadMaxBytes, Unlimited that their size does not count. That saves reading
	// all of them every hour, with a store that does not know their size.
	DeadMaxBytes int64

	// Observer learns of accepted events, of each request, and of the end of each delivery. Nil
	// means none, which costs nothing.
	Observer Observer

	// Trace returns the values of the headers traceparent and tracestate for the context of a
	// call of Forward, its variants and Try, for example with OpenTelemetry's propagator. They
	// are stored, and sent with every attempt; see event.Trace. If traceparent is empty or not
	// valid, or Trace is nil, those of event.ContextWithTrace are taken. A static header with the
	// name of one of the two is sent in place of both. Trace is called concurrently.
	Trace func(ctx context.Context) (traceparent, tracestate string)

	// Logger gets warnings, and what happens to deliveries. Nil means no logs.
	// The keys are these, and no others:
	//
	//	destination  its id
	//	source       the delivery's Source, empty if it has none
	//	id           the delivery's MessageID
	//	reason       a Reason
	//	tries        number of attempts of the delivery so far
	//	endpoint     URL without user, query and fragment
	//	status       HTTP status, 0 if there was none
	//	since        when the attempts of a destination began to fail
	//	error        what failed, without secrets
	//	due          when the delivery is attempted again
	//	wait         how long until the destination is looked up again
	//	unlogged     how many lines like this one were left out since the last one
	//	bound        the bound that dead letters exceeded: "age" or "size"
	//	count        how many deliveries or dead letters this line is about
	Logger *slog.Logger
}

// ErrUnknownDestination says that there is no destination with an id. A Lookup may return it wrapped.
var ErrUnknownDestination = errors.New("webhook: unknown destination")

// A ConfigError names a setting that New or Validate refuses.
type ConfigError struct {
	// Field is the path of the setting, such as "Endpoints[1].URL".
	Field string
	// Problem says what is wrong with it and what is allowed. It holds no secret, and nothing
	// of a URL but its scheme and host.
	Problem string
}

func (e *ConfigError) Error() string { return "webhook: " + e.Field + ": " + e.Problem }

// refuse returns a *ConfigError.
func refuse(field, format string, args ...any) error {
	return &ConfigError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// under returns err with its field below another one. Of several ConfigErrors it returns the first.
func under(field string, err error) error {
	if ce, ok := errors.AsType[*ConfigError](err); ok {
		return &ConfigError{Field: field + "." + ce.Field, Problem: ce.Problem}
	}
	return err
}

// faults are the *ConfigErrors of one destination.
type faults []error

func (f *faults) add(err error) {
	if err != nil {
		*f = append(*f, err)
	}
}

func (f *faults) refuse(field, format string, args ...any) { f.add(refuse(field, format, args...)) }

// addUnder adds others, with their fields below another field.
func (f *faults) addUnder(field string, others faults) {
	for _, err := range others {
		f.add(under(field, err))
	}
}

// join returns nil, the only fault, or all faults joined.
func (f faults) join() error {
	if len(f) == 1 {
		return f[0]
	}
	return errors.Join(f...)
}

// orDefault replaces a zero by its default, and refuses a value below the least one.
func orDefault[T int | int64 | time.Duration](field string, value *T, least, byDefault T) error {
	if *value < least {
		return refuse(field, "%v is less than %v", *value, least)
	}
	*value = cmp.Or(*value, byDefault)
	return nil
}

// withDefaults returns a copy of c with defaults in place of zeros, or an error for the first
// setting that is not valid. The destinations are checked when they are compiled.
func (c Config) withDefaults() (Config, error) {
	c.ServiceName = cmp.Or(c.ServiceName, DefaultServiceName)
	for _, rule := range []struct {
		broken         bool
		field, problem string
	}{
		{c.Store == nil, "Store", "is required"},
		{c.Lookup != nil && len(c.Destinations) > 0, "Destinations", "may not be set together with Lookup"},
		{c.Lookup == nil && len(c.Destinations) == 0, "Destinations", "at least one, or Lookup, is required"},
		{c.TrustLookup && c.Lookup == nil, "TrustLookup", "may be set together with Lookup only"},
		{c.LookupFilters && c.Lookup == nil, "LookupFilters", "may be set together with Lookup only"},
		{!isToken(c.ServiceName), "ServiceName", "is not a product name: letters, digits and !#$%&'*+-.^_`|~ are allowed"},
		{c.TLSClientConfig != nil && c.TLSClientConfig.InsecureSkipVerify, "TLSClientConfig", "InsecureSkipVerify may not be set: certificates are always verified"},
	} {
		if rule.broken {
			return c, &ConfigError{Field: rule.field, Problem: rule.problem}
		}
	}
	err := cmp.Or(
		orDefault("Timeout", &c.Timeout, 0, DefaultTimeout),
		orDefault("Window", &c.Window, 0, DefaultWindow),
		orDefault("DisableAfter", &c.DisableAfter, 0, 0),
		orDefault("Poll", &c.Poll, 0, DefaultPoll),
		orDefault("MaxInFlight", &c.MaxInFlight, 0, DefaultMaxInFlight),
		orDefault("MaxBytesInFlight", &c.MaxBytesInFlight, 0, DefaultMaxBytesInFlight),
		orDefault("DeadMaxAge", &c.DeadMaxAge, Unlimited, DefaultDeadMaxAge),
		orDefault("DeadMaxBytes", &c.DeadMaxBytes, Unlimited, DefaultDeadMaxBytes),
	)
	if err == nil {
		err = orDefault("MaxConcurrent", &c.MaxConcurrent, 0, min(DefaultMaxConcurrent, max(c.MaxInFlight/4, 1)))
	}
	if err != nil {
		return c, err
	}
	c.AllowAddresses = slices.Clone(c.AllowAddresses)
	for i, p := range c.AllowAddresses {
		switch {
		case !p.IsValid():
			return c, refuse(fmt.Sprintf("AllowAddresses[%d]", i), "is not a valid prefix")
		case p.Addr().Is4In6():
			// The guard compares IPv4 addresses in their own form.
			if p.Bits() < 96 {
				return c, refuse(fmt.Sprintf("AllowAddresses[%d]", i), "mixes IPv4 and IPv6")
			}
			c.AllowAddresses[i] = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
	}
	if c.Proxy != nil {
		proxy := *c.Proxy
		c.Proxy = &proxy
		switch {
		// A proxy over https would be shown the client certificates of destinations.
		case proxy.Scheme != "http" && proxy.Scheme != "socks5":
			return c, refuse("Proxy", "has the scheme %q; http and socks5 are allowed", proxy.Scheme)
		case proxy.Hostname() == "":
			return c, refuse("Proxy", "has no host")
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// isToken reports whether s is a token (RFC 9110, section 5.6.2) of up to 256 bytes.
func isToken(s string) bool {
	if s == "" || len(s) > 256 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return true
}
