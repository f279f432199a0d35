// Package config reads what a server is to do: from a YAML file, or made of
// flags. Load reads, checks and completes it; what it returns is ready to run.
//
// A text of the file may hold ${NAME}, the value of an environment variable;
// $${ stands for ${ itself. A secret may be file:PATH instead, the content of a
// file without its last line break. Relative paths are relative to the folder of
// the configuration file. A name or a file that is missing is an error. No
// error repeats what a text is, since any may hold a secret.
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

// Settings are what a server runs with. The fields with a yaml tag are the keys
// of the file. Once checked, settings do not change, and may be read by all.
type Settings struct {
	// Path is the file they were read from, "" if they were made of flags.
	Path string `yaml:"-"`
	// Loaded is when.
	Loaded time.Time `yaml:"-"`
	// Error is why the newest version of the file is not in use, "" if it is.
	Error string `yaml:"-"`
	// Restart names the keys whose newest values count after a restart only.
	Restart []string `yaml:"-"`
	// Files are all the files that were read, that of Path included.
	Files []File `yaml:"-"`

	// Listen is the address that calls are accepted on, such as ":8080".
	Listen string `yaml:"listen"`
	// TLS is the certificate of that address. Nil means plain HTTP.
	TLS *Certificate `yaml:"tls"`
	// BaseURL is where browsers reach it, if that is not what their requests
	// say; see collector.Config.
	BaseURL string `yaml:"baseURL"`
	// TrustedProxies are the proxies whose X-Forwarded-For is believed. Their
	// connections do not count for Limits.ConnectionsPerAddress.
	TrustedProxies []netip.Prefix `yaml:"trustedProxies"`
	// Data is the folder for the data. It is made if it is missing.
	Data string `yaml:"data"`
	// Queue is where calls are kept, if not there.
	Queue Queue `yaml:"queue"`
	// Drain is how long calls are accepted after a stop was asked for, while
	// /readyz says no: for whoever spreads calls over servers to notice. Up to
	// 1h.
	Drain time.Duration `yaml:"drain"`
	// Grace is how long the stop may take then, up to 1h.
	Grace time.Duration `yaml:"grace"`

	Admin        Admin         `yaml:"admin"`
	Webhooks     Webhooks      `yaml:"webhooks"`
	DeadLetters  DeadLetters   `yaml:"deadLetters"`
	History      History       `yaml:"history"`
	Limits       Limits        `yaml:"limits"`
	Log          Log           `yaml:"log"`
	Metrics      bool          `yaml:"metrics"` // Prometheus's, on the admin listener
	Tracing      Tracing       `yaml:"tracing"`
	Sources      []Source      `yaml:"sources"`      // 1 to MaxSources; complete, by name
	Destinations []Destination `yaml:"destinations"` // at most MaxDestinations; complete, by id
}

// Queue is a store that any number of servers share.
type Queue struct {
	// URL is that of the database, with postgres or postgresql, or those of NATS
	// servers, with nats or tls, separated by commas. Empty means the store in the
	// data folder.
	URL      signature.Secret `yaml:"url"`
	Postgres Postgres         `yaml:"postgres"`
	NATS     NATS             `yaml:"nats"`
}

// Shared reports whether the store is one that several servers share.
func (q *Queue) Shared() bool { return q.URL != "" }

// NATS says how JetStream is used; see natsqueue.Config.
type NATS struct {
	// Stream is the name of the stream.
	Stream string `yaml:"stream"`
	// Credentials is a file with a user's JWT and seed. Empty means none.
	Credentials string `yaml:"credentials"`
	// TLS is of the connections to the servers, which are encrypted with it in any
	// case. Nil means the system's authorities, where the servers want TLS.
	TLS *ClientTLS `yaml:"tls"`
	// Replicas is how many servers keep the stream: 1 to 5. Zero means what the
	// stream has, and for a new one 3 where there are as many servers.
	Replicas int `yaml:"replicas"`
	// Partitions is into how many parts destinations are divided: 1 to 256. It
	// cannot be changed later.
	Partitions int `yaml:"partitions"`
	// Claim is the time within which others take over from a server that is
	// gone: 1s to 1h.
	Claim time.Duration `yaml:"claim"`
	// DedupWindow is how long a call is recognised when it comes again: 1m to
	// 168h.
	DedupWindow time.Duration `yaml:"dedupWindow"`
	// MaxBytes bounds what waits on the disk, in each replica. Zero means no
	// bound but the server's.
	MaxBytes Size `yaml:"maxBytes"`
}

