package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/webhookprom/series"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// State is what a scrape reads. Its functions are called concurrently.
type State struct {
	// Forwarder and Store are those of the server. Required.
	Forwarder *webhook.Forwarder
	Store     webhook.Store
	// StoreSize returns the bytes that the store takes on disk. Nil for a store without files.
	StoreSize func() (int64, error)
	// Calls and Sources say what clients sent, Config which settings are in use. Required.
	Calls   func() api.Calls
	Sources func() []api.Source
	Config  func() api.Config
	// Logger logs why a scrape could not be answered in whole. Required.
	Logger *slog.Logger
}

// scrapeTimeout bounds the calls of the store for a scrape. Prometheus gives up after ten seconds by
// default.
const scrapeTimeout = 5 * time.Second

// Handler returns the handler for /metrics. It is called once.
func (m *Metrics) Handler(s State) http.Handler {
	m.registry.MustRegister(m.Collector(s.Forwarder), newSnapshot(s))
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		// While the store fails, people need the other metrics most.
		ErrorHandling: promhttp.ContinueOnError,
		ErrorLog:      slog.NewLogLogger(s.Logger.Handler(), slog.LevelWarn),
		Registry:      m.registry,
	})
}

// A snapshot is a collector that asks the State at each scrape.
type snapshot struct {
	state    State
	sources  series.Labels
	turn     chan struct{} // has a value while a scrape is in progress
	counters struct{ accepted, rejected, limited series.Ledger }

	storeDeliveries, storeDead, storeSize                       *prometheus.Desc
	callsAccepted, callsRejected, limited, unknown, unavailable *prometheus.Desc
	reloaded, loaded                                            *prometheus.Desc
}

func newSnapshot(state State) *snapshot {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("hookferry_"+name, help, labels, nil)
	}
	return &snapshot{
		state: state, turn: make(chan struct{}, 1),

		storeDeliveries: desc("store_deliveries", "Deliveries in the store, of all destinations."),
		storeDead:       desc("store_dead_letters", "Dead letters in the store."),
		storeSize:       desc("store_size_bytes", "Bytes of the files of the store; not of a database."),

		callsAccepted: desc("calls_accepted_total", "Calls of clients taken.", "source"),
		callsRejected: desc("calls_rejected_total", "Calls of clients that are wrong.", "source"),
		limited:       desc("http_requests_limited_total", "Requests answered by 429, over the rate of their source.", "source"),
		unknown:       desc("http_requests_unknown_key_total", "Requests with a write key that is not known."),
		unavailable:   desc("http_requests_unavailable_total", "Requests told to come back, by 503."),

		reloaded: desc("config_last_reload_successful", "1 if the newest settings are in use, 0 if they are refused."),
		loaded:   desc("config_last_reload_success_timestamp_seconds", "When the settings in use were read."),
	}
}

// Describe implements prometheus.Collector.
func (s *snapshot) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		s.storeDeliveries, s.storeDead, s.storeSize,
		s.callsAccepted, s.callsRejected, s.limited, s.unknown, s.unavailable,
		s.reloaded, s.loaded,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. One scrape runs at a time.
func (s *snapshot) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		ch <- prometheus.NewInvalidMetric(s.storeDeliveries, errors.New("another scrape takes too long"))
		return
	}
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}

	if c, err := s.state.Store.Count(ctx); err != nil {
		ch <- prometheus.NewInvalidMetric(s.storeDeliveries, fmt.Errorf("counting what is stored: %w", err))
	} else {
		gauge(s.storeDeliveries, float64(c.Waiting))
		gauge(s.storeDead, float64(c.Dead))
	}
	if s.state.StoreSize != nil {
		if n, err := s.state.StoreSize(); err != nil {
			ch <- prometheus.NewInvalidMetric(s.storeSize, err)
		} else {
			gauge(s.storeSize, float64(n))
		}
	}

	s.collectSources(count)
	calls := s.state.Calls()
	count(s.unknown, calls.Unknown)
	count(s.unavailable, calls.Failed)

	config := s.state.Config()
	gauge(s.reloaded, oneIf(config.Error == ""))
	gauge(s.loaded, float64(config.Loaded.UnixMilli())/1000)
}

func (s *snapshot) collectSources(count func(*prometheus.Desc, int64, ...string)) {
	var accepted, rejected, limited []series.Reading
	for _, source := range s.state.Sources() {
		label, _ := s.sources.Of(source.Name)
		accepted = append(accepted, series.Reading{Label: label, Name: source.Name, Count: source.Accepted})
		rejected = append(rejected, series.Reading{Label: label, Name: source.Name, Count: source.Rejected})
		limited = append(limited, series.Reading{Label: label, Name: source.Name, Count: source.Limited})
	}
	c := &s.counters
	for _, of := range []struct {
		desc   *prometheus.Desc
		ledger *series.Ledger
		now    []series.Reading
	}{
		{s.callsAccepted, &c.accepted, accepted},
		{s.callsRejected, &c.rejected, rejected},
		{s.limited, &c.limited, limited},
	} {
		for label, n := range of.ledger.Read(of.now) {
			count(of.desc, n, label)
		}
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
