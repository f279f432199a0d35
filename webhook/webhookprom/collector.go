package webhookprom

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
	"github.com/hookferry/analytics/webhook/webhookprom/series"
)

// scrapeTimeout bounds the time of the store's answer to a scrape. By default Prometheus gives up a
// scrape after ten seconds.
const scrapeTimeout = 5 * time.Second

// Collector returns a collector of the metrics of m, and of the counts of f and its store. It reads
// these counts at each scrape. m must be the Observer of f. Call Collector only once, and register
// its result only once.
//
// If the store does not return its counts within five seconds, the scrape has an error, and the
// metrics that come from the store are missing. promhttp.HandlerOpts.ErrorHandling decides whether
// the other metrics are served then; promhttp.ContinueOnError serves them.
func (m *Metrics) Collector(f *webhook.Forwarder) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("hookferry_"+name, help, labels, nil)
	}
	return &collector{
		metrics: m, forwarder: f, turn: make(chan struct{}, 1), deadSoFar: map[webhook.Reason]*series.Ledger{},

		accepted:      desc("deliveries_accepted_total", "Deliveries stored: each event once for each of its destinations."),
		duplicate:     desc("deliveries_duplicate_total", "Deliveries left out because the store had seen them."),
		off:           desc("events_off_total", "Events not forwarded because their integrations switch Webhooks off."),
		filtered:      desc("deliveries_filtered_total", "Deliveries not stored because the filter of their destination leaves them out, or it takes nothing."),
		untransformed: desc("deliveries_untransformed_total", "Deliveries not stored because the Transform of their destination failed."),
		delivered:     desc("deliveries_delivered_total", "Deliveries that an endpoint took.", "destination"),
		dead:          desc("deliveries_dead_total", "Deliveries given up: dead letters.", "destination", "reason"),
		retried:       desc("deliveries_retried_total", "Attempts that failed and are to be repeated.", "destination"),
		resent:        desc("webhook_requests_resent_total", "Requests made again because a kept connection ended under them."),
		forgotten:     desc("dead_letters_forgotten_total", "Dead letters discarded over a bound: age or size.", "bound"),
		unkept:        desc("deliveries_unkept_total", "Deliveries that an endpoint took, but that the history could not keep."),
		panics:        desc("observer_panics_total", "Failures of the observer, such as of its bookkeeping; a bug if not zero."),

		inFlight: desc("deliveries_in_flight", "Deliveries that are being attempted."),
		ready:    desc("deliveries_ready", "Deliveries in memory that wait for their attempt."),
		waiting:  desc("deliveries_waiting", "Deliveries in the store that are neither delivered nor dead.", "destination"),
		oldest:   desc("deliveries_oldest_due_timestamp_seconds", "Since when the first delivery that could be attempted waits; absent if none does.", "destination"),
		failing:  desc("store_maintenance_failing_timestamp_seconds", "Since when a maintenance step of the store fails; absent unless it has failed for a minute.", "step"),
		held:     desc("destinations_held", "Destinations whose deliveries wait although they are due.", "destination", "hold"),
	}
}

// A collector reads the counts of the forwarder at each scrape.
type collector struct {
	metrics   *Metrics
	forwarder *webhook.Forwarder
	turn      chan struct{} // has a value while a scrape is in progress

	// The counters so far. Only the scrape whose turn it is uses them.
	deliveredSoFar, retriedSoFar series.Ledger
	deadSoFar                    map[webhook.Reason]*series.Ledger
	failed                       map[string]trouble // by destination, until the latest scrape
	taken                        []string           // the labels that the latest scrape has taken away

	accepted, duplicate, off, filtered, untransformed, delivered, retried, dead, resent, forgotten, unkept, panics *prometheus.Desc
	inFlight, ready, failing, waiting, oldest, held                                                                *prometheus.Desc
}

