// Package metrics counts what the server does, for Prometheus. docs/metrics.md lists the metrics.
//
// The number of labels is bounded. The first series.MaxLabels destinations since the start, and as
// many sources, have their name in the label. All others share the label "other". All other labels
// have fixed sets of values.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/webhookprom"
	"github.com/hookferry/analytics/webhook/webhookprom/series"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics is a webhook.Observer that counts deliveries with package webhookprom. It also counts the
// requests of clients. Handler reads all other numbers at each scrape. A Metrics is safe for
// concurrent use.
type Metrics struct {
	*webhookprom.Metrics
	registry *prometheus.Registry

	served        *prometheus.CounterVec
	servedSeconds prometheus.Histogram
}

// New returns Metrics with all counts at zero. version is the version of the program.
func New(version, goVersion string) *Metrics {
	m := &Metrics{
		Metrics:  webhookprom.New(),
		registry: prometheus.NewRegistry(),
		served: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hookferry_http_requests_total",
			Help: "Requests of clients to the tracking API, by the status of the answer.",
		}, []string{"code"}),
		servedSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "hookferry_http_request_duration_seconds",
			Help:    "Time of requests of clients, from the end of the header to the answer, the commit included.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 30},
		}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "hookferry_build_info",
		Help:        "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": goVersion},
	})
	build.Set(1)
	m.registry.MustRegister(m.served, m.servedSeconds, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *Metrics) Served(status int, took time.Duration) {
	code := strconv.Itoa(status)
	if status < 100 || status > 599 {
		code = series.Other // so that there are few labels
	}
	m.served.WithLabelValues(code).Inc()
	m.servedSeconds.Observe(took.Seconds())
}

// State has the parts of the server that a scrape reads. Its functions are called concurrently.
type State struct {
	// Forwarder and Store are the server's. Both are required.
	Forwarder *webhook.Forwarder
	Store     webhook.Store
	// StoreSize returns the size of the store's files in bytes. It is nil for a store without
	// files.
	StoreSize func() (int64, error)
	// Calls and Sources return counts of the calls of clients. Settings returns the settings in
	// use. All are required.
	Calls    func() api.Calls
	Sources  func() []api.Source
	Settings func() *config.Settings
	Logger   *slog.Logger // logs why a scrape is incomplete; required
}

// scrapeTimeout bounds how long a scrape waits for the store. By default Prometheus gives up a
// scrape after ten seconds, so scrapeTimeout is shorter.
const scrapeTimeout = 5 * time.Second

// Handler returns the handler for /metrics. It must be called only once.
func (m *Metrics) Handler(s State) http.Handler {
	m.registry.MustRegister(m.Collector(s.Forwarder), &snapshot{State: s, turn: make(chan struct{}, 1)})
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		// An incomplete scrape is better than none: while the store fails, people need the other
		// metrics most.
		ErrorHandling: promhttp.ContinueOnError,
		ErrorLog:      slog.NewLogLogger(s.Logger.Handler(), slog.LevelWarn),
		Registry:      m.registry,
	})
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("hookferry_"+name, help, labels, nil)
}

var (
	storeDeliveries = desc("store_deliveries", "Deliveries in the store, of all destinations.")
	storeDead       = desc("store_dead_letters", "Dead letters in the store.")
	storeSize       = desc("store_size_bytes", "Bytes of the files of the store; not of a database.")

	callsAccepted = desc("calls_accepted_total", "Calls of clients taken.", "source")
	callsRejected = desc("calls_rejected_total", "Calls of clients that are wrong.", "source")
	limited       = desc("http_requests_limited_total", "Requests answered by 429, over the rate of their source.", "source")
	unknown       = desc("http_requests_unknown_key_total", "Requests with a write key that is not known.")
	unavailable   = desc("http_requests_unavailable_total", "Requests told to try again, by 503.")

	reloaded = desc("config_last_reload_successful", "1 if the newest settings are in use, 0 if they are refused.")
	loaded   = desc("config_last_reload_success_timestamp_seconds", "When the settings in use were read.")
)

// A snapshot is a prometheus.Collector that reads the State at each scrape.
type snapshot struct {
	State
	labels series.Labels
	turn   chan struct{} // has a value while a scrape is in progress
	// The counts of the sources, by label.
	accepted, rejected, limited series.Ledger
}

// Describe implements prometheus.Collector. It sends nothing, so that Prometheus does not check that
// a scrape has all metrics: while the store fails, some are missing.
func (s *snapshot) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. Only one scrape runs at a time.
func (s *snapshot) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		ch <- prometheus.NewInvalidMetric(storeDeliveries, errors.New("another scrape takes too long"))
		return
	}
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}

	if c, err := s.Store.Count(ctx); err != nil {
		ch <- prometheus.NewInvalidMetric(storeDeliveries, fmt.Errorf("counting the deliveries in the store: %w", err))
	} else {
		gauge(storeDeliveries, float64(c.Waiting))
		gauge(storeDead, float64(c.Dead))
	}
	if s.StoreSize != nil {
		if n, err := s.StoreSize(); err != nil {
			ch <- prometheus.NewInvalidMetric(storeSize, err)
		} else {
			gauge(storeSize, float64(n))
		}
	}

	sources := s.Sources()
	bySource := func(d *prometheus.Desc, ledger *series.Ledger, countOf func(*api.Source) int64) {
		var now []series.Reading
		for i := range sources {
			label, _ := s.labels.Of(sources[i].Name)
			now = append(now, series.Reading{Label: label, Name: sources[i].Name, Count: countOf(&sources[i])})
		}
		for label, n := range ledger.Read(now) {
			count(d, n, label)
		}
	}
	bySource(callsAccepted, &s.accepted, func(of *api.Source) int64 { return of.Accepted })
	bySource(callsRejected, &s.rejected, func(of *api.Source) int64 { return of.Rejected })
	bySource(limited, &s.limited, func(of *api.Source) int64 { return of.Limited })
	calls := s.Calls()
	count(unknown, calls.Unknown)
	count(unavailable, calls.Failed)

	settings := s.Settings()
	inUse := 0.0
	if settings.Error == "" {
		inUse = 1
	}
	gauge(reloaded, inUse)
	gauge(loaded, float64(settings.Loaded.UnixMilli())/1000)
}
