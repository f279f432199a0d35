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
	// DefaultWindow is how long a delivery is attempted, counted from the
	// start of its first attempt.
	DefaultWindow = 4 * time.Hour
	// DefaultServiceName is the product in the User-Agent of every request.
	DefaultServiceName = "Hookferry"
	// DefaultMaxConcurrent is how many deliveries of one destination are
	// attempted at once.
	DefaultMaxConcurrent = 64
	// DefaultMaxInFlight is how many deliveries of all destinations are
	// attempted at once.
	DefaultMaxInFlight = 1024
	// DefaultMaxBytesInFlight is how many bytes of bodies are held in memory:
	// 64 MB of 1,048,576 bytes.
	DefaultMaxBytesInFlight = 64 << 20
	// DefaultPoll is how often the store is asked for deliveries that other
	// processes put there.
	DefaultPoll = time.Second

	// DefaultDeadMaxAge is how long dead letters are kept.
	DefaultDeadMaxAge = 30 * 24 * time.Hour
	// DefaultDeadMaxBytes bounds the bytes of dead letters: 1 GB of
	// 1,073,741,824 bytes.
	DefaultDeadMaxBytes = 1 << 30
	// Unlimited switches Config.DeadMaxAge or Config.DeadMaxBytes off.
	Unlimited = -1
)

