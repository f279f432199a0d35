// Package metrics counts what the server does, for Prometheus. The metrics are
// listed in docs/metrics.md.
//
// Labels are bounded. A destination and a source have their own name in the
// label for the first MaxLabels that are seen since the start; the others share
// the name "other". All other labels have closed lists of values.
package metrics

import (
	"strconv"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// MaxLabels is how many destinations, and how many sources, have a name of
// their own in labels.
const MaxLabels = 256

// other is the label of what is beyond MaxLabels.
const other = "other"

// The reasons and outcomes are those of the library. A destination's series of
// dead letters begin at zero, because an increase from nothing is no increase to
// Prometheus.
var reasons = []webhook.Reason{
	webhook.ReasonTimeout, webhook.ReasonDNS, webhook.ReasonConnection, webhook.ReasonProtocol,
	webhook.ReasonCertificate, webhook.ReasonAddress, webhook.ReasonAuthorize, webhook.ReasonRedirect,
	webhook.ReasonThrottled, webhook.ReasonRefused, webhook.ReasonServerError, webhook.ReasonExpired,
}

// Metrics is a webhook.Observer that counts deliveries, and counts the requests
// of clients. What else there is to know it asks at each scrape; see Handler. It
// is safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry

	destinations labels
	requests     *prometheus.CounterVec
	seconds      *prometheus.HistogramVec
	delivered    *prometheus.CounterVec
	dead         *prometheus.CounterVec
	age          prometheus.Histogram

	served        *prometheus.CounterVec
	servedSeconds prometheus.Histogram
}

var _ webhook.Observer = (*Metrics)(nil)

// New returns Metrics that have counted nothing. The version is that of the
// program.
func New(version, goVersion string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hookferry_webhook_requests_total",
			Help: "Requests to endpoints, by what they led to; the reason is empty unless they failed.",
		}, []string{"destination", "outcome", "reason"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "hookferry_webhook_request_duration_seconds",
			Help:    "Time of requests to endpoints, from the dial to the end of the answer, those cut off left out.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"destination"}),
		delivered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hookferry_deliveries_delivered_total",
			Help: "Deliveries that an endpoint took.",
		}, []string{"destination"}),
		dead: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hookferry_deliveries_dead_total",
			Help: "Deliveries given up: dead letters.",
		}, []string{"destination", "reason"}),
		age: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "hookferry_delivery_duration_seconds",
			Help:    "Time of deliveries from accepted to delivered, retries included.",
			Buckets: []float64{.005, .01, .025, .1, .5, 1, 5, 15, 60, 300, 1800, 3600, 7200, 14400},
		}),
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
	m.registry.MustRegister(m.requests, m.seconds, m.delivered, m.dead, m.age, m.served, m.servedSeconds, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// destination returns the label of a destination. Whoever meets a destination
// first, a scrape included, begins its counters at zero by it.
func (m *Metrics) destination(id string) string {
	label, first := m.destinations.of(id)
	if first {
		m.delivered.WithLabelValues(label)
		for _, r := range reasons {
			m.dead.WithLabelValues(label, string(r))
		}
	}
	return label
}

// Accepted implements webhook.Observer. What is accepted is in the forwarder's
// own counts, which Handler has.
func (m *Metrics) Accepted(webhook.Accepted) {}

// Attempted implements webhook.Observer.
func (m *Metrics) Attempted(a webhook.Attempted) {
	destination := m.destination(a.Destination)
	m.requests.WithLabelValues(destination, string(a.Outcome), string(a.Reason)).Inc()
	if a.Outcome != webhook.OutcomeCutOff {
		m.seconds.WithLabelValues(destination).Observe(a.Took.Seconds())
	}
}

// Ended implements webhook.Observer.
func (m *Metrics) Ended(e webhook.Ended) {
	destination := m.destination(e.Delivery.Destination)
	if e.Reason != "" {
		m.dead.WithLabelValues(destination, string(e.Reason)).Inc()
		return
	}
	m.delivered.WithLabelValues(destination).Inc()
	m.age.Observe(e.At.Sub(e.Delivery.Accepted).Seconds())
}

// Served counts a request of a client that was answered with a status after a
// time.
func (m *Metrics) Served(status int, took time.Duration) {
	m.served.WithLabelValues(code(status)).Inc()
	m.servedSeconds.Observe(took.Seconds())
}

// code returns the label of a status; those that HTTP does not have are one.
func code(status int) string {
	if status < 100 || status > 599 {
		return other
	}
	return strconv.Itoa(status)
}
