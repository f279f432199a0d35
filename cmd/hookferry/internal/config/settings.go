// Package config reads what a server is to do, from a YAML file or from flags. Load reads, checks
// and completes a file; what it returns is ready to run.
//
// A text of the file may hold ${NAME}, the value of an environment variable; $${ stands for ${
// itself. A secret may be file:PATH instead, the content of a file without its last line break.
// Relative paths are relative to the folder of the configuration file. A variable or a file that is
// missing is an error. No error repeats a value, since any value may hold a secret.
package config

import (
	"crypto/tls"
	"log/slog"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/natsqueue"
	"github.com/hookferry/analytics/webhook/pgqueue"
)

// Settings are what a server runs with. Once they are complete they do not change, and may be read
// concurrently.
//
// The tags of the fields are all that a simple setting needs. yaml is its key in the file; allow
// has its bounds, see reader.bounds; restart means that a new value counts only after a restart.
type Settings struct {
	// Path is the file they were read from, "" if they were made of flags.
	Path string
	// Loaded is when they were read.
	Loaded time.Time
	// Error is why the newest version of the file is not in use, "" if it is.
	Error string
	// Restart names the keys whose newest values count only after a restart.
	Restart []string
	// Files are all the files that were read, that of Path included.
	Files []File

	// Listen is the address that calls are accepted on, such as ":8080".
	Listen string `yaml:"listen" restart:"true"`
	// TLS is the certificate of that address. Nil means plain HTTP.
	TLS *Certificate `yaml:"tls" restart:"true"`
	// BaseURL is where browsers reach the server, if that is not what their requests say; see
	// collector.Config.
	BaseURL string `yaml:"baseURL" restart:"true"`
	// TrustedProxies are the proxies whose X-Forwarded-For is believed. Their connections do
	// not count for Limits.ConnectionsPerAddress.
	TrustedProxies []netip.Prefix `yaml:"trustedProxies"`
	// Data is the folder for the data. It is made if it is missing.
	Data string `yaml:"data" restart:"true"`
	// Queue is where calls are kept, if not there.
	Queue Queue `yaml:"queue" restart:"true"`
	// Drain is how long calls are still accepted after a stop was asked for, while /readyz
	// says no, so that a load balancer can notice.
	Drain time.Duration `yaml:"drain" allow:"0s to 1h"`
	// Grace is how long the stop may take then.
	Grace time.Duration `yaml:"grace" allow:"0s to 1h"`

	Admin       Admin       `yaml:"admin"`
	Webhooks    Webhooks    `yaml:"webhooks" restart:"true"`
	DeadLetters DeadLetters `yaml:"deadLetters" restart:"true"`
	History     History     `yaml:"history" restart:"true"`
	Limits      Limits      `yaml:"limits" restart:"true"`
	Log         Log         `yaml:"log"`
	// Metrics has the admin listener serve metrics for Prometheus.
	Metrics bool    `yaml:"metrics" restart:"true"`
	Tracing Tracing `yaml:"tracing" restart:"true"`
	// Sources are 1 to MaxSources, sorted by name.
	Sources []Source `yaml:"sources"`
	// Destinations are at most MaxDestinations, sorted by id.
	Destinations []Destination `yaml:"destinations"`
}

// Queue is a store that several servers share.
type Queue struct {
	// URL is that of a database, with postgres or postgresql, or those of NATS servers, with
	// nats or tls, separated by commas. Empty means the store in the data folder.
	URL      signature.Secret `yaml:"url"`
	Postgres Postgres         `yaml:"postgres"`
	NATS     NATS             `yaml:"nats"`
}

// Shared reports whether the store is one that several servers share.
func (q *Queue) Shared() bool { return q.URL != "" }

// NATS says how JetStream is used; see natsqueue.Config.
type NATS struct {
	Stream string `yaml:"stream"`
	// Credentials is a file with a user's JWT and seed. Empty means none.
	Credentials string `yaml:"credentials"`
	// TLS encrypts the connections to the servers. Nil means TLS with the system's authorities
	// where the servers want it.
	TLS *ClientTLS `yaml:"tls"`
	// Replicas is how many servers keep the stream. Zero means what the stream has, and for a
	// new one 3 where there are as many servers.
	Replicas int `yaml:"replicas" allow:"0 to 5"`
	// Partitions is into how many parts destinations are divided. It cannot be changed later.
	Partitions int `yaml:"partitions" allow:"1 to 256"`
	// Claim is the time within which others take over from a server that died.
	Claim time.Duration `yaml:"claim" allow:"1s to 1h"`
	// DedupWindow is how long a call is recognised when it comes again.
	DedupWindow time.Duration `yaml:"dedupWindow" allow:"1m to 168h"`
	// MaxBytes bounds what waits on the disk, in each replica. Zero means no bound but the
	// server's.
	MaxBytes Size `yaml:"maxBytes" allow:"0 to 1024TB"`
}

