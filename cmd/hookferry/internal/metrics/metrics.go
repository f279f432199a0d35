// Package metrics counts what the server does, for Prometheus. docs/metrics.md lists the metrics.
//
// The number of labels is bounded. The first series.MaxLabels sources since the start, and as many
// destinations, have their name in the label; all others share "other". See package webhookprom.
package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/webhookprom"
	"github.com/hookferry/analytics/webhook/webhookprom/series"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics is a webhook.Observer that counts deliveries with package webhookprom, and the requests and
// calls of clients. Handler reads all else at each scrape. A Metrics is safe for concurrent use.
type Metrics struct {
	*webhookprom.Metrics
	registry *prometheus.Registry

	served               *prometheus.CounterVec
	servedSeconds        prometheus.Histogram
	unknown, unavailable prometheus.Counter

	sources                               series.Labels
	accepted, rejected, limited, badTimes *prometheus.CounterVec // by source
}

// New returns Metrics with all counts at zero. version is the version of the program.
func New(version, goVersion string) *Metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	register := promauto.With(registry)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return register.NewCounterVec(prometheus.CounterOpts{Name: "hookferry_" + name, Help: help}, labels)
	}
	register.NewGauge(prometheus.GaugeOpts{
		Name:        "hookferry_build_info",
		Help:        "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": goVersion},
	}).Set(1)
	return &Metrics{
		Metrics:  webhookprom.New(),
		registry: registry,
		served:   counter("http_requests_total", "Requests of clients to the tracking API, by the status of the answer.", "code"),
		servedSeconds: register.NewHistogram(prometheus.HistogramOpts{
			Name:    "hookferry_http_request_duration_seconds",
			Help:    "Time of requests of clients, from the end of the header to the answer, the commit included.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 30},
		}),
		unknown:     counter("http_requests_unknown_key_total", "Requests with a write key that is not known.").WithLabelValues(),
		unavailable: counter("http_requests_unavailable_total", "Requests told to try again, by 503.").WithLabelValues(),
		accepted:    counter("calls_accepted_total", "Calls of clients taken.", "source"),
		rejected:    counter("calls_rejected_total", "Calls of clients that are wrong.", "source"),
		badTimes:    counter("calls_bad_time_total", "Calls of clients taken that have a time that could not be read, and so count as without it.", "source"),
		limited:     counter("http_requests_limited_total", "Requests answered by 429, over the rate of their source.", "source"),
	}
}

// source returns the label of a source. The first call for a label creates its counters at zero.
func (m *Metrics) source(name string) string {
	label, first := m.sources.Of(name)
	if first {
		m.accepted.WithLabelValues(label)
		m.rejected.WithLabelValues(label)
		m.badTimes.WithLabelValues(label)
		m.limited.WithLabelValues(label)
	}
	return label
}

// Answered counts a request of a client.
func (m *Metrics) Answered(a *collector.Answered) {
	code := strconv.Itoa(a.Status)
	if a.Status < 100 || a.Status > 599 {
		code = series.Other // so that there are few labels
	}
	m.served.WithLabelValues(code).Inc()
	m.servedSeconds.Observe(a.Took.Seconds())
	switch a.Status {
	case http.StatusUnauthorized:
		m.unknown.Inc()
	case http.StatusServiceUnavailable:
		m.unavailable.Inc()
	}
	if a.Source == "" {
		return
	}
	source := m.source(a.Source)
	m.accepted.WithLabelValues(source).Add(float64(a.Accepted))
	m.rejected.WithLabelValues(source).Add(float64(a.Rejected))
	m.badTimes.WithLabelValues(source).Add(float64(a.BadTimes))
	if a.Status == http.StatusTooManyRequests {
		m.limited.WithLabelValues(source).Inc()
	}
}

// State has the parts of the server that a scrape reads. Its functions are called concurrently.
type State struct {
	Forwarder *webhook.Forwarder
	Store     webhook.Store
	StoreSize func() (int64, error)   // of the store's files in bytes; nil for a store without files
	Settings  func() *config.Settings // returns the settings in use
	// LogLinesLeftOut returns how many lines of the log were left out since the start.
	LogLinesLeftOut func() uint64
	Logger          *slog.Logger // logs why a scrape is incomplete
}

// Handler returns the handler for /metrics. It must be called only once.
func (m *Metrics) Handler(s State) http.Handler {
	m.registry.MustRegister(m.Collector(s.Forwarder), &snapshot{s, m})
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		// While the store fails, people need the other metrics most.
		ErrorHandling: promhttp.ContinueOnError,
		ErrorLog:      slog.NewLogLogger(s.Logger.Handler(), slog.LevelWarn),
		Registry:      m.registry,
	})
}

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("hookferry_"+name, help, nil, nil)
}

var (
	storeDeliveries = desc("store_deliveries", "Deliveries in the store, of all destinations.")
	storeDead       = desc("store_dead_letters", "Dead letters in the store.")
	storeSize       = desc("store_size_bytes", "Bytes of the files of the store; not of a database.")

	reloaded = desc("config_last_reload_successful", "1 if the newest settings are in use, 0 if they are refused.")
	loaded   = desc("config_last_reload_success_timestamp_seconds", "When the settings in use were read.")

	linesLeftOut = desc("log_lines_left_out_total", "Lines left out of the log because standard error could not be written.")
)

// A snapshot is a prometheus.Collector that reads the State at each scrape.
type snapshot struct {
	State
	metrics *Metrics
}

// Describe sends nothing, because some metrics are missing while the store fails.
func (s *snapshot) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *snapshot) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n)
	}
	settings := s.Settings()
	inUse := 0.0
	if settings.Error == "" {
		inUse = 1
	}
	gauge(reloaded, inUse)
	gauge(loaded, float64(settings.Loaded.UnixMilli())/1000)
	ch <- prometheus.MustNewConstMetric(linesLeftOut, prometheus.CounterValue, float64(s.LogLinesLeftOut()))
	for i := range settings.Sources {
		s.metrics.source(settings.Sources[i].Name) // from the next scrape on, it has counters
	}

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // Prometheus itself waits 10 s
	defer cancel()
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
}
