// Package server runs the server. It connects the store, the forwarder, the collector and the admin
// listener, follows changes of the settings, and stops all parts in order; see stop.
//
// Complete settings never change. A reload makes new settings and swaps a pointer, or logs why they
// are invalid. An unchanged destination keeps its pointer, by which the forwarder recognises it.
// Counts and limits of a source continue under its name. The forwarder keeps the deliveries of a
// destination that is removed. A destination of the settings hides one of the store with its id.
//
// The destinations that the admin API makes, tenants and their destinations are documents of the store,
// which package tenants reads on demand. Events of tenants come by publisher.
//
// NewHTTP and the type conns bound what a client can use; readiness says when the server is ready.
package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	_ "net/http/pprof"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/hookferry/analytics/cmd/hookferry/internal/admin"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
	"github.com/hookferry/analytics/cmd/hookferry/internal/metrics"
	"github.com/hookferry/analytics/cmd/hookferry/internal/page"
	"github.com/hookferry/analytics/cmd/hookferry/internal/tracing"
	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

// Options are the settings of a server, and the things that it gets from its environment.
type Options struct {
	Settings *config.Settings // the settings at the start, after Complete
	// Load reads the settings again. The server calls it when one of their files has changed, and
	// for each value of Reload. If Load is nil, the settings do not change.
	Load   func() (*config.Settings, error)
	Reload <-chan os.Signal
	// MakeKey returns the write key for a source that has none. The server calls it while the store
	// in the data folder is open, so that no other server uses the folder.
	MakeKey func() (signature.Secret, error)
	Level   *slog.LevelVar // the lowest level that Logger logs; the server sets it from the settings
	Logger  *slog.Logger
	// LogLinesLeftOut returns how many lines of the log were left out, for the metrics.
	LogLinesLeftOut func() uint64
	Getenv          func(string) string // for GOMEMLIMIT and the variables of OpenTelemetry
	Version         string              // of the program
	// Dial opens the connections to endpoints and to the receiver of traces. If it is nil, package
	// webhook dials, and its address guard checks each connection.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

// A SettingError reports a valid setting that does not work, such as an address in use.
type SettingError struct {
	Key string // such as "admin.listen"
	Err error
}

func (e *SettingError) Error() string { return e.Key + ": " + e.Err.Error() }

func (e *SettingError) Unwrap() error { return e.Err }

type server struct {
	Options
	name      string // the name among the servers of the store
	started   time.Time
	settings  atomic.Pointer[config.Settings] // given, whose sources have the destinations in the store, too
	sources   sources
	ready     readiness
	access    accessLog
	send      api.Send
	store     *store
	memory    int64 // the bound for requests of clients, in bytes
	forwarder *webhook.Forwarder
	feed      *feed.Feed
	metrics   *metrics.Metrics // nil without metrics
	tracer    *tracing.Tracer  // nil without tracing

	tenants   *tenants.Directory
	directory config.Directory

	mu    sync.Mutex       // guards given
	given *config.Settings // the settings of the file or the flags

	running sync.WaitGroup
	ended   chan error // has room for the result of each part that run starts
}

// Run serves until ctx is done. Then it stops all parts in order, within the grace time, and returns
// nil, even if it was not up yet. If a setting does not work, the error is a *SettingError.
func Run(ctx context.Context, o Options) (err error) {
	first := o.Settings
	s := &server{Options: o, name: nodeName(), started: time.Now().UTC(), ended: make(chan error, 4)}
	s.sources.logger = o.Logger

	up := false
	defer func() {
		if !up && ctx.Err() != nil {
			s.Logger.Info("stopped before the server was up", "error", err)
			err = nil
		}
	}()
	process := limitMemory(&first.Limits, o.Getenv)
	s.memory = requestMemory(&first.Limits, process)
	// Listeners first: an address in use fails at once, and opening a store may take long.
	calls, err := s.listen(ctx, "listen", first.Listen)
	if err != nil {
		return err
	}
	defer calls.Close()
	var control net.Listener
	if first.Admin.Listen != config.Off {
		if control, err = s.listen(ctx, "admin.listen", first.Admin.Listen); err != nil {
			return err
		}
		defer control.Close()
	}
	if s.store, err = openStore(ctx, first, s.name, s.Logger); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.store.Close()) }()
	s.send.Endpoint = localURL(first.Listen, first.TLS, calls.Addr())
	for i := range first.Sources {
		if source := &first.Sources[i]; len(source.Keys) == 0 {
			key, err := o.MakeKey()
			if err != nil {
				return &SettingError{"data", err}
			}
			source.Keys = []signature.Secret{key}
			s.send.Data = first.Data
		}
	}
	limits := tenants.Config{AllowAddresses: first.Webhooks.Allow, Routed: s.join, Logger: s.Logger}
	if retries := first.Webhooks.Retries; retries != nil {
		limits.Timeout, limits.Window = retries.Timeout, retries.Window
	}
	if s.tenants, err = tenants.New(s.store.Store, limits); err != nil {
		return err
	}
	s.directory = config.Directory{Settings: s.settings.Load, Tenants: s.tenants}
	s.use(first)
	if err := s.tenants.Load(ctx); err != nil {
		return fmt.Errorf("reading the destinations in the store: %w", err)
	}
	if err := s.assemble(ctx); err != nil {
		return err
	}
	public, clients, err := s.public(calls)
	if err != nil {
		return err
	}

	up = true
	s.run(func() error { return s.forwarder.Run(context.WithoutCancel(ctx)) })
	s.run(func() error { return serve(public, clientListener{calls}) })
	var private *http.Server
	if control != nil {
		private = s.private(control)
		s.run(func() error { return serve(private, control) })
	}
	following, stopFollowing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopFollowing()
	s.run(func() error { s.follow(following); return nil })
	if s.feed != nil {
		s.running.Go(func() { s.feed.Run(following, s.store.Store) })
	}
	s.ready.serving.Store(true)
	s.checkFiles()
	s.announce(calls, control, process)
	notify(daemon.SdNotifyReady)

	var failure error
	select {
	case <-ctx.Done():
	case failure = <-s.ended:
	}
	return errors.Join(failure, s.stop(context.WithoutCancel(ctx), failure == nil, calls, public, clients, private, stopFollowing))
}

