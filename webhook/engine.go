package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook/internal/schedule"
	"github.com/hookferry/analytics/webhook/internal/wire"
)

// An engine stores deliveries and delivers them: everything of a Forwarder that has to do with
// more than one call.
type engine struct {
	config       Config
	destinations destinations
	client       *wire.Client
	schedule     *schedule.Scheduler
	settler      *settler
	pauses       pauses
	disabling    sync.Map       // ids of destinations that are being disabled
	senders      sync.Pool      // of *sender
	workers      sync.WaitGroup // and requests that outlast their attempt
	news         chan struct{}  // capacity 1: has a value when there may be something to fetch
	count        counters
	total        account // of all destinations, for its latency
	accounts     accounts
	observed     *observed // nil without an Observer

	attempts      context.Context // parent of every request
	abortAttempts context.CancelCauseFunc
	moved         atomic.Int64  // when the fetcher last went on, in nanoseconds since 1970
	ended         chan struct{} // closed at the end of run
}

// newEngine returns an engine, or a *ConfigError for what is wrong with c.Destinations.
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
		static: make(map[string]*compiled, len(c.Destinations)),
		tls:    newTLSConfigs(c.TLSClientConfig), filtering: c.LookupFilters,
	}
	if err := e.destinations.add(c.Destinations, g); err != nil {
		return nil, err
	}
	e.senders.New = func() any { return newSender(e) }
	e.schedule = e.newScheduler()
	if c.Observer != nil {
		e.observed = &observed{observer: c.Observer, logger: c.Logger}
	}
	e.settler = newSettler(c.Store, c.Logger, e.stored, e.schedule.Draining)
	e.pauses = pauses{store: c.Store, schedule: e.schedule, giveBack: e.returnAll, bury: c.BuryDisabled, logger: c.Logger}
	return e, nil
}

// newScheduler returns the scheduler of e.
func (e *engine) newScheduler() *schedule.Scheduler {
	c := &e.config
	return schedule.New(schedule.Config{
		Slots:   c.MaxInFlight,
		Bytes:   c.MaxBytesInFlight,
		Window:  c.Window,
		Limits:  e.destinations.limits,
		NewData: func(l *schedule.Lane) any { return &lane{Lane: l} },
		Start:   func() { e.workers.Go(newWorker(e).run) },
		Wake:    e.wake,
		Now:     c.Store.Now,
		Jitter:  jitter,
	})
}

// putSpace is space for the deliveries of a call.
type putSpace struct {
	puts    []Put
	results []Result
}

// puts holds space for calls, of type *putSpace, up to maxSpace deliveries.
var puts = sync.Pool{New: func() any { return new(putSpace) }}

const maxSpace = 4096

// eachDelivery calls add with the deliveries of events to destinations, and counts in routes
// what they leave out. It returns how many events are Off. The error is that of ctx, which may
// end while events are transformed.
func (en *engine) eachDelivery(ctx context.Context, destinations []string, routes []route, events []event.Event, add func(Put)) (off int, err error) {
	now := en.now().UTC()
	trace := en.trace(ctx)
	for i := range events {
		e := &events[i]
		if e.Off {
			off++
			continue
		}
		id := deliveryID(e)
		for j, destination := range destinations {
			if routes != nil && routes[j].Destination != nil && !routes[j].takes(e) {
				routes[j].filtered++
				continue
			}
			p := Put{Delivery: deliveryOf(e, destination, id, now, trace), NoDedup: e.NoDedup}
			if routes != nil && routes[j].Destination != nil && routes[j].Transform != nil {
				left := false
				p.Body, left, err = routes[j].transform(ctx, e)
				switch {
				case ctx.Err() != nil:
					return off, ctx.Err()
				case err != nil:
					routes[j].transformErrors++
					en.untransformed(&p.Delivery, err)
					continue
				case left:
					routes[j].filtered++
					continue
				}
			}
			add(p)
		}
	}
	return off, nil
}

// trace returns the Trace of a caller's context.
func (e *engine) trace(ctx context.Context) event.Trace {
	if e.config.Trace != nil {
		if parent, state := e.config.Trace(ctx); parent != "" {
			t, _ := event.ParseTrace(parent, state)
			return t
		}
	}
	return event.TraceOf(ctx)
}

// put stores ps, and returns how many of them had not been put before. The scheduler has
// what it can attempt at once kept by the store, and is told of the rest.
func (e *engine) put(ctx context.Context, ps []Put, space *putSpace) (n int, err error) {
	if len(ps) == 0 {
		return 0, nil
	}
	for i := range ps {
		p := &ps[i]
		p.Keep = e.schedule.Reserve(p.Destination, int64(len(p.Body)))
	}
	space.results = append(space.results[:0], make([]Result, len(ps))...)
	results := space.results
	if err = e.config.Store.Put(ctx, ps, results); err != nil {
		for i := range ps {
			if ps[i].Keep {
				e.schedule.Release(ps[i].Destination, int64(len(ps[i].Body)))
			}
		}
		return 0, err
	}
	for i := range ps {
		p, r := &ps[i], results[i]
		if r.Stored {
			n++
		}
		switch {
		case r.Claim != 0:
			d := p.Delivery
			d.Body, d.Claim = bytes.Clone(d.Body), r.Claim
			if !e.schedule.Start(itemOf(&d)) {
				e.settler.giveBack(&d)
			}
			continue
		case p.Keep:
			e.schedule.Release(p.Destination, int64(len(p.Body)))
		}
		if r.Stored {
			e.schedule.Note(p.Destination, p.Due, time.Time{})
		}
	}
	e.count.accepted.Add(int64(n))
	e.count.duplicates.Add(int64(len(ps) - n))
	if e.observed != nil {
		e.observed.accepted(accepted(ps, n))
	}
	return n, nil
}

