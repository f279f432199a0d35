package metrics

import (
	"strings"
	"testing"

	"github.com/hookferry/analytics/webhook"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics is the sketch in the documentation of package webhook.
type metrics struct {
	requests, dead *prometheus.CounterVec
	seconds        *prometheus.HistogramVec
}

var _ webhook.Observer = (*metrics)(nil)

func (m *metrics) Accepted(webhook.Accepted) {}

func (m *metrics) Attempted(a webhook.Attempted) {
	m.requests.WithLabelValues(a.Destination, string(a.Outcome), string(a.Reason)).Inc()
	m.seconds.WithLabelValues(a.Destination).Observe(a.Took.Seconds())
}

func (m *metrics) Ended(e webhook.Ended) {
	if e.Reason != "" {
		m.dead.WithLabelValues(e.Delivery.Destination, string(e.Reason)).Inc()
	}
}

// The sketch stands in this file, so it compiles.
func TestSketch(t *testing.T) {
	var sketch strings.Builder
	for line := range strings.Lines(readText(t, "webhook", "doc.go")) {
		if code, ok := strings.CutPrefix(line, "//\t"); ok && (sketch.Len() > 0 || strings.HasPrefix(code, "func (m *metrics)")) {
			sketch.WriteString(code)
		} else if line == "//\n" && sketch.Len() > 0 {
			sketch.WriteString("\n")
		} else if sketch.Len() > 0 {
			break
		}
	}
	file := readText(t, "cmd", "hookferry", "internal", "metrics", "sketch_test.go")
	if text := strings.TrimSpace(sketch.String()); text == "" || !strings.Contains(file, text) {
		t.Errorf("this file does not hold the sketch of webhook/doc.go:\n%s", text)
	}
}
