package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/webhook/internal/schedule"
	"github.com/hookferry/analytics/webhook/internal/wire"
)

// An engine is the part of a Forwarder behind its methods: it stores deliveries and delivers them.
//
//	put ──▶ store ──▶ fetcher ──▶ scheduler ──▶ workers ──▶ settler ──▶ store
type engine struct {
	config       Config
	destinations destinations
	client       *wire.Client
	schedule     *schedule.Scheduler
	settler      *settler
	readings     atomic.Uint64  // counts the calls of learnPauses
	senders      sync.Pool      // of *sender
	workers      sync.WaitGroup // the workers, and the requests that outlast their attempt
	news         chan struct{}  // capacity 1: has a value if the fetcher should look for deliveries
	total        account        // of all destinations
	accounts     accounts
	count        struct{ accepted, inTransaction, duplicates, off, discarded, forgottenAge, forgottenSize, observerPanics atomic.Int64 }

	attempts      context.Context // parent of every request
	abortAttempts context.CancelCauseFunc
	moved         atomic.Int64  // when the fetcher last made progress, in nanoseconds since 1970
	ended         chan struct{} // closed at the end of run
}

// newEngine returns an engine, or a *ConfigError for a destination that is not valid.
func newEngine(c Config) (*engine, error) {
	e := &engine{
		config: c,
		news:   make(chan struct{}, 1),
		ended:  make(chan struct{}),
	}
	e.attempts, e.abortAttempts = context.WithCancelCause(context.Background())
	g := &guard{allow: c.AllowAddresses, operator: c.TrustLookup, literals: make(map[netip.Addr]bool)}
	e.client = newClient(&e.config, g, e.attempts)
	e.destinations = destinations{
		config: &e.config, ctx: e.attempts,
		static: make(map[string]*target, len(c.Destinations)), filtering: c.LookupFilters,
	}
	if err := e.destinations.add(c.Destinations, g); err != nil {
		return nil, err
	}
	e.senders.New = func() any { return &sender{client: e.client} }
	e.schedule = schedule.New(schedule.Config{
		Slots:   c.MaxInFlight,
		Bytes:   c.MaxBytesInFlight,
		Window:  c.Window,
		NewData: func(l *schedule.Lane) any { return &lane{Lane: l} },
		Start:   func() { e.workers.Go((&worker{engine: e, sender: &sender{client: e.client}}).run) },
		Wake:    e.wake,
		Now:     c.Store.Now,
		Jitter:  jitter,
	})
	e.settler = &settler{
		store: c.Store, logger: c.Logger, news: make(chan struct{}, 1),
		stored: e.stored, wake: e.wake, calm: e.schedule.Draining,
	}
	return e, nil
}

// wake makes the fetcher look for deliveries to fetch. It does not block.
func (e *engine) wake() {
	select {
	case e.news <- struct{}{}:
	default:
	}
}

// stored is settler.stored. It counts the settlements ss, and tells the scheduler which deliveries
// wait again, and the observer which ones have ended.
func (e *engine) stored(ss []Settlement) {
	now := time.Now()
	bytes := int64(0)
	var a *account // of the previous settlement
	for i := range ss {
		s := &ss[i]
		d := &s.Delivery
		bytes += int64(len(d.Body))
		if s.Verdict != Return {
			if a == nil || a.id != d.Destination {
				a = e.accounts.of(d.Destination)
			}
			e.total.settled(s, now)
			a.settled(s, now)
		}
		switch waits := s.Verdict == Retry || s.Verdict == Return; {
		case waits && d.Expires.IsZero():
			e.schedule.Note(d.Destination, d.Due, time.Time{})
		case waits:
			e.schedule.Note(d.Destination, time.Time{}, d.Due)
		}
	}
	e.schedule.Settled(bytes)
	for i := range ss {
		if s := &ss[i]; s.Verdict == Done || s.Verdict == Bury {
			e.tell(func(o Observer) { o.Ended(Ended{Delivery: s.Delivery, Reason: s.Reason, At: now.UTC()}) })
		}
	}
}

