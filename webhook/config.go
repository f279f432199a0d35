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
	"time"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook/store"
)

// The defaults of Config. Those of Timeout and Window are of the public webhook documentation.
const (
	DefaultAnswerAge     = 5 * time.Second
	DefaultTimeout       = 5 * time.Second
	DefaultWindow        = 4 * time.Hour
	DefaultServiceName   = "Hookferry"
	DefaultMaxConcurrent = 64
	DefaultMaxInFlight   = 1024
	DefaultDeadMaxAge    = 30 * 24 * time.Hour
	DefaultDeadMaxBytes  = 1 << 30 // 1 GiB
	DefaultBacklogMaxAge = 30 * 24 * time.Hour

	Unlimited = store.Unlimited // switches a bound off, as the value of a field whose comment names it

	defaultMaxAnswers       = 32 << 10
	defaultMaxAnswerBytes   = 32 << 20
	defaultMaxBytesInFlight = 64 << 20
	defaultPoll             = time.Second
)

// Config configures a Forwarder. New copies it, and returns *ConfigErrors if it is not valid. A
// panic in DialContext, or in the handler of Logger, ends the program.
type Config struct {
	// Store keeps the deliveries, and is required. The caller closes it after Run has returned. Each
	// Forwarder on the same store needs a Store value of its own.
	Store Store
	// Note returns a short text about this node, of at most MaxNote bytes, which Shared.Nodes shows.
	// The store calls Note for each heartbeat, so Note must not block. Nil means no text.
	Note func() []byte

	// Destinations lists the destinations, each with an id of its own. They are Trusted.
	Destinations []Destination
	// Directory finds destinations, in place of Destinations. Forward and its variants ask it with
	// their caller's context, and return its error. An unknown destination is no error: the event is
	// stored. With ErrTakesNothing nothing is stored, and the events count as Filtered.
	//
	// Each attempt asks, too. Deliveries wait, as during a pause, while the Directory fails, says
	// ErrUnknownDestination, or has a destination that is disabled or not valid. The forwarder asks
	// again every 30 s, and at once after Forwarder.Recheck. After a failure it asks again in 1 s,
	// and then after twice as long each time. With ErrTakesNothing the deliveries are given up.
	//
	// A question may take Timeout. While a destination is not known yet, a question that takes over
	// 0.1 s delays no other destination. At most MaxInFlight such questions wait; further ones are
	// cut off, and count as failures.
	Directory Directory
	// AnswerAge is how long the forwarder uses an answer of the Directory. It uses an answer
	// without destinations for at most a second, unless it follows a LiveDirectory. After an error
	// it does not ask again within 0.1 s. Recheck ends this time. Zero means DefaultAnswerAge, or 5
	// minutes while Run follows a LiveDirectory.
	AnswerAge time.Duration
	// MaxAnswers and MaxAnswerBytes bound the answers in memory, beyond which those used least recently
	// are forgotten. The bytes are those of texts, and some for each value. Zero means
	// 32,768 and 32 MiB.
	MaxAnswers     int
	MaxAnswerBytes int64

	ServiceName string // the product in the User-Agent, before "/1.0"; empty means DefaultServiceName
	// Timeout bounds an attempt, to the end of the answer's body. Zero means DefaultTimeout, which is
	// also the most that is allowed.
	Timeout time.Duration
	// Window is the retry window: how long a delivery is attempted, from the start of its first
	// attempt. The last attempt starts Timeout before its end. If the process crashes before the
	// outcome of the first attempt is stored, the next attempt begins a new window. Zero means
	// DefaultWindow, which is also the most that is allowed.
	//
	// A delivery that waits behind another one with its Key has no window yet. If the delivery
	// before it lapses, its window counts from the time at which it was stored. So if a destination
	// only fails, all deliveries of a Key lapse together, each after one attempt, or without an
	// attempt while the destination is probed. After a restart, the first delivery of each Key has
	// a whole window again.
	Window  time.Duration
	Retries *Retries // longer limits, and more failures that are retried; nil means none
	// DisableAfter is how long all attempts of a destination may fail before the forwarder disables
	// it: it tells each Observer that is a DisableObserver, and keeps the deliveries until Resume,
	// as during a pause. Each node measures on its own, from its start. Zero means never.
	DisableAfter time.Duration
	// DisableGone also disables a destination when all endpoints answer 410 Gone to a delivery.
	DisableGone bool
	// BuryDisabled turns all deliveries of a destination that the forwarder has disabled into dead
	// letters with ReasonDisabled. All nodes that share a store need the same setting.
	BuryDisabled bool

	// MaxConcurrent bounds the concurrent attempts of a destination that sets none. The limit
	// starts at four. Each answer adds one if at least half of the attempts are in use, and each
	// timeout lowers it. While several destinations have deliveries, each may use an equal share of
	// three quarters of MaxInFlight. Zero means DefaultMaxConcurrent, but at most a quarter of
	// MaxInFlight.
	//
	// A destination that only fails is probed. This begins after ten failures in a row, and ends
	// with any other answer. A failure is a timeout, which counts as three, a connection error, or
	// a 5xx, 408, 425 or 429. Meanwhile there is one attempt at a time. Retries keep their
	// schedule, but at most one is attempted each second. Fresh deliveries wait, and their retry
	// window does not begin. After a second without an attempt, a fresh delivery is attempted as a
	// probe. This interval doubles with each probe, up to 30 seconds. Recheck, Resume and calls
	// such as Retry end the interval at once. A fresh delivery that has been due during the probing
	// for as long as Window becomes a dead letter without an attempt. A restart begins this time
	// anew.
	MaxConcurrent int
	// MaxInFlight bounds the deliveries attempted at once, over all destinations. As many more may
	// be claimed and wait in memory. Failing destinations together get at most a quarter of
	// MaxInFlight. Failing destinations and those that have not answered yet, or not lately,
	// together get at most half, so there is always room for destinations that answer. Zero means
	// DefaultMaxInFlight.
	//
	// A backlog must not delay fresh deliveries. While these arrive, destinations whose deliveries
	// were due over a second ago get at most 2,000 attempts a second for each processor, beside one
	// for each new delivery.
	MaxInFlight int
	// MaxBytesInFlight bounds the bytes of the bodies in memory, of which busy destinations have equal
	// shares. A body counts until the outcome of its delivery is stored. At the bound nothing is
	// fetched, but a larger single body is still delivered. Zero means 64 MiB.
	MaxBytesInFlight int64
	// Poll is how often to look for deliveries and pauses of other processes. Zero means a second.
	Poll time.Duration

	// AllowAddresses lists addresses that the guard allows although they are not public; see
	// IsPublic. If it refuses all addresses of a name, the delivery is given up with ReasonAddress.
	// Otherwise the forwarder dials the allowed ones, up to 32. They share the time of the attempt:
	// the next one is dialed when the one before fails, or has not answered after at most 300
	// milliseconds. If an address other than the first answers, new connections go to it first for
	// five minutes.
	AllowAddresses []netip.Prefix
	// Proxy is the URL of the proxy for all requests, with the scheme http or socks5. The proxy gets
	// the user and password of the URL. Nil means no proxy, whatever the environment says.
	//
	// The guard does not see the connections of the proxy, which must itself refuse addresses that
	// customers may not reach. If it makes no connection for an https URL, or answers 407, the
	// delivery is retried with ReasonConnection. Any other answer counts as the endpoint's.
	Proxy *url.URL
	// DialContext opens connections, in place of the guard. It must return when its context ends.
	// Closing a connection must end its reads and writes. Deadlines are not needed.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLSClientConfig is the TLS configuration of all connections. New clones it, raises its
	// MinVersion to TLS 1.2, and refuses InsecureSkipVerify. Nil means the system's roots.
	TLSClientConfig *tls.Config

	// DeadMaxAge is how long dead letters are kept. A minute after its start and then every hour, Run
	// discards those beyond DeadMaxAge or DeadMaxBytes, logs their number, and counts them in
	// Stats.Forgotten. The store may have lower bounds. Zero means DefaultDeadMaxAge, Unlimited none.
	DeadMaxAge time.Duration
	// DeadMaxBytes bounds the total Size of all dead letters. Beyond it, the oldest are discarded.
	// Zero means DefaultDeadMaxBytes, and Unlimited no bound. With a store that does not know the
	// total size, Unlimited also saves reading all dead letters every hour.
	DeadMaxBytes int64

	// BacklogMaxBytes bounds what waits for a destination, in bytes as the store counts them, so
	// that a destination that fails or is paused for long cannot fill the store. Every ten seconds,
	// Run turns the deliveries beyond it into dead letters with ReasonBacklog, the oldest first, so
	// that deliveries with one Key keep their order. Forward never waits for that. Zero means no
	// bound, and costs nothing.
	BacklogMaxBytes int64
	// BacklogMaxAge does the same with deliveries that wait for their first attempt for longer, or that
	// could not be repeated for so long after they were due: their destination is paused, disabled, or
	// not known to the Directory. Without BacklogMaxBytes, Run looks once an hour. Zero means
	// DefaultBacklogMaxAge, Unlimited none.
	BacklogMaxAge time.Duration

	// Catalogue lists the types of events that Forward and its variants take, beside those of tracking
	// calls; for others they return a *event.CallError. Nil means any type.
	Catalogue *event.Catalogue

	Observers []Observer // are told what happens to deliveries; none cost nothing
	// Logger gets warnings, failed attempts, dead letters, and the recoveries of destinations. Nil
	// means no logs. Log lines have only these keys:
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

// ErrUnknownDestination says that no destination has the given id.
var ErrUnknownDestination = errors.New("webhook: unknown destination")

// ErrTakesNothing says that a destination has no endpoint, or that its tenant is gone. Then a waiting
// delivery becomes a dead letter with ReasonNoEndpoint when it is due, without a request.
var ErrTakesNothing = errors.New("webhook: destination takes nothing")

// A ConfigError names a setting that New or Validate refuses. Both return one ConfigError for each
// such setting, in the order of the fields, joined by errors.Join.
type ConfigError struct {
	Field string // the path of the setting, such as "Endpoints[1].URL"
	// Problem says what is wrong and what is allowed. It has no secret, and of a URL only scheme and
	// host.
	Problem string
}

func (e *ConfigError) Error() string { return "webhook: " + e.Field + ": " + e.Problem }

// configError returns all faults as *ConfigErrors, joined by errors.Join.
func configError(wrong check.Faults) error {
	return wrong.As(func(f check.Fault) error { return (*ConfigError)(&f) })
}

// withDefaults returns a copy of c with defaults in place of zeros and of what is not valid. It does
// not check the destinations.
func (c Config) withDefaults() (Config, check.Faults) {
	var wrong check.Faults
	c.ServiceName = cmp.Or(c.ServiceName, DefaultServiceName)
	wrong.Refuse(c.Store == nil, "Store", "is required")
	wrong.Refuse(c.Directory != nil && len(c.Destinations) > 0, "Destinations", "may not be set together with Directory")
	wrong.Refuse(c.Directory == nil && len(c.Destinations) == 0, "Destinations", "at least one, or Directory, is required")
	wrong.Refuse(!check.IsToken(c.ServiceName), "ServiceName", "is not a product name: letters, digits and !#$%%&'*+-.^_`|~ are allowed")
	wrong.Refuse(c.TLSClientConfig != nil && c.TLSClientConfig.InsecureSkipVerify, "TLSClientConfig", "InsecureSkipVerify may not be set: certificates are always verified")
	check.Least(&wrong, "AnswerAge", &c.AnswerAge, 0, 0)
	check.Least(&wrong, "MaxAnswers", &c.MaxAnswers, 0, defaultMaxAnswers)
	check.Least(&wrong, "MaxAnswerBytes", &c.MaxAnswerBytes, 0, defaultMaxAnswerBytes)
	check.Range(&wrong, "Timeout", &c.Timeout, 0, DefaultTimeout, DefaultTimeout)
	checkWindow(&wrong, &c.Window, DefaultWindow)
	c.Retries.check("Retries", &wrong)
	check.Least(&wrong, "DisableAfter", &c.DisableAfter, 0, 0)
	check.Least(&wrong, "Poll", &c.Poll, 0, defaultPoll)
	check.Least(&wrong, "MaxInFlight", &c.MaxInFlight, 0, DefaultMaxInFlight)
	check.Least(&wrong, "MaxBytesInFlight", &c.MaxBytesInFlight, 0, defaultMaxBytesInFlight)
	check.Least(&wrong, "DeadMaxAge", &c.DeadMaxAge, Unlimited, DefaultDeadMaxAge)
	check.Least(&wrong, "DeadMaxBytes", &c.DeadMaxBytes, Unlimited, DefaultDeadMaxBytes)
	check.Least(&wrong, "BacklogMaxBytes", &c.BacklogMaxBytes, 0, 0)
	check.Least(&wrong, "BacklogMaxAge", &c.BacklogMaxAge, Unlimited, DefaultBacklogMaxAge)
	check.Least(&wrong, "MaxConcurrent", &c.MaxConcurrent, 0, min(DefaultMaxConcurrent, max(c.MaxInFlight/4, 1)))
	c.AllowAddresses = slices.Clone(c.AllowAddresses)
	for i, p := range c.AllowAddresses {
		field, mapped := fmt.Sprintf("AllowAddresses[%d]", i), p.Addr().Is4In6()
		wrong.Refuse(!p.IsValid(), field, "is not a valid prefix")
		wrong.Refuse(mapped && p.Bits() < 96, field, "mixes IPv4 and IPv6")
		if mapped { // the guard compares IPv4 addresses in their 4-byte form
			c.AllowAddresses[i] = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
	}
	if c.Proxy != nil {
		proxy := *c.Proxy
		c.Proxy = &proxy
		// A proxy over https would be shown the client certificates of destinations.
		wrong.Refuse(proxy.Scheme != "http" && proxy.Scheme != "socks5", "Proxy", "has the scheme %q; http and socks5 are allowed", proxy.Scheme)
		wrong.Refuse(proxy.Hostname() == "", "Proxy", "has no host")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, wrong
}

// now is the time by the clock of the store.
func (c *Config) now() time.Time { return c.Store.Now() }