// run starts a part of the server. If it ends before the stop, the whole server stops.
func (s *server) run(work func() error) {
	s.running.Go(func() { s.ended <- work() })
}

// serve serves h on l until h is shut down, or l is closed.
func serve(h *http.Server, l net.Listener) (err error) {
	if h.TLSConfig != nil {
		err = h.ServeTLS(l, "", "")
	} else {
		err = h.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// listen opens a listener. The argument key names the setting of the address in errors.
func (s *server) listen(ctx context.Context, key, address string) (net.Listener, error) {
	l, err := s.Listen(ctx, "tcp", address)
	if op, ok := errors.AsType[*net.OpError](err); ok { // its text would repeat "listen"
		err = fmt.Errorf("%s: %w", address, op.Err)
	}
	if err != nil {
		return nil, &SettingError{key, err}
	}
	return l, nil
}

func (s *server) assemble(ctx context.Context) (err error) {
	settings := s.Settings
	var watching []webhook.Observer
	if settings.Admin.Listen != config.Off {
		s.feed = feed.New()
		watching = append(watching, s.feed)
		if settings.Metrics {
			s.metrics = metrics.New(s.Version, runtime.Version())
			watching = append(watching, s.metrics)
		}
	}
	if to := settings.Tracing; tracing.Wanted(to.Endpoint, s.Getenv) {
		s.tracer, err = tracing.Start(ctx, tracing.Config{Tracing: to, Version: s.Version, Logger: s.Logger, Dial: s.Dial})
		if err != nil {
			return &SettingError{"tracing", err}
		}
		watching = append(watching, s.tracer.Deliveries)
	}
	c := webhook.Config{
		Note:            s.note,
		Store:           s.store.Store,
		Directory:       s.directory,
		ServiceName:     settings.Webhooks.Name,
		AllowAddresses:  settings.Webhooks.Allow,
		Proxy:           settings.Webhooks.ProxyURL(),
		DialContext:     s.Dial,
		DisableGone:     true,
		DisableAfter:    settings.Webhooks.DisableAfter,
		BuryDisabled:    settings.Webhooks.WhenDisabled == config.Dead,
		Retries:         settings.Webhooks.Retries,
		BacklogMaxAge:   settings.Backlog.MaxAge,
		BacklogMaxBytes: int64(settings.Backlog.MaxBytes),
		DeadMaxAge:      settings.DeadLetters.MaxAge,
		DeadMaxBytes:    int64(settings.DeadLetters.MaxBytes),
		Observers:       watching,
		Logger:          s.Logger,
	}
	if settings.Webhooks.Operations != "" {
		c.Observers = append(c.Observers, &operator{server: s})
	}
	s.forwarder, err = webhook.New(c)
	return err
}

func (s *server) public(l net.Listener) (*http.Server, *conns, error) {
	s.ready.next, s.ready.store = s.forwarder, s.store.ready
	if s.tracer != nil {
		s.ready.next = s.tracer.Deliveries.Forwarder(s.forwarder)
	}
	s.access = accessLog{logger: s.Logger, sample: func() int { return s.settings.Load().Log.Access }, client: s.clientIP}
	var headers []string
	if s.tracer != nil && s.Settings.Tracing.TrustClients {
		headers = []string{"traceparent", "tracestate", "baggage"} // browsers with OpenTelemetry send them
	}
	calls, err := collector.New(collector.Config{
		Forwarder:    &s.ready,
		Sources:      s.sources.find,
		BaseURL:      s.Settings.BaseURL,
		ClientIP:     s.clientIP,
		AllowHeaders: headers,
		MaxMemory:    s.memory,
		MaxRequests:  s.Settings.Limits.RequestsPerAddress,
		Answered:     s.answered,
		Logger:       s.Logger,
	})
	if err != nil {
		return nil, nil, err
	}
	publishing := newPublisher(s)
	customers, err := newCustomers(s)
	if err != nil {
		return nil, nil, err
	}
	var taken http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !publishing.serve(w, r) {
			calls.ServeHTTP(w, r)
		}
	})
	if s.tracer != nil {
		taken = s.tracer.Handler(taken)
	}
	server, clients := s.http(l, func(settings *config.Settings) *config.Certificate { return settings.TLS },
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !s.serveKeys(w, r) && !customers.serve(w, r) {
				taken.ServeHTTP(w, r)
			}
		}))
	return server, clients, nil
}

