package webhook

import (
	"sync"
	"time"
)

// A recorder counts what happens to deliveries, logs it and tells the observers.
type recorder struct {
	config   *Config
	failures bool    // an observer is a FailureObserver
	total    account // of all destinations
	accounts accounts

	mu    sync.Mutex // guards stats
	stats Stats      // only the counts that total does not have
}

func (r *recorder) count(add func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	add(&r.stats)
}

// countFor calls add with the account of the destination, and with that of all destinations.
func (r *recorder) countFor(destination string, add func(*account)) {
	for _, a := range [...]*account{r.accounts.of(destination), &r.total} {
		a.mu.Lock()
		add(a)
		a.mu.Unlock()
	}
}

// requested counts a request that has ended, and tells the observers. batch and due are as in
// Attempted.
func (r *recorder) requested(d *Delivery, batch []*Delivery, res *result, due time.Time) {
	if res.outcome != OutcomeCutOff {
		r.countFor(d.Destination, func(a *account) {
			a.counts.Latency.Requests++
			a.latency.Add(time.Duration(res.attempt.Took))
		})
	}
	r.tell(func(o Observer) { o.Attempted(Attempted{*d, batch, res.attempt, res.outcome, due}) })
}

// failed tells the observers of a stage of a series of failures.
func (r *recorder) failed(f Failing) {
	r.tell(func(o Observer) {
		if o, ok := o.(FailureObserver); ok {
			o.Failing(f)
		}
	})
}

// tell calls call with each observer, and recovers a panic in it.
func (r *recorder) tell(call func(Observer)) {
	for _, o := range r.config.Observers {
		if err := noPanic("Observer", func() error { call(o); return nil }); err != nil {
			r.panicked(err)
		}
	}
}

// panicked counts a panic of an observer, and logs the first one.
func (r *recorder) panicked(err error) {
	var panics int64
	r.count(func(s *Stats) { s.ObserverPanics++; panics = s.ObserverPanics })
	if panics == 1 {
		r.config.Logger.Error("webhook: an Observer panicked; deliveries go on, and further panics are only counted", "error", err)
	}
}

// logUntransformed logs that d is not stored because Transform failed.
func (r *recorder) logUntransformed(d *Delivery, err error) {
	if log, unlogged := r.accounts.of(d.Destination).untransformed.failed(); log {
		r.config.Logger.Warn("webhook: Transform failed; this destination does not get the event",
			"destination", d.Destination, "source", d.Source, "id", d.MessageID, "error", clean(err.Error(), nil), "unlogged", unlogged)
	}
}
