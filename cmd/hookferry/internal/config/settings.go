// Package config reads, checks and completes the settings of a server, from a YAML file or flags.
//
// In a text of the file, ${NAME} stands for an environment variable, and $${ for ${ itself. A secret
// may be file:PATH, which stands for the content of a file without its last line break. Relative
// paths are relative to the folder of the configuration file. A missing variable or file is an
// error. No error repeats a value, since any value may contain a secret.
package config

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/netip"
	"net/url"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/natsqueue"
	"github.com/hookferry/analytics/webhook/pgqueue"
)

// Settings are the settings of a server. Those in use do not change, and may be read concurrently.
// docs/configuration.md explains every key. The comments here say only what key and tags do not.
//
// The tag yaml, or else json, is the key of a field. The tag allow has its bounds, which are
// checked when it is read; see outside. The tag restart says that changes wait for a restart.
type Settings struct {
	Path    string    // the file that the settings come from, "" if they come from flags
	Loaded  time.Time // when the settings were read
	Error   string    // why the newest version of the file is not in use, "" if it is in use
	Restart []string  // the keys whose newest values take effect only after a restart
	Files   []File    // all files that were read, including the one at Path

	Listen  string       `yaml:"listen" restart:"true"`  // address of the listener for calls
	TLS     *Certificate `yaml:"tls" restart:"true"`     // certificate of the listener for calls; nil means plain HTTP
	BaseURL string       `yaml:"baseURL" restart:"true"` // where browsers reach the server; see collector.Config
	// TrustedProxies are the proxies whose X-Forwarded-For the server believes.
	// Limits.ConnectionsPerAddress does not apply to their connections.
	TrustedProxies []netip.Prefix `yaml:"trustedProxies"`
	Data           string         `yaml:"data" restart:"true"` // the folder for the data
	Queue          Queue          `yaml:"queue" restart:"true"`
	// Drain is how long the server still accepts calls after it was asked to stop, while /readyz
	// answers that it is not ready. Grace is how long the stop may take after that.
	Drain time.Duration `yaml:"drain" allow:"0s to 1h"`
	Grace time.Duration `yaml:"grace" allow:"0s to 1h"`

	Admin        Admin         `yaml:"admin"`
	Webhooks     Webhooks      `yaml:"webhooks" restart:"true"`
	Backlog      Backlog       `yaml:"backlog" restart:"true"`
	DeadLetters  DeadLetters   `yaml:"deadLetters" restart:"true"`
	History      History       `yaml:"history" restart:"true"`
	Limits       Limits        `yaml:"limits" restart:"true"`
	Log          Log           `yaml:"log"`
	Metrics      bool          `yaml:"metrics" restart:"true"`
	Tracing      Tracing       `yaml:"tracing" restart:"true"`
	Tenants      Tenants       `yaml:"tenants"`
	Sources      []Source      `yaml:"sources"`      // 1 to MaxSources, sorted by name
	Destinations []Destination `yaml:"destinations"` // up to MaxDestinations, sorted by id
}

// Queue has the settings of a store that several servers share.
type Queue struct {
	URL      signature.Secret `yaml:"url"` // of a database, or NATS servers, separated by commas; "" is the store in the data folder
	File     string           // the file that the URL was read from, "" if there was none
	Postgres Postgres         `yaml:"postgres"`
	NATS     NATS             `yaml:"nats"`
}

// Shared reports whether several servers may share the store.
func (q *Queue) Shared() bool { return q.URL != "" }

// NATS has the settings of a store in JetStream; see natsqueue.Config.
type NATS struct {
	Stream      string `yaml:"stream"`
	Credentials string `yaml:"credentials"` // path of a file with the JWT and the seed of a NATS user
	// TLS has the certificates for connections, which are then encrypted. If it is nil, the NATS
	// server decides whether connections are encrypted, and the authorities are those of the
	// system.
	TLS *ClientTLS `yaml:"tls"`
	// Replicas is how many NATS servers keep the stream. Zero leaves an existing stream as it is,
	// and gives a new one 3 replicas if there are that many servers.
	Replicas    int           `yaml:"replicas" allow:"0 to 5"`
	Partitions  int           `yaml:"partitions" allow:"1 to 256"`
	Claim       time.Duration `yaml:"claim" allow:"1s to 1h"`
	DedupWindow time.Duration `yaml:"dedupWindow" allow:"1m to 168h"`
	MaxBytes    Size          `yaml:"maxBytes" allow:"0 to 1024TB"` // in each replica; zero means no bound
}

