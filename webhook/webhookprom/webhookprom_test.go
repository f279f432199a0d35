package webhookprom

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhookprom/series"
)

// The number of series is bounded, however many destinations there are. Requests to further
// destinations are counted as other.
func TestLabelsAreBounded(t *testing.T) {
	m := New()
	const all, twice = 3 * series.MaxLabels, 2
	var wg sync.WaitGroup
	for range twice {
		wg.Go(func() {
			for i := range all {
				m.Attempted(webhook.Attempted{Delivery: webhook.Delivery{Destination: fmt.Sprint("d", i)}, Outcome: webhook.OutcomeDelivered})
			}
		})
	}
	wg.Wait()
	if n := testutil.CollectAndCount(m.requests); n != series.MaxLabels+1 {
		t.Errorf("got %d series, want %d", n, series.MaxLabels+1)
	}
	if n := testutil.ToFloat64(m.requests.WithLabelValues(series.Other, string(webhook.OutcomeDelivered), "")); n != (all-series.MaxLabels)*twice {
		t.Errorf("counted %v as other, want %d", n, (all-series.MaxLabels)*twice)
	}
}

// failingStore is a store that cannot count by destination.
type failingStore struct{ webhook.Store }

func (failingStore) CountByDestination(context.Context, ...string) iter.Seq2[webhook.DestinationCounts, error] {
	return func(yield func(webhook.DestinationCounts, error) bool) {
		yield(webhook.DestinationCounts{}, errors.New("the disk is away"))
	}
}

// A scrape has all counts of the forwarder. If the store fails, the scrape lacks only the numbers
// of the store, and Gather returns the error.
func TestScrapeSurvivesFailingStore(t *testing.T) {
	for _, fails := range []bool{false, true} {
		var store webhook.Store = testkit.Must(memqueue.Open(memqueue.Config{}))
		if fails {
			store = failingStore{store}
		}
		m := New()
		f, err := webhook.New(webhook.Config{Store: store, Observers: []webhook.Observer{m}, Destinations: []webhook.Destination{
			{ID: "a", Endpoints: []webhook.Endpoint{{URL: "http://a.example/"}}},
			{ID: "b", Endpoints: []webhook.Endpoint{{URL: "http://b.example/"}}, Transform: func(_ context.Context, e event.Event) (event.Event, error) {
				return e, errors.New("no")
			}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"a", "b"} {
			if err := f.Forward(t.Context(), id, &analytics.Track{UserId: "u1", Event: "Paid"}); err != nil {
				t.Fatal(err)
			}
		}
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(m.Collector(f))
		all, err := registry.Gather()
		if fails != (err != nil) || fails && !strings.Contains(err.Error(), "the disk is away") {
			t.Errorf("store fails %v: Gather = %v, want the error of a failing store only", fails, err)
		}
		var got []string
		for _, family := range all {
			for _, metric := range family.GetMetric() {
				if n := metric.GetCounter().GetValue() + metric.GetGauge().GetValue(); n == 1 {
					got = append(got, family.GetName())
				}
			}
		}
		want := []string{"hookferry_deliveries_accepted_total", "hookferry_deliveries_untransformed_total"}
		if !fails {
			want = append(want, "hookferry_deliveries_waiting")
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("fails %v: metrics that are 1 (-want +got):\n%s", fails, diff)
		}
	}
}