// run delivers until one of the contexts ctx and open is done; see Forwarder.Run.
func (e *engine) run(ctx, open context.Context) error {
	defer close(e.ended)
	defer e.client.Close()
	defer e.abortAttempts(nil)

	// The settler stops last. If the store fails, it gives up Config.Timeout after the last worker.
	settling, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	drained := make(chan struct{})
	settled := make(chan error, 1)
	go func() { settled <- e.settler.run(settling, drained) }() // ends below

	fetching, stopFetching := context.WithCancel(ctx)
	defer stopFetching()
	defer context.AfterFunc(open, stopFetching)()
	var aside sync.WaitGroup
	aside.Go(func() { every(fetching, firstSweep, sweepEvery, e.keepBounds) })
	// While the store fails, the pauses stay as they are, and the fetcher logs the failure.
	aside.Go(func() {
		every(fetching, time.Second, time.Second, func(ctx context.Context) { _ = e.learnPauses(ctx) })
	})
	shared, isShared := e.config.Store.(Shared)
	if isShared {
		e.moved.Store(time.Now().UnixNano())
		shared.Present(e.present)
	}
	err := (&fetcher{engine: e}).run(fetching)
	stopFetching()
	aside.Wait()

	// Give back the deliveries that are not being attempted, so that other nodes can take them.
	e.returnAll(e.schedule.Close())
	if isShared {
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.config.Timeout)
		if err := shared.Release(releasing); err != nil && !errors.Is(err, ErrClosed) {
			e.config.Logger.Warn("webhook: could not give deliveries back to the store; other processes get them when this one exits", "error", err)
		}
		cancel()
	}
	e.workers.Wait()
	last := time.AfterFunc(e.config.Timeout, giveUp)
	defer last.Stop()
	close(drained)
	if failed := <-settled; failed != nil && err == nil {
		err = fmt.Errorf("webhook: storing the last outcomes: %w", failed)
	}
	return err
}

// every calls do after the time first, and then at intervals, until ctx is done.
func every(ctx context.Context, first, interval time.Duration, do func(context.Context)) {
	t := time.NewTimer(first)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			do(ctx)
			t.Reset(interval)
		case <-ctx.Done():
			return
		}
	}
}

// present is for Shared.Present. The node is not alive, and other nodes take over its claims, if
// the fetcher has made no progress for three times Config.Timeout plus Config.Poll. After Run has
// ended it counts as alive, because it has no claims left.
func (e *engine) present() (note []byte, alive bool) {
	if e.config.Note != nil {
		note = e.config.Note()
	}
	select {
	case <-e.ended:
		return note, true
	default:
	}
	still := time.Since(time.Unix(0, e.moved.Load()))
	return note, still < overdueTimeouts*e.config.Timeout+e.config.Poll
}

// returnAll returns claimed deliveries to the store, by way of the settler.
func (e *engine) returnAll(items []schedule.Item) {
	for i := range items {
		e.settler.giveBack(items[i].Value.(*Delivery))
	}
}

// requested counts a request that has ended, and tells the observer. due is when the delivery is
// attempted again, zero if it is not.
func (e *engine) requested(l *lane, d *Delivery, r *result, due time.Time) {
	if r.outcome != OutcomeCutOff {
		e.accounts.of(l.ID).requested(r.attempt.Took)
		e.total.requested(r.attempt.Took)
	}
	e.tell(func(o Observer) {
		o.Attempted(Attempted{
			Destination: l.ID, ID: d.ID, MessageID: d.MessageID, Source: d.Source, User: d.User, Event: d.Event, Type: d.Type, Trace: d.Trace,
			Attempt: r.attempt, Outcome: r.outcome, Due: due,
		})
	})
}

// now is the time by the clock of the store.
func (e *engine) now() time.Time { return e.config.Store.Now() }