// Postgres has the settings of a store in PostgreSQL; see pgqueue.Config.
type Postgres struct {
	Schema      string        `yaml:"schema"`
	Migrate     bool          `yaml:"migrate"`                       // create the tables, and migrate those of an older version
	Pooler      bool          `yaml:"pooler"`                        // a pooler in between assigns a connection for each transaction
	Connections int           `yaml:"connections" allow:"5 to 1000"` // at most, besides one for notifications
	Claim       time.Duration `yaml:"claim" allow:"1s to 1h"`
}

// Admin has the settings of the admin listener, which serves the admin API and the page. The token
// is required unless Listen is a loopback address.
type Admin struct {
	Listen string           `yaml:"listen" restart:"true"` // an address, or Off for no listener
	Token  signature.Secret `yaml:"token" restart:"true"`
	TLS    *Certificate     `yaml:"tls" restart:"true"` // nil means plain HTTP
}

// Off is the value of Admin.Listen for no listener.
const Off = "off"

// The values of Webhooks.WhenDisabled.
const (
	Keep = "keep"
	Dead = "dead"
)

// Webhooks has the settings for the webhooks of all destinations.
type Webhooks struct {
	Name string `yaml:"name"` // the product name in the User-Agent header
	// Allow lists non-public addresses to which host names of webhooks may resolve. An address, or
	// localhost, in a URL of the configuration file needs no entry.
	Allow        []netip.Prefix `yaml:"allow"`
	DisableAfter time.Duration  `yaml:"disableAfter" allow:"0s to 8760h"` // zero means never
	// WhenDisabled says what becomes of the deliveries of a destination that was disabled by
	// DisableAfter, or because it answered 410: they wait (Keep), or become dead letters (Dead).
	WhenDisabled string           `yaml:"whenDisabled" allow:"keep or dead"`
	Operations   string           `yaml:"operations"` // the id of the destination that is told of disabled and enabled ones
	Proxy        signature.Secret `yaml:"proxy"`      // URL of an http or socks5 proxy for all endpoints
	Retries      *webhook.Retries `yaml:"retries"`    // of destinations that have none of their own
}

// History bounds the deliveries that are kept after they were delivered. The oldest are removed first.
type History struct {
	MaxAge   time.Duration `yaml:"maxAge" allow:"0 or 1m to 87600h"` // zero keeps none
	MaxBytes Size          `yaml:"maxBytes" allow:"1MB to 1TB"`
}

// Backlog bounds what waits for each destination. The oldest of it becomes dead letters first.
type Backlog struct {
	MaxAge   time.Duration `yaml:"maxAge" allow:"1h to 87600h"`
	MaxBytes Size          `yaml:"maxBytes" allow:"0 or 1MB to 1TB"` // zero means no bound
}

// DeadLetters bounds the dead letters. The oldest are removed first.
type DeadLetters struct {
	MaxAge   time.Duration `yaml:"maxAge" allow:"1m to 87600h"`
	MaxBytes Size          `yaml:"maxBytes" allow:"1MB to 1TB"`
}

// Limits bound the resources of all clients together, and of the process.
type Limits struct {
	// The open connections of each listener, in all and for one client address. The requests of
	// HTTP/2 in progress have the same bounds.
	Connections           int `yaml:"connections" allow:"1 to 1_000_000"`
	ConnectionsPerAddress int `yaml:"connectionsPerAddress" allow:"1 to 1_000_000"`
	// IdleTimeout is how long a connection of either listener may be idle. It must exceed that of the
	// load balancer in front: otherwise the balancer sends requests on connections that just ended.
	IdleTimeout time.Duration `yaml:"idleTimeout" allow:"10s to 24h"`
	// The requests of one client address that are in progress at once. Further requests wait.
	RequestsPerAddress int `yaml:"requestsPerAddress" allow:"1 to 1_000_000"`
	// Memory bounds the bytes of request bodies and of the events made of them. Zero means
	// collector.DefaultMaxMemory, or a quarter of ProcessMemory if that is less.
	Memory Size `yaml:"memory" allow:"0 or 1MB to 1TB"`
	// ProcessMemory is the memory limit of the Go runtime, in bytes. Zero means most of the
	// container's memory, or half of the machine's.
	ProcessMemory Size `yaml:"processMemory" allow:"0 or 64MB to 1024TB"`
	// Store bounds the bytes of the store in the data folder. Zero means three quarters of the free
	// disk space at the start of the server.
	Store Size `yaml:"store" allow:"0 to 1024TB"`
}

