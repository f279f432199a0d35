// Package metrics counts what the server does, for Prometheus. docs/metrics.md lists the metrics.
//
// The number of labels is bounded. The first series.MaxLabels destinations since the start, and as
// many sources, have their name in the label. All others share the label "other". All other labels
// have fixed sets of values.
package metrics

import (
	"strconv"
	"time"

	"github.com/hookferry/analytics/webhook/webhookprom"
	"github.com/hookferry/analytics/webhook/webhookprom/series"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
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