// Postgres says how PostgreSQL is used; see pgqueue.Config.
type Postgres struct {
	Schema string `yaml:"schema"`
	// Migrate is whether the server makes the tables, and brings them to its
	// version.
	Migrate bool `yaml:"migrate"`
	// Pooler is whether there is a pooler in between that gives each
	// transaction a connection of its own.
	Pooler bool `yaml:"pooler"`
	// Connections is how many the server has at most, beside one to listen on: 5 to
	// 1,000.
	Connections int `yaml:"connections"`
	// Claim is the time within which others take over from a server that is
	// gone: 1s to 1h.
	Claim time.Duration `yaml:"claim"`
}

// Admin is the listener of the admin API and of the page.
type Admin struct {
	// Listen is its address, Off for none.
	Listen string `yaml:"listen"`
	// Token is the bearer token of its requests. It is required unless Listen
	// is a loopback address.
	Token signature.Secret `yaml:"token"`
	// TLS is its certificate. Nil means plain HTTP.
	TLS *Certificate `yaml:"tls"`
}

// The values of Webhooks.WhenDisabled.
const (
	Keep = "keep"
	Dead = "dead"
)

// Off is the Listen of an Admin that has no listener.
const Off = "off"

// Webhooks are settings of all webhooks.
type Webhooks struct {
	// Name is the product in their User-Agent.
	Name string `yaml:"name"`
	// Allow are addresses that are not public and that a name may resolve to
	// nevertheless. Addresses and localhost written out in a URL of the
	// configuration need no entry.
	Allow []netip.Prefix `yaml:"allow"`
	// DisableAfter is how long a destination may fail without one success until it is
	// disabled: up to a year, 0 for ever.
	DisableAfter time.Duration `yaml:"disableAfter"`
	// WhenDisabled says what becomes of what waits for a destination that is disabled so, or
	// answers 410, and of what comes for it: Keep or Dead.
	WhenDisabled string `yaml:"whenDisabled"`
	// Operations is the id of a destination that is told of the others as they are disabled and
	// enabled. Empty means none.
	Operations string `yaml:"operations"`
	// Proxy is the URL of a proxy that makes all their connections, with http or socks5.
	Proxy signature.Secret `yaml:"proxy"`
}

// History says what is kept of deliveries that were delivered, by the store in the data folder: the
// oldest go first.
type History struct {
	// MaxAge is how long: 1m to ten years. Zero keeps none.
	MaxAge time.Duration `yaml:"maxAge"`
	// MaxBytes is how large all of it may be.
	MaxBytes Size `yaml:"maxBytes"`
}

// DeadLetters bounds the deliveries that were given up: the oldest go first.
type DeadLetters struct {
	MaxAge   time.Duration `yaml:"maxAge"`   // 1m to 87600h, ten years
	MaxBytes Size          `yaml:"maxBytes"` // 1MB to 1TB
}

// Limits bound what all clients together may take, and the process itself.
type Limits struct {
	// Connections are those of one listener, and ConnectionsPerAddress those
	// of one address among them: 1 to 1,000,000.
	Connections           int `yaml:"connections"`
	ConnectionsPerAddress int `yaml:"connectionsPerAddress"`
	// RequestsPerAddress are those of one address that are in progress; more wait:
	// 1 to 1,000,000.
	RequestsPerAddress int `yaml:"requestsPerAddress"`
	// Memory is for bodies and events of requests at once: 1MB to 1TB. Zero means
	// collector.DefaultMaxMemory, or a quarter of ProcessMemory if that is less.
	Memory Size `yaml:"memory"`
	// ProcessMemory is what Go's runtime keeps the process to: 64MB to 1PB. Zero means
	// most of the container's memory, or half of the machine's.
	ProcessMemory Size `yaml:"processMemory"`
	// Store is for what waits on disk: up to 1PB. Zero means three quarters of what there
	// is room for when the server starts.
	Store Size `yaml:"store"`
}

