package webhook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/webhook/internal/schedule"
	"github.com/hookferry/analytics/webhook/store"
)

// overdueTimeouts is how many times the limit of an attempt a delivery may be claimed without being settled,
// which only a fault causes. Then it goes back to the store.
const overdueTimeouts = 3

// A fetcher claims deliveries in the store for the scheduler.
type fetcher struct {
	config   *Config
	pauses   *pauses
	schedule *scheduler
	settler  *settler
	workers  *sync.WaitGroup // counts the goroutines of hasten, too
	news     store.Signal    // set if there may be deliveries to fetch
	moved    atomic.Int64    // when the fetcher last made progress, in nanoseconds since 1970

	// Only the goroutine of run uses these fields.
	started bool // the pauses and all heads of the store were read
	changed bool // Store.Heads may report changes
	clock   clockWatch
	buf     []Delivery // space for the next fetch: the part of an array that no lane has pointers into
	backoff storeBackoff
}

// run supplies the scheduler until ctx is done. It fails only if the store was closed.
func (r *fetcher) run(ctx context.Context) error {
	timer := time.NewTimer(r.config.Poll)
	defer timer.Stop()
	poll := time.NewTicker(r.config.Poll)
	defer poll.Stop()
	overdue := time.NewTicker(r.config.Timeout)
	defer overdue.Stop()
	for ctx.Err() == nil {
		r.moved.Store(time.Now().UnixNano())
		pause, err := r.fetch(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrClosed):
			return fmt.Errorf("webhook: fetching: %w", err)
		case err != nil:
			if r.backoff.failed() {
				r.config.Logger.Error("webhook: the store fails; nothing is delivered until it works again", "error", err)
			}
			select {
			case <-time.After(r.backoff.pause):
			case <-ctx.Done():
			}
		}
		timer.Reset(pause)
		polled, late := false, false
		select {
		case <-r.news:
		case <-r.config.Store.Changed():
			r.changed = true
		case <-timer.C:
		case <-poll.C:
			polled = true
		case <-overdue.C:
			late = true
		case <-ctx.Done():
		}
		// One fetch is enough for all that has happened. The order does not depend on the select.
		has(r.news)
		r.changed = has(r.config.Store.Changed()) || r.changed
		if has(poll.C) || polled {
			r.changed = true
			_ = r.pauses.learn(ctx) // after an error the pauses stay as they are
			if r.clock.look(r.config.now()) {
				r.workers.Go(func() { r.hasten(ctx) })
			}
		}
		if has(overdue.C) || late {
			r.returnOverdue()
		}
	}
	return nil
}

// drain fetches what waits for full batches, as far as slots are free, so that it is attempted before
// the forwarder ends. What it cannot fetch stays in the store.
func (r *fetcher) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.config.Timeout)
	defer cancel()
	r.settler.returnAll(r.schedule.Drain())
	if plan, maxBytes, _ := r.schedule.Plan(nil); len(plan) > 0 {
		if err := r.take(ctx, plan, maxBytes); err != nil && !errors.Is(err, ErrClosed) {
			r.config.Logger.Warn("webhook: could not fetch what waits for full batches; it is delivered after the next start", "error", err)
		}
	}
	r.schedule.Close()
}

// has takes a value from c, if there is one.
func has[T any](c <-chan T) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// returnOverdue returns deliveries that are claimed for too long to the store.
func (r *fetcher) returnOverdue() {
	hanging, ready := r.schedule.Overdue(func(l *lane) time.Duration {
		timeout := r.config.Timeout
		if t := l.State.target.Load(); t != nil {
			timeout = max(timeout, t.timeout)
		}
		return overdueTimeouts * timeout
	})
	if n := len(hanging) + len(ready); n > 0 {
		r.config.Logger.Error("webhook: attempts hang beyond their time limit; these deliveries go back to the store", "count", n)
	}
	for _, it := range hanging {
		// The attempt still uses the delivery, and the scheduler counts its bytes.
		d := Delivery{Destination: it.Destination, Due: it.Due, Claim: it.Claim}
		if it.Retry {
			d.Expires = it.Due // only to say that it is a retry
		}
		r.settler.giveBack(&d)
	}
	r.settler.returnAll(ready)
}

// fetch claims what the scheduler has room for. pause is how long the next call may wait.
func (r *fetcher) fetch(ctx context.Context) (pause time.Duration, err error) {
	if !r.started {
		// The scheduler must know the pauses before anything is attempted.
		if err := r.pauses.learn(ctx); err != nil {
			return 0, err
		}
		r.schedule.Open()
	}
	if !r.started || r.changed {
		if err := r.readHeads(ctx); err != nil {
			return 0, err
		}
	}
	if r.settler.behind(8 * r.config.MaxInFlight) {
		return r.config.Poll, nil // the settler wakes the fetcher
	}
	plan, maxBytes, again := r.schedule.Plan(nil)
	if len(plan) > 0 {
		return 0, r.take(ctx, plan, maxBytes)
	}
	pause = r.config.Poll
	if !again.IsZero() {
		pause = min(pause, max(again.Sub(r.config.now()), 0))
	}
	return pause, nil
}