func (s *server) clientIP(r *http.Request) string {
	return clientIP(r, s.settings.Load().TrustedProxies)
}

// answered counts, logs and traces an answered request of a client.
func (s *server) answered(r *http.Request, a collector.Answered) {
	s.sources.answered(&a)
	s.access.answered(r, &a)
	if s.tracer != nil {
		s.tracer.Answered(r, a)
	}
	if s.metrics != nil {
		s.metrics.Answered(&a)
	}
}

func (s *server) private(l net.Listener) *http.Server {
	private := map[string]http.Handler{
		"GET /debug/pprof/":        http.DefaultServeMux,   // which has what net/http/pprof serves
		"GET /debug/pprof/cmdline": http.NotFoundHandler(), // flags may hold secrets
	}
	if s.metrics != nil {
		private["GET /metrics"] = s.metrics.Handler(metrics.State{
			Forwarder:       s.forwarder,
			Store:           s.store.Store,
			StoreSize:       s.store.size,
			Settings:        s.settings.Load,
			LogLinesLeftOut: s.LogLinesLeftOut,
			Logger:          s.Logger,
		})
	}
	h := admin.New(admin.Config{
		Forwarder: s.forwarder,
		Store:     s.store.Store,
		Roster:    s.store.roster,
		Feed:      s.feed,
		Node:      s.node,
		Troubles:  s.ready.troubles,
		Settings:  s.settings.Load,
		Tenants:   s.tenants,
		Sources:   s.sources.list,
		Calls:     s.sources.calls,
		Send:      s.send,
		PublicURL: cmp.Or(s.Settings.BaseURL, s.send.Endpoint),
		Token:     s.Settings.Admin.Token.Reveal(),
		Private:   private,
		Page:      page.Handler(),
		Logger:    s.Logger,
	})
	server, _ := s.http(l, func(settings *config.Settings) *config.Certificate { return settings.Admin.TLS }, h)
	server.RegisterOnShutdown(h.Close)
	return server
}

