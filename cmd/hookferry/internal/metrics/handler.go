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
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// State is what is asked at each scrape. Its functions are called concurrently.
type State struct {
	// Forwarder and Store are those of the server. Required.
	Forwarder *webhook.Forwarder
	Store     webhook.Store
	// StoreSize returns the bytes that the store takes on disk. Nil if it is
	// in memory.
	StoreSize func() (int64, error)
	// Calls and Sources say what clients sent, Config which settings are in
	// use. Required.
	Calls   func() api.Calls
	Sources func() []api.Source
	Config  func() api.Config
	// Logger is told when a scrape could not be answered in whole. Required.
	Logger *slog.Logger
}

// scrapeTimeout bounds what the store is asked for a scrape; Prometheus gives
// up after ten seconds unless told otherwise.
const scrapeTimeout = 5 * time.Second

// Handler returns the handler for /metrics. It is called once.
func (m *Metrics) Handler(s State) http.Handler {
	m.registry.MustRegister(newSnapshot(s, m.destination))
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		// What can be told is told: a store that fails is when one looks.
		ErrorHandling: promhttp.ContinueOnError,
		ErrorLog:      slog.NewLogLogger(s.Logger.Handler(), slog.LevelWarn),
		Registry:      m.registry,
	})
}

// A snapshot is a collector that asks the State at each scrape.
type snapshot struct {
	state       State
	destination func(id string) (label string)
	sources     labels
	turn        chan struct{} // held by the scrape whose turn it is
	counters    struct{ retried, accepted, rejected, limited ledger }

	accepted, duplicate, off, filtered, retried, resent, forgotten, panics *prometheus.Desc
	inFlight, ready, waiting, oldest, held                                 *prometheus.Desc
	storeDeliveries, storeDead, storeSize                                  *prometheus.Desc
	callsAccepted, callsRejected, limited, unknown, unavailable            *prometheus.Desc
	reloaded, loaded                                                       *prometheus.Desc
}

func newSnapshot(state State, destination func(string) string) *snapshot {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("hookferry_"+name, help, labels, nil)
	}
	return &snapshot{
		state: state, destination: destination, turn: make(chan struct{}, 1),

		accepted:  desc("deliveries_accepted_total", "Deliveries stored: each event once for each of its destinations."),
		duplicate: desc("deliveries_duplicate_total", "Deliveries left out because the store had seen them."),
		off:       desc("events_off_total", "Events not forwarded because their integrations switch Webhooks off."),
		filtered:  desc("deliveries_filtered_total", "Deliveries not stored because the filter of their destination leaves them out."),
		retried:   desc("deliveries_retried_total", "Attempts that failed and are to be repeated.", "destination"),
		resent:    desc("webhook_requests_resent_total", "Requests made again because a kept connection ended under them."),
		forgotten: desc("dead_letters_forgotten_total", "Dead letters discarded over a bound: age or size.", "bound"),
		panics:    desc("observer_panics_total", "Failures of the server's own bookkeeping; a bug if not zero."),

		inFlight: desc("deliveries_in_flight", "Deliveries that are being attempted."),
		ready:    desc("deliveries_ready", "Deliveries in memory that wait for their attempt."),
		waiting:  desc("deliveries_waiting", "Deliveries in the store that are neither delivered nor dead.", "destination"),
		oldest:   desc("deliveries_oldest_due_timestamp_seconds", "Since when the first delivery that could be attempted waits; absent if none does.", "destination"),
		held:     desc("destinations_held", "Destinations whose deliveries wait although they are due.", "destination", "hold"),

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
		s.accepted, s.duplicate, s.off, s.filtered, s.retried, s.resent, s.forgotten, s.panics,
		s.inFlight, s.ready, s.waiting, s.oldest, s.held,
		s.storeDeliveries, s.storeDead, s.storeSize,
		s.callsAccepted, s.callsRejected, s.limited, s.unknown, s.unavailable,
		s.reloaded, s.loaded,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It does one scrape after the other.
func (s *snapshot) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		ch <- prometheus.NewInvalidMetric(s.accepted, errors.New("another scrape takes too long"))
		return
	}
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}

	stats := s.state.Forwarder.Stats()
	count(s.accepted, stats.Accepted)
	count(s.duplicate, stats.Duplicates)
	count(s.off, stats.Off)
	count(s.filtered, stats.Filtered)
	count(s.resent, stats.Resent)
	count(s.forgotten, stats.Forgotten.Age, "age")
	count(s.forgotten, stats.Forgotten.Size, "size")
	count(s.panics, stats.ObserverPanics)
	gauge(s.inFlight, float64(stats.InFlight))
	gauge(s.ready, float64(stats.Ready))

	s.collectDestinations(ctx, ch, count, gauge)

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

// collectDestinations adds up what the destinations with the same label have.
func (s *snapshot) collectDestinations(ctx context.Context, ch chan<- prometheus.Metric,
	count func(*prometheus.Desc, int64, ...string), gauge func(*prometheus.Desc, float64, ...string)) {
	all, err := s.state.Forwarder.DestinationStats(ctx)
	retried := make([]reading, len(all))
	for i, d := range all {
		retried[i] = reading{s.destination(d.Destination), d.Destination, d.Retried}
	}
	for label, n := range s.counters.retried.read(retried) {
		count(s.retried, n, label)
	}
	if err != nil { // of the store, of what waits
		ch <- prometheus.NewInvalidMetric(s.waiting, fmt.Errorf("counting by destination: %w", err))
		return
	}
	type hold struct{ destination, hold string }
	waiting, oldest, held := map[string]int{}, map[string]time.Time{}, map[hold]int{}
	for _, d := range all {
		label := s.destination(d.Destination)
		waiting[label] += d.Waiting
		if first := oldest[label]; !d.Oldest.IsZero() && (first.IsZero() || d.Oldest.Before(first)) {
			oldest[label] = d.Oldest
		}
		if d.Held != nil {
			held[hold{label, string(d.Held.Hold)}]++
		}
	}
	for label, n := range waiting {
		gauge(s.waiting, float64(n), label)
	}
	for label, t := range oldest {
		gauge(s.oldest, float64(t.UnixMilli())/1000, label)
	}
	for h, n := range held {
		gauge(s.held, float64(n), h.destination, h.hold)
	}
}

func (s *snapshot) collectSources(count func(*prometheus.Desc, int64, ...string)) {
	var accepted, rejected, limited []reading
	for _, source := range s.state.Sources() {
		label, _ := s.sources.of(source.Name)
		accepted = append(accepted, reading{label, source.Name, source.Accepted})
		rejected = append(rejected, reading{label, source.Name, source.Rejected})
		limited = append(limited, reading{label, source.Name, source.Limited})
	}
	c := &s.counters
	for _, of := range []struct {
		desc   *prometheus.Desc
		ledger *ledger
		now    []reading
	}{
		{s.callsAccepted, &c.accepted, accepted},
		{s.callsRejected, &c.rejected, rejected},
		{s.limited, &c.limited, limited},
	} {
		for label, n := range of.ledger.read(of.now) {
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