// counted returns the metrics that m counts as an observer.
func (m *Metrics) counted() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.seconds, m.age}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, of := range c.metrics.counted() {
		of.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{
		c.accepted, c.duplicate, c.off, c.filtered, c.untransformed, c.delivered, c.retried, c.dead, c.resent, c.forgotten, c.unkept, c.panics,
		c.inFlight, c.ready, c.failing, c.waiting, c.oldest, c.held,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. Only one scrape at a time reads the forwarder.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	for _, of := range c.metrics.counted() {
		of.Collect(ch)
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		ch <- prometheus.NewInvalidMetric(c.accepted, errors.New("another scrape takes too long"))
		return
	}
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}

	stats := c.forwarder.Stats()
	count(c.accepted, stats.Accepted)
	count(c.duplicate, stats.Duplicates)
	count(c.off, stats.Off)
	count(c.filtered, stats.Filtered)
	count(c.untransformed, stats.TransformErrors)
	count(c.resent, stats.Resent)
	count(c.forgotten, stats.Forgotten.Age, "age")
	count(c.forgotten, stats.Forgotten.Size, "size")
	count(c.unkept, stats.Unkept)
	count(c.panics, stats.ObserverPanics)
	gauge(c.inFlight, float64(stats.InFlight))
	gauge(c.ready, float64(stats.Ready))
	for step, since := range stats.Failing {
		gauge(c.failing, float64(since.Unix()), step)
	}

	all, err := c.forwarder.DestinationStats(ctx)
	c.prefer(all)
	// Below, the counts of destinations that share a label are added up.
	labels := make([]string, len(all))
	for i := range all {
		labels[i], _ = c.metrics.destinations.Of(all[i].Destination)
	}
	byDestination := func(ledger *series.Ledger, total int64, of func(*webhook.Counters) int64) map[string]int64 {
		readings := make([]series.Reading, len(all))
		for i := range all {
			readings[i] = series.Reading{Label: labels[i], Name: all[i].Destination, Count: of(&all[i].Counters)}
		}
		return ledger.Read(readings, total)
	}
	for label, n := range byDestination(&c.retriedSoFar, stats.Retried, func(s *webhook.Counters) int64 { return s.Retried }) {
		count(c.retried, n, label)
	}
	for label, n := range byDestination(&c.deliveredSoFar, stats.Delivered, func(s *webhook.Counters) int64 { return s.Delivered }) {
		count(c.delivered, n, label)
	}
	// Prometheus sees no increase in a series that begins above zero, so each label has all reasons.
	for _, r := range store.Reasons() {
		if c.deadSoFar[r] == nil {
			c.deadSoFar[r] = new(series.Ledger)
		}
		for label, n := range byDestination(c.deadSoFar[r], stats.Dead[r], func(s *webhook.Counters) int64 { return s.Dead[r] }) {
			count(c.dead, n, label, string(r))
		}
	}
	if err != nil { // the store could not count the waiting deliveries
		ch <- prometheus.NewInvalidMetric(c.waiting, fmt.Errorf("counting by destination: %w", err))
		return
	}
	type hold struct{ destination, hold string }
	waiting, oldest, held := map[string]int{}, map[string]time.Time{}, map[hold]int{}
	for i, d := range all {
		label := labels[i]
		waiting[label] += d.Waiting
		if first := oldest[label]; !d.Oldest.IsZero() && (first.IsZero() || d.Oldest.Before(first)) {
			oldest[label] = d.Oldest
		}
		if d.Held != nil {
			held[hold{label, string(d.Held.Kind)}]++
		}
	}
	for label, n := range waiting {
		gauge(c.waiting, float64(n), label)
	}
	for label, t := range oldest {
		gauge(c.oldest, float64(t.UnixMilli())/1000, label)
	}
	for h, n := range held {
		gauge(c.held, float64(n), h.destination, h.hold)
	}
}

// A trouble says how many deliveries and attempts of a destination have failed.
type trouble struct {
	destination   string
	dead, retried int64
}

// prefer gives labels to the destinations in trouble, and removes the series of destinations that
// lose their labels. In trouble are destinations with dead letters since the last scrape, those
// with failed attempts since then, and those that are held but not paused, in this order.
func (c *collector) prefer(all []webhook.DestinationStats) {
	var troubles []trouble
	before := c.failed
	c.failed = make(map[string]trouble)
	for i := range all {
		d := &all[i]
		now := trouble{d.Destination, 0, d.Retried}
		for _, n := range d.Dead {
			now.dead += n
		}
		was := before[d.Destination]
		since := trouble{d.Destination, now.dead - was.dead, now.retried - was.retried}
		if since.dead != 0 || since.retried != 0 || d.Held != nil && d.Held.Kind != webhook.HoldPaused {
			troubles = append(troubles, since)
		}
		if now.dead+now.retried > 0 {
			c.failed[d.Destination] = now
		}
	}
	slices.SortStableFunc(troubles, func(a, b trouble) int { return cmp.Or(cmp.Compare(b.dead, a.dead), cmp.Compare(b.retried, a.retried)) })
	var names []string
	for _, t := range troubles[:min(len(troubles), series.MaxLabels)] {
		names = append(names, t.destination)
	}
	m := c.metrics
	taken := m.destinations.Prefer(names, time.Now())
	// Attempts that found a label before it was taken away may have made a series of it again.
	for _, label := range append(c.taken, taken...) {
		if now, _ := m.destinations.Of(label); now == label {
			continue
		}
		m.requests.DeletePartialMatch(prometheus.Labels{"destination": label})
		m.seconds.DeleteLabelValues(label)
		c.deliveredSoFar.Forget(label)
		c.retriedSoFar.Forget(label)
		for _, ledger := range c.deadSoFar {
			ledger.Forget(label)
		}
	}
	c.taken = taken
}