// Config configures a Forwarder. New copies it and refuses what is wrong with
// a *ConfigError. A panic in DialContext, or in the handler of Logger, ends the
// program, as under net/http and log/slog: neither recovers it.
type Config struct {
	// Store keeps the deliveries. The caller opened it and closes it, after Run has
	// returned. It is used by this Forwarder alone: another one on the same store, in
	// this process too, has a Store value of its own. Required.
	Store Store

	// Note returns what this node shows to all who ask a store that is shared for its
	// nodes; see Shared. Of more than MaxNote bytes nothing is shown. It is called with
	// each heartbeat, and does not wait. Nil shows nothing.
	Note func() []byte

	// Destinations are the destinations, each with an id of its own. IP
	// addresses and "localhost" in their URLs are the operator's own words
	// and pass the address guard; what a name resolves to does not unless
	// AllowAddresses lists it.
	Destinations []Destination

	// Lookup finds a destination by its id, in place of Destinations. It is
	// called concurrently, before every attempt, so that a change takes
	// effect at once; returning the same pointer for an unchanged destination
	// keeps that cheap. The forwarder does not change what it returns, and
	// the caller must not either, once returned.
	//
	// While it fails, or returns ErrUnknownDestination or a destination that
	// is disabled or not valid, the destination's deliveries are kept, however
	// long that lasts, and looked up again: after a failure within seconds,
	// else every half minute. None of their window is used up if they have
	// not been attempted before, and what was is attempted once more before it
	// is given up; see Pause. Lookup has Timeout, and must end with its
	// context. A panic in it counts as a failure; it must not end its goroutine in
	// another way.
	//
	// What it returns is taken to be customers' words: IP addresses and
	// "localhost" in its URLs pass the address guard only where AllowAddresses
	// lists them, unless TrustLookup is set.
	Lookup func(ctx context.Context, id string) (*Destination, error)

	// TrustLookup says that every URL that Lookup returns is the operator's own
	// word, such as one of a configuration file that is read again when it
	// changes: IP addresses and "localhost" in them pass the address guard, as
	// in those of Destinations.
	TrustLookup bool

	// LookupFilters says that Lookup returns destinations with filters or a Transform: Forward,
	// ForwardEvents and Deliveries call it too, with their context, for each destination.
	// They return its error and store nothing, but take ErrUnknownDestination for a
	// destination without either.
	LookupFilters bool

	// ServiceName is the product in "User-Agent: <ServiceName>/1.0". Empty
	// means DefaultServiceName.
	ServiceName string

	// Timeout is the time one attempt has, from its start to the end of the
	// answer's body. Zero means DefaultTimeout.
	Timeout time.Duration

	// Window is how long after the start of its first attempt a delivery is
	// attempted; the last attempt starts Timeout before its end. The end of
	// the window is stored with the outcome of the first attempt: a crash
	// before that begins it anew. Zero means DefaultWindow.
	Window time.Duration

	// DisableAfter is how long all attempts of a destination may fail, without one success,
	// until the forwarder disables it: it logs that, tells a DisableObserver, and keeps what
	// waits, as Pause does, until Resume, or buries it; see BuryDisabled. Each node counts by itself, and begins anew with
	// the process. Zero means never.
	DisableAfter time.Duration
	// DisableGone disables a destination in the same way when all endpoints that are asked
	// for a delivery answer 410 Gone. That delivery becomes a dead letter.
	DisableGone bool
	// BuryDisabled makes dead letters, with ReasonDisabled, of what waits for a destination that
	// the forwarder has disabled, and of what comes for it until Resume. All nodes of a store
	// have the same setting.
	BuryDisabled bool

	// MaxConcurrent bounds the deliveries of one destination that are
	// attempted at once, where the destination does not say. A destination
	// begins with four, gets one more with each answer while it uses half of
	// those it has, and loses some with each attempt that times out. While
	// several have deliveries, each may have its share of three quarters of
	// MaxInFlight. Zero means DefaultMaxConcurrent, but at most a quarter of
	// MaxInFlight.
	//
	// A destination that only fails (time-outs, connection errors, 5xx, 408,
	// 425 and 429) is left alone: after ten failures in a row, of which one
	// that times out counts as three, there is one attempt at a time.
	// Deliveries that were attempted before keep their schedule, at most one a
	// second. The others wait, with their window not begun; one of them is
	// attempted if there was no attempt for 1 s, and then for times that double up
	// to 30 s. When the destination answers, all go on, two at a time at first.
	// What was due for as long as Window while the destination failed all the
	// time, since Run began at the earliest, becomes a dead letter without an
	// attempt.
	MaxConcurrent int

	// MaxInFlight bounds the deliveries that are attempted at once; as many
	// again may be held ready in memory. Destinations that have not answered,
	// or not of late, hold at most half of it, and those that fail a quarter,
	// so that they leave room to the others however many they are. Zero means
	// DefaultMaxInFlight.
	//
	// While deliveries come that are attempted at once, few of those that have
	// waited for over 100 ms are begun at a time: two for each processor, of which
	// each counts for a millisecond at most.
	MaxInFlight int

	// MaxBytesInFlight bounds the bytes of bodies that are held in memory, of the
	// deliveries that are attempted, of those that are ready, and of those whose
	// outcome is not stored yet. A single body may exceed it. While several
	// destinations have deliveries, each holds its share. At the bound nothing more is
	// taken from the store. Zero means DefaultMaxBytesInFlight.
	MaxBytesInFlight int64

	// Poll is how often the store is asked whether another process has put
	// something. Zero means DefaultPoll.
	Poll time.Duration

	// AllowAddresses are the addresses that the guard lets pass although they
	// are private, loopback, link-local or otherwise not public. A delivery to
	// a name is given up with ReasonAddress if all addresses that it resolves
	// to are refused; else those that pass are tried, and count.
	AllowAddresses []netip.Prefix

	// Proxy is the proxy that all requests go through; its scheme is http or
	// socks5, and user and password in it are sent to it. Nil means none:
	// proxies that the environment names are not used.
	//
	// The proxy makes the connections, so the address guard sees none of them,
	// and AllowAddresses has no effect: the proxy itself has to refuse
	// addresses that customers are not to reach. When it makes no connection
	// for an https URL, or answers 407, the delivery is retried, with
	// ReasonConnection. What else it answers for an http URL counts as the
	// endpoint's answer.
	Proxy *url.URL

	// DialContext opens connections in place of a net.Dialer. Then the
	// addresses are the caller's business: the guard does not see them. It
	// must end with its context, which has the time of the attempt. Its
	// connections need no deadlines, which some of tunnels do not have: what is
	// being read and written has to end when they are closed.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)

	// TLSClientConfig is the TLS configuration of all connections; it is
	// cloned. TLS 1.2 is the least. InsecureSkipVerify is refused. Nil means
	// the system's roots.
	TLSClientConfig *tls.Config

	// DeadMaxAge is how long dead letters are kept, from their death. Zero
	// means DefaultDeadMaxAge, Unlimited that their age does not count.
	//
	// While Run runs, dead letters over this bound and the next are discarded, a
	// minute after its start and then every hour, so there may be more of them
	// in between. What is discarded is counted in Stats.Forgotten, and logged.
	// The store itself may have a bound that is reached before.
	DeadMaxAge time.Duration
	// DeadMaxBytes bounds the bodies of all dead letters with the addresses,
	// errors and answers of their attempts; the oldest are discarded. Zero
	// means DefaultDeadMaxBytes, Unlimited that their size does not count,
	// which saves reading all of them every hour.
	DeadMaxBytes int64

	// Observer is told of what is accepted, of each request, and of the end of
	// each delivery. Nil means nobody, which costs nothing.
	Observer Observer

	// Trace returns the values of the headers traceparent and tracestate for the
	// context that Forward, ForwardEvents and Try are called with, such as by
	// OpenTelemetry's propagator. They are stored, and sent with every attempt; see
	// event.Trace. A traceparent that is not valid counts as none. If there is none, or Trace is nil, that of
	// event.ContextWithTrace is taken. A static header with the name of one of the two
	// is sent in place of both. Trace is called concurrently.
	Trace func(ctx context.Context) (traceparent, tracestate string)

	// Logger receives warnings and what happens to deliveries. Nil means no
	// logs. The keys are these, and no others:
	//
	//	destination  its id
	//	source       the delivery's Source, empty if it has none
	//	id           the delivery's MessageID
	//	reason       a Reason
	//	tries        attempts of the delivery so far
	//	endpoint     URL without user, query and fragment
	//	status       HTTP status, 0 if there was none
	//	since        when the attempts of a destination began to fail
	//	error        what failed, without secrets
	//	due          when the delivery is attempted again
	//	wait         how long a destination is left alone
	//	unlogged     lines like this one that were left out since the last
	//	bound        which bound of dead letters was exceeded: "age" or "size"
	//	count        how many were discarded for it
	Logger *slog.Logger
}

// ErrUnknownDestination says that there is no destination with an id. A
// Lookup returns it, wrapped or not.
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