// readHeads tells the scheduler when the first deliveries of each destination in the store are due:
// at first of all destinations, and then of those that Store.Heads reports as changed.
func (r *fetcher) readHeads(ctx context.Context) error {
	r.changed = false
	// Fresh deliveries that are due after late were stored before the clock was set back.
	late, back, looks := r.config.now().Add(setBack), false, maxLooks
	for h, err := range r.config.Store.Heads(ctx, !r.started) {
		if err != nil {
			r.changed = true
			return err
		}
		r.schedule.Note(h.Destination, h.Fresh, h.Retry)
		back = back || h.Fresh.After(late)
		if !back && !r.started && looks > 0 && h.Retry.After(late.Add(r.config.Window)) {
			looks--
			back = r.attemptedAfter(ctx, h.Destination, late)
		}
	}
	if back && !r.started {
		r.workers.Go(func() { r.hasten(ctx) })
	}
	r.started = true
	r.backoff.over(r.config.Logger)
	return nil
}

// maxLooks bounds the destinations that readHeads looks at because their retries wait for long.
const maxLooks = 100

// attemptedAfter reports whether a delivery to this destination was attempted after t. It looks at
// the oldest ones that wait. A retry that waits for days does not show that the clock was set back,
// but one whose last attempt is yet to come does.
func (r *fetcher) attemptedAfter(ctx context.Context, destination string, t time.Time) bool {
	q := Query{Destinations: []string{destination}, States: []State{StateWaiting}, Oldest: true}
	page, _, _ := r.config.Store.List(ctx, q, 0, 16)
	return slices.ContainsFunc(page, func(d Record) bool {
		n := len(d.Attempts)
		return n > 0 && d.Attempts[n-1].At.After(t)
	})
}

// take fetches the deliveries of a plan and hands them to the scheduler.
func (r *fetcher) take(ctx context.Context, plan []schedule.Want[laneState, *Delivery], maxBytes int64) error {
	wants := make([]store.Want, len(plan))
	for i, p := range plan {
		wants[i] = store.Want{Destination: p.Lane.ID, Retries: p.Retries, Max: p.Max}
	}
	if cap(r.buf) < 32 {
		r.buf = make([]Delivery, 0, 256)
	}
	ds, err := r.config.Store.Fetch(ctx, wants, maxBytes, r.buf)
	if err != nil {
		r.schedule.Fetched(plan, nil)
		return err
	}
	r.backoff.over(r.config.Logger)
	items := make([]item, len(ds))
	for i := range ds {
		items[i] = itemOf(&ds[i])
	}
	for i := range plan {
		plan[i].Next = wants[i].Next
	}
	back, lapsed := r.schedule.Fetched(plan, items)
	r.settler.returnAll(back)
	now := r.config.now()
	for i := range lapsed {
		d := lapsed[i].Value
		r.settler.add(bury(d, ReasonExpired, now))
		*d = Delivery{}
	}
	r.buf = ds[len(ds):len(ds):cap(ds)]
	return nil
}

// hasten makes all waiting deliveries due now. It does so again a minute later, for those that were
// claimed at first.
func (r *fetcher) hasten(ctx context.Context) {
	total := 0
	pass := func() error {
		for c, err := range r.config.Store.CountByDestination(ctx) {
			n := 0
			if err == nil {
				n, err = hastenWaiting(ctx, r.config.Store, c.Destination)
			}
			if total += n; err != nil {
				return err
			}
		}
		return nil
	}
	for passes := 0; passes < 2; {
		wait := longestPause
		if pass() == nil {
			passes++
			wait = time.Minute
		}
		if passes == 1 && total > 0 {
			r.config.Logger.Warn("webhook: the clock was set back; deliveries that would have waited until it is right again are due now", "count", total)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// present is for Shared.Present. The node is not alive, and other nodes take over its claims, if
// the fetcher has made no progress for three times Config.Timeout, beyond the times that it waits.
// After Run has ended it counts as alive, because it has no claims left.
func (r *fetcher) present() (note []byte, alive bool) {
	if r.config.Note != nil {
		note = r.config.Note()
	}
	still := time.Since(time.Unix(0, r.moved.Load()))
	return note, still < overdueTimeouts*r.config.Timeout+r.config.Poll+longestPause
}