// Log has the settings of the log.
type Log struct {
	Format string     `yaml:"format" allow:"text or json" restart:"true"`
	Level  slog.Level `yaml:"level"`
	Access int        `yaml:"access" allow:"0 to 1_000_000"` // one of so many successful requests is logged, 0: none
}

// Tracing has the settings of OpenTelemetry traces, which are sent by OTLP over HTTP.
type Tracing struct {
	// Endpoint is the base URL of a receiver of traces, without /v1/traces. If it is empty, the
	// environment variables of OpenTelemetry name the receiver, or no traces are sent.
	Endpoint string                      `yaml:"endpoint"`
	Headers  map[string]signature.Secret `yaml:"headers"`
	// Sample is the share that is recorded of the traces that begin at this server. At 1, the
	// environment variable OTEL_TRACES_SAMPLER decides, and by default all are.
	Sample float64 `yaml:"sample" allow:"0 to 1"`
	// TrustClients makes calls part of the traces of their clients, which then decide what is
	// recorded. So anybody with a write key, such as a browser, can have everything recorded.
	TrustClients bool `yaml:"trustClients"`
}

// Tenants has the settings for the tenants of the admin API.
type Tenants struct {
	// Keys are up to MaxKeys keys that may send events to every tenant. None of them is a write key
	// of a source, which browsers may have.
	Keys []signature.Secret `yaml:"keys"`
}

// A Source is an application whose calls are accepted.
type Source struct {
	Name string `yaml:"name"` // 1 to 255 bytes, and different for each source
	// Keys are the write keys of the source, 1 to MaxKeys. Settings from flags may have none, if
	// the store is not shared.
	Keys     []signature.Secret `yaml:"keys"`
	Disabled bool               `yaml:"disabled"`
	// Rate is in calls a second: from 1/86400, one a day, to 1,000,000. Zero means no limit.
	Rate float64 `yaml:"rate"`
	// Burst is how many calls the source may send at once. Zero means the calls of one second.
	Burst int `yaml:"burst" allow:"0 to 10_000_000"`
	// ByteRate bounds the bytes a second of the webhooks to all destinations. Zero means 4 KB for
	// each call of Rate and each destination, or no limit if Rate is zero.
	ByteRate     Size           `yaml:"byteRate" allow:"0 or 1KB to 1TB"`
	Filter       webhook.Filter `yaml:"filter"`       // selects the calls that are forwarded; the others are only counted
	Destinations []string       `yaml:"destinations"` // ids
}

// A Destination is a customer's set of endpoints; see webhook.Destination, also for the bounds.
type Destination struct {
	ID string `yaml:"id"`
	webhook.Settings
	Secret          signature.Secret   `yaml:"secret"`
	StandardSecrets []signature.Secret `yaml:"standardSecrets"`
	TLS             *ClientTLS         `yaml:"tls"`

	// Webhook is the destination as the forwarder gets it. Complete sets it, and Keep replaces it by
	// that of the settings in use if nothing has changed.
	Webhook *webhook.Destination
}

