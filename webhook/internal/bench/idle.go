package bench

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
)

// IdleLatency measures the time from Forward to the arrival at the receiver for single
// events, while nothing else happens. The receiver is in this process. The end of the
// benchmark closes q.
func IdleLatency(b *testing.B, q webhook.Store) {
	arrived := make(chan time.Time, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived <- time.Now() }))
	defer receiver.Close()
	ended := NewEndings()
	l := StartLoad(b, webhook.Config{Store: q, Observers: []webhook.Observer{ended}}, ended, receiver.URL, 1, 16)
	var took []time.Duration
	event := make([]event.Event, 1)
	for b.Loop() {
		time.Sleep(2 * time.Millisecond) // idle
		start := time.Now()
		l.Next(event)
		if err := l.ForwardEvents(context.Background(), l.Destinations, event...); err != nil {
			b.Fatal(err)
		}
		took = append(took, (<-arrived).Sub(start))
	}
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2].Seconds()*1e3, "p50-ms")
	b.ReportMetric(took[len(took)*99/100].Seconds()*1e3, "p99-ms")
	b.ReportMetric(0, "ns/op")
}