// Postgres says how PostgreSQL is used; see pgqueue.Config.
type Postgres struct {
	Schema string `yaml:"schema"`
	// Migrate has the server make the tables, and bring them to its version.
	Migrate bool `yaml:"migrate"`
	// Pooler says that a pooler in between gives each transaction a connection of its own.
	Pooler bool `yaml:"pooler"`
	// Connections is how many the server has at most, beside one to listen on.
	Connections int `yaml:"connections" allow:"5 to 1000"`
	// Claim is the time within which others take over from a server that died.
	Claim time.Duration `yaml:"claim" allow:"1s to 1h"`
}

// Admin is the listener of the admin API and of the page.
type Admin struct {
	// Listen is its address, Off for none.
	Listen string `yaml:"listen" restart:"true"`
	// Token is the bearer token of its requests. It is required unless Listen is a loopback
	// address.
	Token signature.Secret `yaml:"token" restart:"true"`
	// TLS is its certificate. Nil means plain HTTP.
	TLS *Certificate `yaml:"tls" restart:"true"`
}

// Off is the Listen of an Admin that has no listener.
const Off = "off"

// The values of Webhooks.WhenDisabled.
const (
	Keep = "keep"
	Dead = "dead"
)

// Webhooks are settings of all webhooks.
type Webhooks struct {
	// Name is the product in their User-Agent.
	Name string `yaml:"name"`
	// Allow are addresses that are not public and that a name may resolve to nevertheless.
	// Addresses and localhost written out in a URL of the configuration need no entry.
	Allow []netip.Prefix `yaml:"allow"`
	// DisableAfter is how long a destination may fail without one success until it is
	// disabled. Zero means for ever.
	DisableAfter time.Duration `yaml:"disableAfter" allow:"0s to 8760h"`
	// WhenDisabled says what becomes of the deliveries of a destination that is disabled so, or
	// that answers 410: they wait, or become dead letters.
	WhenDisabled string `yaml:"whenDisabled" allow:"keep or dead"`
	// Operations is the id of a destination that is told when another one is disabled or
	// enabled. Empty means none.
	Operations string `yaml:"operations"`
	// Proxy is the URL of a proxy for all their connections, with http or socks5.
	Proxy signature.Secret `yaml:"proxy"`
}

// History says which delivered deliveries the store in the data folder keeps: the oldest go first.
type History struct {
	// MaxAge is how long. Zero keeps none.
	MaxAge   time.Duration `yaml:"maxAge" allow:"0 or 1m to 87600h"`
	MaxBytes Size          `yaml:"maxBytes" allow:"1MB to 1TB"`
}

// DeadLetters bounds the deliveries that were given up: the oldest go first.
type DeadLetters struct {
	MaxAge   time.Duration `yaml:"maxAge" allow:"1m to 87600h"`
	MaxBytes Size          `yaml:"maxBytes" allow:"1MB to 1TB"`
}

// Limits bound what all clients together may take, and the process itself.
type Limits struct {
	// Connections are those of one listener.
	Connections int `yaml:"connections" allow:"1 to 1_000_000"`
	// ConnectionsPerAddress are those of one address among them.
	ConnectionsPerAddress int `yaml:"connectionsPerAddress" allow:"1 to 1_000_000"`
	// RequestsPerAddress are those of one address that are in progress. More of them wait.
	RequestsPerAddress int `yaml:"requestsPerAddress" allow:"1 to 1_000_000"`
	// Memory is for bodies and events of requests. Zero means collector.DefaultMaxMemory, or a
	// quarter of ProcessMemory if that is less.
	Memory Size `yaml:"memory" allow:"0 or 1MB to 1TB"`
	// ProcessMemory is what Go's runtime keeps the process to. Zero means most of the
	// container's memory, or half of the machine's.
	ProcessMemory Size `yaml:"processMemory" allow:"0 or 64MB to 1024TB"`
	// Store is for what waits on disk. Zero means three quarters of the room that there is when
	// the server starts.
	Store Size `yaml:"store" allow:"0 to 1024TB"`
}

// Log says what is logged, and how.
type Log struct {
	Format string     `yaml:"format" allow:"text or json" restart:"true"`
	Level  slog.Level `yaml:"level"`
	// Access n logs one of n requests that went well, 0 none. Requests that failed are logged
	// in any case.
	Access int `yaml:"access" allow:"0 to 1_000_000"`
}

// Tracing is OpenTelemetry's, by OTLP over HTTP.
type Tracing struct {
	// Endpoint is the base URL of a receiver of traces, without /v1/traces. Empty means that of
	// OpenTelemetry's variables, and no traces if they have none.
	Endpoint string `yaml:"endpoint"`
	// Headers are added to each request to it.
	Headers map[string]signature.Secret `yaml:"headers"`
	// Sample is the fraction recorded of the traces that begin here. At 1 the sampler of the
	// environment decides, which by default records all.
	Sample float64 `yaml:"sample" allow:"0 to 1"`
	// TrustClients makes calls part of the traces of their clients, which then decide what is
	// recorded. Otherwise anybody with a write key, such as a browser, could have everything
	// recorded, and add to the traces of others.
	TrustClients bool `yaml:"trustClients"`
}