// Shown returns a URL without user, query and fragment, which may hold credentials.
func Shown(address string) string {
	u, err := webhook.ParseURL(address)
	if err != nil {
		return "?"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// A Certificate is a chain and its private key, in PEM files.
type Certificate struct {
	Cert Pem              `yaml:"certificate"`
	Key  Pem              `yaml:"key"`
	Pair *tls.Certificate // both; Complete sets it
}

// ClientTLS has PEM files for connections to a destination or to the servers of the store: a client
// certificate with its key, and the authorities of the other side's certificates.
type ClientTLS struct {
	Cert Pem `yaml:"certificate"`
	Key  Pem `yaml:"key"`
	CA   Pem `yaml:"ca"`
}

// The bounds of lists.
const (
	MaxSources      = 10_000
	MaxDestinations = 10_000
	MaxKeys         = 10
)

// DefaultData is the data folder if the settings name none.
const DefaultData = "hookferry-data"

// Default returns settings with all defaults. Only the sources and the destinations are missing.
func Default() *Settings {
	return &Settings{
		Listen: ":8080",
		Data:   DefaultData,
		Queue: Queue{
			Postgres: Postgres{Schema: pgqueue.DefaultSchema, Migrate: true, Connections: 10, Claim: pgqueue.DefaultClaim},
			NATS:     NATS{Stream: natsqueue.DefaultStream, Partitions: natsqueue.DefaultPartitions, Claim: natsqueue.DefaultClaim, DedupWindow: natsqueue.DefaultDedupWindow},
		},
		Grace:       10 * time.Second,
		Admin:       Admin{Listen: "localhost:8081"},
		Webhooks:    Webhooks{Name: webhook.DefaultServiceName, DisableAfter: 120 * time.Hour, WhenDisabled: Keep},
		Backlog:     Backlog{MaxAge: webhook.DefaultBacklogMaxAge},
		DeadLetters: DeadLetters{MaxAge: webhook.DefaultDeadMaxAge, MaxBytes: webhook.DefaultDeadMaxBytes},
		History:     History{MaxBytes: filequeue.DefaultHistoryBytes},
		Limits:      Limits{Connections: 10_000, ConnectionsPerAddress: 1_000, IdleTimeout: 11 * time.Minute, RequestsPerAddress: collector.DefaultMaxRequests},
		Log:         Log{Format: "text", Access: 100},
		Metrics:     true,
		Tracing:     Tracing{Sample: 1},
	}
}

// Source returns the source with a name, or nil. Call it only after Complete.
func (s *Settings) Source(name string) *Source {
	i, found := slices.BinarySearchFunc(s.Sources, name, func(s Source, name string) int { return strings.Compare(s.Name, name) })
	if !found {
		return nil
	}
	return &s.Sources[i]
}

// Unrouted returns the names of the enabled sources that have no destination, the first 10 of them. Their
// calls are accepted, and go nowhere. It leaves out the source of flags for tenants alone, which nobody
// has asked for.
func (s *Settings) Unrouted() (names []string) {
	if s.Path == "" && len(s.Tenants.Keys) > 0 {
		return nil
	}
	for i := range s.Sources {
		if c := &s.Sources[i]; !c.Disabled && len(c.Destinations) == 0 && len(names) < 10 {
			names = append(names, c.Name)
		}
	}
	return names
}

// Destination returns the destination with an id, or nil. Call it only after Complete.
func (s *Settings) Destination(id string) *Destination {
	i := sort.Search(len(s.Destinations), func(i int) bool { return s.Destinations[i].ID >= id }) // copies none
	if i == len(s.Destinations) || s.Destinations[i].ID != id {
		return nil
	}
	return &s.Destinations[i]
}

// A Directory has the destinations of the settings in use, and those in the store. The destinations of
// the settings have no tenant. They hide others with the same id.
type Directory struct {
	Settings func() *Settings // returns those in use
	Tenants  *tenants.Directory
}

var _ webhook.LiveDirectory = Directory{}

// Destination implements webhook.Directory.
func (d Directory) Destination(ctx context.Context, id string) (webhook.Destination, error) {
	if own := d.Settings().Destination(id); own != nil {
		return *own.Webhook, nil
	}
	return d.Tenants.Destination(ctx, id)
}

// Destinations implements webhook.Directory.
func (d Directory) Destinations(ctx context.Context, tenant string) ([]webhook.Destination, error) {
	return d.Tenants.Destinations(ctx, tenant)
}

// Follow implements webhook.LiveDirectory for tenants. The server reports changes of the settings.
func (d Directory) Follow(ctx context.Context, changed func(tenant, destination string)) error {
	return d.Tenants.Follow(ctx, changed)
}