// http returns an HTTP server for a listener, which answers health checks and passes all else on to
// next. A new connection uses the certificate of the settings in use. Requests that never block, such
// as those that are refused, let other connections run first.
func (s *server) http(l net.Listener, certificate func(*config.Settings) *config.Certificate, next http.Handler) (*http.Server, *conns) {
	limits := s.Settings.Limits
	conns := newConns(l.Addr(), limits.Connections, limits.ConnectionsPerAddress, func(ip netip.Addr) bool {
		return contains(s.settings.Load().TrustedProxies, ip)
	}, s.Logger)
	server := NewHTTP(conns.handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if runtime.Gosched(); !s.ready.serveHealth(w, r) {
			next.ServeHTTP(w, r)
		}
	})), s.Logger)
	server.IdleTimeout = limits.IdleTimeout
	server.ConnState = conns.changed
	if certificate(s.Settings) != nil {
		server.TLSConfig = &tls.Config{GetConfigForClient: greeted, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return certificate(s.settings.Load()).Pair, nil
		}}
	}
	return server, conns
}

func (s *server) announce(calls, control net.Listener, process int64) {
	const most = 10
	all := s.settings.Load().Destinations
	for i, d := range all {
		if i == most {
			s.Logger.Info("forwarding to more destinations", "count", len(all)-most)
			break
		}
		for _, e := range d.Endpoints {
			s.Logger.Info("forwarding", "webhook", config.Shown(e.URL), "signed", d.Secret != "" || len(d.StandardSecrets) > 0, "destination", d.ID)
		}
	}
	if n := len(s.tenants.Owned()); n > 0 {
		s.Logger.Info("forwarding to destinations in the store", "count", n)
	}
	s.warnUnrouted()
	s.Logger.Info("memory and disk have bounds", "process_memory", shown(process), "request_memory", shown(s.memory), "store", shown(s.store.bound))
	if control != nil {
		s.Logger.Info("the page is at", "url", localURL(s.Settings.Admin.Listen, s.Settings.Admin.TLS, control.Addr())+"/")
	}
	s.Logger.Info("listening", "address", calls.Addr().String(), s.store.where, "node", s.name)
}

// stop stops the parts in order: readiness, calls, attempts, and last the admin listener, so that
// people can watch the stop. The argument clean says that it was requested, and no part has failed.
func (s *server) stop(ctx context.Context, clean bool, calls net.Listener, public *http.Server, clients *conns, private *http.Server, stopFollowing func()) (failure error) {
	settings := s.settings.Load()
	notify(daemon.SdNotifyStopping)
	s.ready.serving.Store(false)
	clients.stopping.Store(true)
	s.Logger.Info("stopping", "grace", settings.Grace)
	if clean && settings.Drain > 0 {
		// A connection that is idle in the middle of the drain has had no request since its
		// beginning: the answer would have ended the connection. So its client hardly sends a
		// request just when the connection ends.
		if failure = s.await(settings.Drain / 2); failure == nil {
			clients.endIdle(false)
			failure = s.await(settings.Drain - settings.Drain/2)
		}
	}
	stopping, cancel := context.WithTimeout(ctx, settings.Grace)
	defer cancel()
	calls.Close()
	clients.endIdle(true)
	clients.wait(stopping)
	if err := public.Shutdown(stopping); err != nil && stopping.Err() != nil { // otherwise the error is of calls, which was closed before
		s.Logger.Warn("requests were cut off; their senders will repeat them")
		public.Close()
	}
	if s.forwarder.Shutdown(stopping) != nil {
		s.Logger.Warn("attempts were cut off; they are repeated after the next start")
	}
	if private != nil {
		// Streams and long work end at once. Other requests get one second.
		brief, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if private.Shutdown(brief) != nil {
			private.Close()
		}
	}
	stopFollowing()
	s.running.Wait()
	close(s.ended)
	for err := range s.ended {
		failure = errors.Join(failure, err)
	}
	if s.tracer != nil {
		if err := s.tracer.Shutdown(stopping); err != nil {
			s.Logger.Warn("traces were lost", "error", err)
		}
	}
	if failure == nil && clean {
		s.Logger.Info("stopped")
	}
	return failure
}

// await waits for a time, or until a part of the server ends, and returns its error.
func (s *server) await(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case err := <-s.ended:
		return err
	}
}