// Log says what is logged, and how.
type Log struct {
	Format string     `yaml:"format"` // text or json
	Level  slog.Level `yaml:"level"`  // debug, info, warn or error
	// Access is one of how many requests that went well is logged, 0 for none,
	// up to 1,000,000. Those that failed are logged in any case.
	Access int `yaml:"access"`
}

// Tracing is OpenTelemetry's, by OTLP over HTTP.
type Tracing struct {
	// Endpoint is the URL of the collector of traces. Empty means no traces.
	Endpoint string `yaml:"endpoint"`
	// Headers are added to each request to it.
	Headers map[string]signature.Secret `yaml:"headers"`
	// Sample is the part of the calls that are traced: 0 to 1.
	Sample float64 `yaml:"sample"`
	// TrustClients is whether calls are part of the traces of their clients,
	// which then decide what is recorded.
	TrustClients bool `yaml:"trustClients"`
}

// A Source is an application whose calls are accepted.
type Source struct {
	// Name is what logs call it: 1 to 255 bytes, and no other has it.
	Name string `yaml:"name"`
	// Keys are its write keys, 1 to MaxKeys. Settings made of flags may have
	// none, if their store is not shared.
	Keys []signature.Secret `yaml:"keys"`
	// Enabled is whether its calls are accepted.
	Enabled bool `yaml:"enabled"`
	// Rate is how many calls a second it may send, 0 for no limit, up to
	// 1,000,000. Burst is how many at once after a time with fewer, 0 for a
	// second's worth.
	Rate  float64 `yaml:"rate"`
	Burst int     `yaml:"burst"`
	// ByteRate is how many bytes of webhooks a second they may become, counted once for
	// each destination: 1KB to 1TB. Zero means 4 KB for each of Rate and each
	// destination, and no limit without a Rate.
	ByteRate Size `yaml:"byteRate"`
	// Filter selects the calls that are forwarded. The others are accepted and counted.
	Filter Filter `yaml:"filter"`
	// Destinations are the ids of those that get its calls.
	Destinations []string `yaml:"destinations"`
}

// A Destination is a customer's set of endpoints; see webhook.Destination.
type Destination struct {
	ID              string             `yaml:"id"`
	Enabled         bool               `yaml:"enabled"`
	Endpoints       []Endpoint         `yaml:"endpoints"`
	Secret          signature.Secret   `yaml:"secret"`
	StandardSecrets []signature.Secret `yaml:"standardSecrets"`
	TLS             *ClientTLS         `yaml:"tls"`
	Filter          Filter             `yaml:"filter"`
	Timeout         time.Duration      `yaml:"timeout"` // up to 5s
	Window          time.Duration      `yaml:"window"`  // up to 4h
	Schedule        string             `yaml:"schedule"`
	NetHTTP         bool               `yaml:"netHTTP"`
	MaxConcurrent   int                `yaml:"maxConcurrent"`
	MaxRate         float64            `yaml:"maxRate"`
	MaxBurst        int                `yaml:"maxBurst"`

	// Webhook is what it is to a forwarder. Complete makes it, and Keep keeps
	// the pointer where nothing changed.
	Webhook *webhook.Destination `yaml:"-"`
	// Stored is of one that is kept in the store. Nil means that the settings name it.
	Stored *Stored `yaml:"-"`
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

// Shown returns the URL without user, query and fragment, which may hold
// credentials.
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
	Pair *tls.Certificate `yaml:"-"`
}

// ClientTLS is how the connections to a destination, or to the servers of the store, differ
// from others, in PEM files: a client certificate with its key, and the authorities
// that may have signed the certificates at the other end.
type ClientTLS struct {
	Cert Pem `yaml:"certificate"`
	Key  Pem `yaml:"key"`
	CA   Pem `yaml:"ca"`
}

// A Pem is a file that the configuration names, and its content.
type Pem struct {
	Path string
	Data signature.Secret
}

// The bounds of lists.
const (
	MaxSources      = 10_000
	MaxDestinations = 10_000
	MaxKeys         = 10
)

// DefaultData is the data folder of settings that name none.
const DefaultData = "hookferry-data"

// Default returns settings that lack sources and destinations only.
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

// DefaultSource and DefaultDestination are those that lack what is required
// only.
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