// A Source is an application whose calls are accepted.
type Source struct {
	// Name is what logs call it: 1 to 255 bytes, and no other source has it.
	Name string `yaml:"name"`
	// Keys are its write keys, 1 to MaxKeys. Settings made of flags may have none, if their
	// store is not shared.
	Keys []signature.Secret `yaml:"keys"`
	// Enabled says that its calls are accepted.
	Enabled bool `yaml:"enabled"`
	// Rate is how many calls a second it may send, from one a day to 1,000,000. Zero means no
	// limit.
	Rate float64 `yaml:"rate"`
	// Burst is how many calls it may send at once after a time with fewer. Zero means a
	// second's worth.
	Burst int `yaml:"burst" allow:"0 to 10_000_000"`
	// ByteRate is how many bytes of webhooks a second the calls may become, counted once for
	// each destination. Zero means 4 KB for each of Rate and each destination, and no limit
	// without a Rate.
	ByteRate Size `yaml:"byteRate" allow:"0 or 1KB to 1TB"`
	// Filter selects the calls that are forwarded. The others are accepted and counted.
	Filter Filter `yaml:"filter"`
	// Destinations are the ids of those that get its calls.
	Destinations []string `yaml:"destinations"`
}

// A Destination is a customer's set of endpoints; see webhook.Destination, which has the bounds.
type Destination struct {
	ID              string             `yaml:"id"`
	Enabled         bool               `yaml:"enabled"`
	Endpoints       []Endpoint         `yaml:"endpoints"`
	Secret          signature.Secret   `yaml:"secret"`
	StandardSecrets []signature.Secret `yaml:"standardSecrets"`
	TLS             *ClientTLS         `yaml:"tls"`
	Filter          Filter             `yaml:"filter"`
	Timeout         time.Duration      `yaml:"timeout"`
	Window          time.Duration      `yaml:"window"`
	Schedule        string             `yaml:"schedule"`
	NetHTTP         bool               `yaml:"netHTTP"`
	MaxConcurrent   int                `yaml:"maxConcurrent"`
	MaxRate         float64            `yaml:"maxRate"`
	MaxBurst        int                `yaml:"maxBurst"`

	// Webhook is what the forwarder gets. Complete makes it, and Keep keeps the pointer where
	// nothing changed. It is nil for a document of the store that is not valid.
	Webhook *webhook.Destination
	// Stored describes a destination that is kept in the store. Nil means that it is one of
	// the configuration.
	Stored *Stored
}

// A Filter selects events; see webhook.Filter.
type Filter struct {
	Include []string `yaml:"include"`
	Exclude []string `yaml:"exclude"`
}

// An Endpoint is a URL that webhooks are sent to.
type Endpoint struct {
	URL     signature.Secret            `yaml:"url"`
	Headers map[string]signature.Secret `yaml:"headers"`
}

// Shown returns the URL without user, query and fragment, which may hold credentials.
func (e *Endpoint) Shown() string {
	u, err := url.Parse(e.URL.Reveal())
	if err != nil {
		return "?"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// A Certificate is a chain and its private key, in PEM files.
type Certificate struct {
	Cert Pem `yaml:"certificate"`
	Key  Pem `yaml:"key"`

	// Pair is made of both by Complete.
	Pair *tls.Certificate
}

// ClientTLS is how the connections to a destination, or to the servers of the store, differ from
// others, in PEM files: a client certificate with its key, and the authorities that may have signed
// the certificates at the other end.
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

// DefaultData is the data folder of settings that name none.
const DefaultData = "hookferry-data"

// Default returns settings that lack only sources and destinations.
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
		DeadLetters: DeadLetters{MaxAge: webhook.DefaultDeadMaxAge, MaxBytes: webhook.DefaultDeadMaxBytes},
		History:     History{MaxBytes: filequeue.DefaultHistoryBytes},
		Limits:      Limits{Connections: 10_000, ConnectionsPerAddress: 1_000, RequestsPerAddress: collector.DefaultMaxRequests},
		Log:         Log{Format: "text", Access: 100},
		Metrics:     true,
		Tracing:     Tracing{Sample: 1},
	}
}

// DefaultSource and DefaultDestination return values that lack only what is required.
func DefaultSource() Source           { return Source{Enabled: true} }
func DefaultDestination() Destination { return Destination{Enabled: true} }

// Source returns the source with a name, nil if there is none. The settings are complete.
func (s *Settings) Source(name string) *Source {
	i, found := slices.BinarySearchFunc(s.Sources, name, func(s Source, name string) int { return strings.Compare(s.Name, name) })
	if !found {
		return nil
	}
	return &s.Sources[i]
}

// Destination returns the destination with an id, nil if there is none. The settings are complete.
func (s *Settings) Destination(id string) *Destination {
	i, found := slices.BinarySearchFunc(s.Destinations, id, func(d Destination, id string) int { return strings.Compare(d.ID, id) })
	if !found {
		return nil
	}
	return &s.Destinations[i]
}
