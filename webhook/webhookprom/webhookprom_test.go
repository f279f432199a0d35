package webhookprom

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
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

// gone is a Directory that does not know its destinations, or says that they take nothing.
type gone struct{ atomic.Bool }

func (g *gone) Destination(context.Context, string) (webhook.Destination, error) {
	if g.Load() {
		return webhook.Destination{}, webhook.ErrTakesNothing
	}
	return webhook.Destination{}, webhook.ErrUnknownDestination
}

func (*gone) Destinations(context.Context, string) ([]webhook.Destination, error) { return nil, nil }

// Of 100,000 destinations, a scrape names those in trouble, although others came before. An hour later
// they make room for others, and the numbers of labels and of dead letters stay right.
func TestDestinationsInTroubleAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, directory := New(), new(gone)
		for i := range 100_000 {
			m.Attempted(webhook.Attempted{Delivery: webhook.Delivery{Destination: fmt.Sprint("d", i)}, Outcome: webhook.OutcomeDelivered})
		}
		f := testkit.Must(webhook.New(webhook.Config{
			Store: testkit.Must(memqueue.Open(memqueue.Config{})), Observers: []webhook.Observer{m}, Directory: directory,
		}))
		ran := make(chan error, 1)
		go func() { ran <- f.Run(t.Context()) }() // ends below
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(m.Collector(f))
		// bury makes a dead letter for each destination, and returns all of a scrape by destination.
		bury := func(names ...string) map[string]float64 {
			directory.Store(false)
			f.Recheck("", names...)
			if err := f.ForwardEvents(t.Context(), names, testkit.Must(new(event.Encoder).Encode(&event.Custom{Type: "tested"}))); err != nil {
				t.Fatal(err)
			}
			directory.Store(true)
			f.Recheck("", names...)
			time.Sleep(time.Minute)
			synctest.Wait()
			dead := map[string]float64{}
			for _, family := range testkit.Must(registry.Gather()) {
				for _, metric := range family.GetMetric() {
					labels := map[string]string{}
					for _, l := range metric.GetLabel() {
						labels[l.GetName()] = l.GetValue()
					}
					if family.GetName() == "hookferry_deliveries_dead_total" && labels["reason"] == string(webhook.ReasonNoEndpoint) {
						dead[labels["destination"]] = metric.GetCounter().GetValue()
					}
				}
			}
			return dead
		}
		numbered := func(name string, n int) (names []string) {
			for i := range n {
				names = append(names, fmt.Sprint(name, i))
			}
			return names
		}
		first := bury(numbered("gone", 200)...)
		for _, name := range numbered("gone", 200) {
			if first[name] != 1 {
				t.Fatalf("the scrape has %v dead letters of %s, want 1", first[name], name)
			}
		}
		if n := testutil.CollectAndCount(m.requests); n != series.MaxLabels-200+1 {
			t.Errorf("%d series of requests are left, want %d", n, series.MaxLabels-200+1)
		}
		if all := bury(numbered("more", 200)...); all[series.Other] != 200-56 || all["gone7"] != 1 || len(all) != series.MaxLabels+1 {
			t.Errorf("within the hour, the scrape has %v of %d labels, and %v of others, want %d", all["gone7"], len(all), all[series.Other], 200-56)
		}
		time.Sleep(time.Hour)
		if all := bury(numbered("late", 300)...); all["late255"] != 1 || all["gone7"] != 0 || all[series.Other] != 200-56+300-256 || len(all) != series.MaxLabels+1 {
			t.Errorf("after an hour, the scrape has %v and %v of %d labels, and %v of others", all["late255"], all["gone7"], len(all), all[series.Other])
		}
		if err := errors.Join(f.Shutdown(t.Context()), <-ran); err != nil {
			t.Error(err)
		}
	})
}

// failingStore is a store that cannot count by destination.
type failingStore struct{ webhook.Store }

func (failingStore) CountByDestination(context.Context, ...string) iter.Seq2[store.DestinationCounts, error] {
	return func(yield func(store.DestinationCounts, error) bool) {
		yield(store.DestinationCounts{}, errors.New("the disk is away"))
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