// accepted is what the Observer is told of ps, n of which were stored.
func accepted(ps []Put, n int) Accepted {
	ds := make([]Delivery, len(ps))
	for i := range ps {
		ds[i] = ps[i].Delivery
	}
	return Accepted{Deliveries: ds, Stored: n}
}

// wake makes Run look for something to fetch.
func (e *engine) wake() {
	select {
	case e.news <- struct{}{}:
	default:
	}
}

// stored is the settler's storedFunc. It counts the settlements, tells the scheduler of
// what waits again, and wakes Run if it waits for the store to catch up.
func (e *engine) stored(ss []Settlement, of []*account, late bool) {
	now := time.Now()
	bytes := int64(0)
	for i, a := range of {
		s := &ss[i]
		bytes += int64(len(s.Delivery.Body))
		if a != nil {
			e.count.settled(s)
			a.settled(s, now)
		}
		if s.Verdict == Retry || s.Verdict == Return {
			if d := &s.Delivery; d.Expires.IsZero() {
				e.schedule.Note(d.Destination, d.Due, time.Time{})
			} else {
				e.schedule.Note(d.Destination, time.Time{}, d.Due)
			}
		}
	}
	e.schedule.Settled(bytes)
	if late {
		e.wake()
	}
	if e.observed != nil {
		e.observed.settled(ss)
	}
}

// run delivers until ctx or open is done; see Forwarder.Run.
func (e *engine) run(ctx, open context.Context) error {
	defer close(e.ended)
	defer e.client.Close()
	defer e.abortAttempts(nil)

	// The settler stops last. If the store fails, it goes on for up to Config.Timeout after
	// the last worker has ended, and then gives up.
	settling, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	drained := make(chan struct{})
	settled := make(chan error, 1)
	go func() { settled <- e.settler.run(settling, drained) }() // ends below

	fetching, stopFetching := context.WithCancel(ctx)
	defer stopFetching()
	defer context.AfterFunc(open, stopFetching)()
	var aside sync.WaitGroup
	aside.Go(func() { (&retention{config: &e.config, count: &e.count}).run(fetching) })
	if s, ok := e.config.Store.(Shared); ok {
		e.moved.Store(time.Now().UnixNano())
		s.Present(e.present)
	}
	err := e.pauses.first(fetching)
	if err == nil {
		aside.Go(func() { e.pauses.follow(fetching) })
		e.schedule.Open()
		err = (&fetcher{engine: e}).run(fetching)
	}
	stopFetching()
	aside.Wait()

	// What is not being attempted is for others now, however long attempts take.
	e.returnAll(e.schedule.Close())
	if q, ok := e.config.Store.(Shared); ok {
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.config.Timeout)
		if err := q.Release(releasing); err != nil && !errors.Is(err, ErrClosed) {
			e.config.Logger.Warn("webhook: could not give deliveries back to the store; other processes get them when this one exits", "error", err)
		}
		cancel()
	}
	e.workers.Wait()
	last := time.AfterFunc(e.config.Timeout, giveUp)
	defer last.Stop()
	close(drained)
	if serr := <-settled; serr != nil && err == nil {
		err = fmt.Errorf("webhook: storing the last outcomes: %w", serr)
	}
	return err
}

// present returns what this node shows to others, and whether it is alive: not if the
// scheduler has made no progress for three times the time limit of an attempt. Then others
// take over what it has claimed. Before Run and after it there is nothing to take over.
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

// returnAll gives claims back.
func (e *engine) returnAll(items []schedule.Item) {
	for i := range items {
		e.settler.giveBack(items[i].Value.(*Delivery))
	}
}

// requested counts a request that has ended and tells the observer of it.
func (e *engine) requested(l *lane, d *Delivery, r *result, due time.Time) {
	if !r.cut {
		e.accounts.of(l).took(r.attempt.Took)
		e.total.took(r.attempt.Took)
	}
	if e.observed != nil {
		e.observed.attempted(Attempted{
			Destination: l.ID, ID: d.ID, MessageID: d.MessageID, Source: d.Source, User: d.User, Event: d.Event, Type: d.Type, Trace: d.Trace,
			Attempt: r.attempt, Outcome: r.outcomeOf(), Due: due,
		})
	}
}

// now is the time by the clock of the store.
func (e *engine) now() time.Time { return e.config.Store.Now() }
