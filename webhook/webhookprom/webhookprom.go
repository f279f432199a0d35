// Package webhookprom exports metrics of a webhook.Forwarder to Prometheus, in three lines:
//
//	metrics := webhookprom.New()
//	forwarder, err := webhook.New(webhook.Config{Store: store, Destinations: all, Observers: []webhook.Observer{metrics}})
//	prometheus.MustRegister(metrics.Collector(forwarder))
//
// The metrics are those in docs/metrics.md whose names begin with hookferry_deliveries_,
// hookferry_delivery_, hookferry_destinations_, hookferry_events_, hookferry_webhook_,
// hookferry_dead_letters_, hookferry_store_ and hookferry_observer_. The server uses this package, too. So its
// dashboard and its alerts also work for programs that use the library.
//
// The number of label values is bounded. The first series.MaxLabels destinations have a value of
// their own, and the others share one. At each scrape, destinations in trouble get a value in place of
// those that were in none for an hour: they have failed since the scrape before, or are held. Their counters
// begin at zero then. All other labels have fixed sets of values.
package webhookprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/webhookprom/series"
)

// Metrics is a webhook.Observer that counts what the statistics of a forwarder do not have: requests
// by outcome, and times in the buckets of Prometheus. It is safe for concurrent use. Each
// Forwarder needs a Metrics of its own.
type Metrics struct {
	destinations series.Labels
	requests     *prometheus.CounterVec
	seconds      *prometheus.HistogramVec
	age          prometheus.Histogram
}

var _ webhook.Observer = (*Metrics)(nil)

// New returns Metrics with all counts at zero.
func New() *Metrics {
	return &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hookferry_webhook_requests_total",
			Help: "Requests to endpoints, by what they led to; the reason is empty unless they failed.",
		}, []string{"destination", "outcome", "reason"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "hookferry_webhook_request_duration_seconds",
			Help:    "Time of requests to endpoints, from the dial to the end of the answer, those cut off left out.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"destination"}),
		age: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "hookferry_delivery_duration_seconds",
			Help:    "Time of deliveries from accepted to delivered, retries included.",
			Buckets: []float64{.005, .01, .025, .1, .5, 1, 5, 15, 60, 300, 1800, 3600, 7200, 14400},
		}),
	}
}

// Accepted implements webhook.Observer. It does nothing: the Collector reads the forwarder's count.
func (m *Metrics) Accepted(webhook.Accepted) {}

// Attempted implements webhook.Observer.
func (m *Metrics) Attempted(a webhook.Attempted) {
	destination, _ := m.destinations.Of(a.Destination)
	m.requests.WithLabelValues(destination, string(a.Outcome), string(a.Reason)).Inc()
	if a.Outcome != webhook.OutcomeCutOff {
		m.seconds.WithLabelValues(destination).Observe(a.Took.Seconds())
	}
}

// Ended implements webhook.Observer.
func (m *Metrics) Ended(e webhook.Record) {
	if e.Reason == "" {
		m.age.Observe(e.At.Sub(e.Delivery.Accepted).Seconds())
	}
}
