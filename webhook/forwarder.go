package webhook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/webhook/internal/schedule"
	"github.com/hookferry/analytics/webhook/internal/wire"
)

// A Forwarder accepts events, keeps them in a Store, and delivers them to
// their destinations' endpoints while Run runs. Its methods may be called
// concurrently.
type Forwarder struct {
	config   Config
	static   map[string]*compiled // not changed after New
	client   *wire.Client
	tls      *tlsConfigs
	schedule *schedule.Scheduler
	settler  *settler
	senders  sync.Pool      // of *sender
	workers  sync.WaitGroup // and requests that outlast their attempt
	news     chan struct{}  // capacity 1: has a value when there may be something to fetch
	count    counters
	total    account // of all destinations, for its latency
	accounts accounts
	observed *observed // nil without an Observer

	attempts      context.Context // parent of every request
	abortAttempts context.CancelCauseFunc

	syncing sync.Map           // keys of the audiences being synced
	open    context.Context    // done after Shutdown: nothing more is accepted
	close   context.CancelFunc // ends open
	running atomic.Bool
	moved   atomic.Int64  // when fetch last went on, in nanoseconds since 1970
	ended   chan struct{} // closed at the end of Run
}

// New returns a Forwarder, or a *ConfigError for what is wrong with c. It delivers
// nothing until Run is called.
func New(c Config) (*Forwarder, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	f := &Forwarder{
		config: c,
		static: make(map[string]*compiled, len(c.Destinations)),
		news:   make(chan struct{}, 1),
		ended:  make(chan struct{}),
	}
	g := &guard{allow: c.AllowAddresses, operator: c.TrustLookup, literals: make(map[netip.Addr]bool)}
	f.open, f.close = context.WithCancel(context.Background())
	f.attempts, f.abortAttempts = context.WithCancelCause(context.Background())
	f.client = newClient(&f.config, g, f.attempts)
	f.tls = newTLSConfigs(f.config.TLSClientConfig)
	for i := range c.Destinations {
		field := fmt.Sprintf("Destinations[%d]", i)
		t, err := f.compile(&c.Destinations[i])
		if err != nil {
			return nil, under(field, err)
		}
		id := c.Destinations[i].ID
		if f.static[id] != nil {
			return nil, refuse(field+".ID", "%q is given twice", id)
		}
		f.static[id] = &compiled{target: t}
		for _, e := range t.endpoints {
			g.trust(e.url)
		}
	}
	f.senders.New = func() any { return newSender(f) }
	f.schedule = f.newScheduler()
	if c.Observer != nil {
		f.observed = &observed{observer: c.Observer, logger: c.Logger}
	}
	f.settler = newSettler(c.Store, c.Logger, f.stored, f.schedule.Draining)
	return f, nil
}

// compile checks d and makes it ready for requests.
func (f *Forwarder) compile(d *Destination) (*target, error) {
	t, err := compile(d, f.config.ServiceName, f.config.MaxConcurrent)
	if err != nil {
		return nil, err
	}
	config := f.tls.of(t.tls)
	for _, e := range t.endpoints {
		e.wire = wire.NewTarget(e.url, e.header, config)
	}
	return t, nil
}

// Forward accepts calls for a destination and returns nil once they are
// durable in the queue: from then on each is delivered, or becomes a dead
// letter. All of them are accepted, or none and an error. A call is a message
// of the root package, or a JSON. Calls that switch the destination Webhooks
// off in their integrations are left out and counted, and so are those with a
// messageId that the queue has seen for the destination.
//
// It returns a *CallError, or an error of the root package, for a call that is
// not valid; ErrUnknownDestination, though not for what a Lookup does not know:
// deliveries wait for a destination to become known; ErrQueueFull; ErrClosed
// after Shutdown; or what failed in the store. Calls that the queue refused may
// be made again.
//
// Forward works before, after and without Run.
func (f *Forwarder) Forward(ctx context.Context, destination string, calls ...analytics.Message) error {
	events := make([]Event, len(calls))
	now := time.Now()
	for i, call := range calls {
		var err error
		if events[i], err = EventOf(call, Envelope{ReceivedAt: now}); err != nil {
			if len(calls) > 1 {
				return fmt.Errorf("call %d: %w", i, err)
			}
			return err
		}
	}
	return f.ForwardEvents(ctx, []string{destination}, events...)
}

// ForwardEvents is Forward for events that were made of calls before, and for
// several destinations: they are stored in one commit.
func (f *Forwarder) ForwardEvents(ctx context.Context, destinations []string, events ...Event) error {
	if err := f.checkDestinations(destinations); err != nil {
		return err
	}
	space := puts.Get().(*putSpace)
	ps := slices.Grow(space.puts[:0], len(destinations)*len(events))
	f.eachDelivery(ctx, destinations, events, func(d Delivery) { ps = append(ps, Put{Delivery: d}) })
	defer func() {
		// Neither stores nor observers keep what they were given.
		if clear(ps); cap(ps) <= maxSpace {
			space.puts = ps
			puts.Put(space)
		}
	}()
	if _, err := f.put(ctx, ps, space); err != nil {
		return err
	}
	f.count.off.Add(int64(len(events) - len(ps)/len(destinations)))
	return nil
}

// Deliveries returns what ForwardEvents would store, for a store that takes it in
// a transaction of the caller's own, as pgqueue.Queue.PutTx does. Stats and the
// Observer are not told of it. EventOf makes an event of a call.
//
// It returns ErrClosed after Shutdown, and ErrUnknownDestination for an id that
// Config.Destinations does not have. With a Config.Lookup any id of 1 to 255 bytes
// is taken: nothing is looked up here, and what is stored for a destination that
// the Lookup does not know waits until it does.
func (f *Forwarder) Deliveries(ctx context.Context, destinations []string, events ...Event) ([]Delivery, error) {
	if err := f.checkDestinations(destinations); err != nil {
		return nil, err
	}
	ds := make([]Delivery, 0, len(destinations)*len(events))
	f.eachDelivery(ctx, destinations, events, func(d Delivery) { ds = append(ds, d) })
	return ds, nil
}

// putSpace is space for the deliveries of a call.
type putSpace struct {
	puts    []Put
	results []Result
}

// puts holds space for calls, of type *putSpace, up to maxSpace deliveries.
var puts = sync.Pool{New: func() any { return new(putSpace) }}

const maxSpace = 4096

// eachDelivery calls add with the deliveries of events to destinations.
func (f *Forwarder) eachDelivery(ctx context.Context, destinations []string, events []Event, add func(Delivery)) {
	now := f.now().UTC()
	trace := f.trace(ctx)
	for i := range events {
		if e := &events[i]; !e.Off {
			id := e.deliveryID()
			for _, destination := range destinations {
				add(e.delivery(destination, id, now, trace))
			}
		}
	}
}

// deliveryID returns the ID of the event's deliveries; see Delivery.ID.
func (e *Event) deliveryID() string {
	if e.Source == "" {
		return e.ID
	}
	var space [binary.MaxVarintLen64 + 2*maxID]byte
	b := binary.AppendUvarint(space[:0], uint64(len(e.Source)))
	b = append(append(b, e.Source...), e.ID...)
	sum := sha256.Sum256(b)
	var id [24]byte
	base64.RawURLEncoding.Encode(id[:], sum[:18])
	return string(id[:])
}

// delivery returns the event's delivery to a destination. id is its deliveryID.
func (e *Event) delivery(destination, id string, now time.Time, trace Trace) Delivery {
	return Delivery{
		Destination: destination,
		ID:          id,
		MessageID:   e.ID,
		Source:      e.Source,
		User:        e.User,
		Event:       e.Name,
		Type:        e.Type,
		Body:        e.Body,
		Accepted:    e.Received,
		Due:         now,
		Trace:       trace,
	}
}

// checkDestinations checks that there are destinations, and that they are known,
// and returns ErrClosed after Shutdown.
func (f *Forwarder) checkDestinations(ids []string) error {
	if f.open.Err() != nil {
		return ErrClosed
	}
	if len(ids) == 0 {
		return fmt.Errorf("%w: none is given", ErrUnknownDestination)
	}
	for _, id := range ids {
		if err := f.known(id); err != nil {
			return err
		}
	}
	return nil
}

// known checks the id of a destination. What a Lookup knows is asked when a
// delivery's turn comes.
func (f *Forwarder) known(id string) error {
	if id == "" || len(id) > maxID {
		return fmt.Errorf("%w: an id of %d bytes, 1 to %d are allowed", ErrUnknownDestination, len(id), maxID)
	}
	if f.config.Lookup == nil && f.static[id] == nil {
		return fmt.Errorf("%w %q", ErrUnknownDestination, id)
	}
	return nil
}

// put stores ps, and returns how many of them had not been put before. The scheduler has
// what it can attempt at once kept by the store, and is told of the rest.
func (f *Forwarder) put(ctx context.Context, ps []Put, space *putSpace) (n int, err error) {
	if len(ps) == 0 {
		return 0, nil
	}
	for i := range ps {
		p := &ps[i]
		p.Keep = f.schedule.Reserve(p.Destination, int64(len(p.Body)))
	}
	space.results = append(space.results[:0], make([]Result, len(ps))...)
	results := space.results
	if err = f.config.Store.Put(ctx, ps, results); err != nil {
		for i := range ps {
			if ps[i].Keep {
				f.schedule.Release(ps[i].Destination, int64(len(ps[i].Body)))
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
			if !f.schedule.Start(itemOf(&d)) {
				f.settler.giveBack(&d)
			}
			continue
		case p.Keep:
			f.schedule.Release(p.Destination, int64(len(p.Body)))
		}
		if r.Stored {
			f.schedule.Note(p.Destination, p.Due, time.Time{})
		}
	}
	f.count.accepted.Add(int64(n))
	f.count.duplicates.Add(int64(len(ps) - n))
	if f.observed != nil {
		f.observed.accepted(accepted(ps, n))
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
func (f *Forwarder) wake() {
	select {
	case f.news <- struct{}{}:
	default:
	}
}

// stored is the settler's storedFunc. It counts the settlements, tells the scheduler of
// what waits again, and wakes Run if it waits for the store to catch up.
func (f *Forwarder) stored(ss []Settlement, of []*account, late bool) {
	now := time.Now()
	bytes := int64(0)
	for i, a := range of {
		s := &ss[i]
		bytes += int64(len(s.Delivery.Body))
		if a != nil {
			f.count.settled(s)
			a.settled(s, now)
		}
		if s.Verdict == Retry || s.Verdict == Return {
			if d := &s.Delivery; d.Expires.IsZero() {
				f.schedule.Note(d.Destination, d.Due, time.Time{})
			} else {
				f.schedule.Note(d.Destination, time.Time{}, d.Due)
			}
		}
	}
	f.schedule.Settled(bytes)
	if late {
		f.wake()
	}
	if f.observed != nil {
		f.observed.settled(ss)
	}
}

// Run delivers until ctx is done or Shutdown is called, and returns nil after
// a clean stop: nothing more is fetched, the attempts in flight end, each
// within Config.Timeout, what was fetched and not attempted goes back to the
// store, and all of it is stored. Run returns an error if the store was closed
// under it, or failed until the end. It is called once: another call returns an
// error at once. After Shutdown it returns nil.
func (f *Forwarder) Run(ctx context.Context) error {
	if !f.running.CompareAndSwap(false, true) {
		return errors.New("webhook: Run was called before")
	}
	defer close(f.ended)
	if f.open.Err() != nil {
		return nil // shut down before
	}
	defer f.client.Close()
	defer f.abortAttempts(nil)

	// Settling goes on until all else has ended, and somewhat longer than
	// ctx if the store fails.
	settling, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	drained := make(chan struct{})
	settled := make(chan error, 1)
	go func() { settled <- f.settler.run(settling, drained) }() // ends below

	fetching, stopFetching := context.WithCancel(ctx)
	defer stopFetching()
	defer context.AfterFunc(f.open, stopFetching)()
	var aside sync.WaitGroup
	aside.Go(func() { f.sweep(fetching) })
	if s, ok := f.config.Store.(Shared); ok {
		f.moved.Store(time.Now().UnixNano())
		s.Present(f.present)
	}
	err := f.firstPauses(fetching)
	if err == nil {
		aside.Go(func() { f.followPauses(fetching) })
		f.schedule.Open()
		err = f.fetch(fetching)
	}
	stopFetching()
	aside.Wait()

	// What is not being attempted is for others now, however long attempts take.
	f.returnAll(f.schedule.Close())
	if q, ok := f.config.Store.(Shared); ok {
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.config.Timeout)
		if err := q.Release(releasing); err != nil && !errors.Is(err, ErrClosed) {
			f.config.Logger.Warn("webhook: could not give deliveries back to the store; other processes get them when this one exits", "error", err)
		}
		cancel()
	}
	f.workers.Wait()
	last := time.AfterFunc(f.config.Timeout, giveUp)
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
func (f *Forwarder) present() (note []byte, alive bool) {
	if f.config.Note != nil {
		note = f.config.Note()
	}
	select {
	case <-f.ended:
		return note, true
	default:
	}
	still := time.Since(time.Unix(0, f.moved.Load()))
	return note, still < overdueTimeouts*f.config.Timeout+f.config.Poll
}

// Shutdown ends the forwarder: Forward accepts nothing more, and Run stops as
// when its context is done. It returns when Run has, or with the context's
// error when ctx is done before; then the attempts in flight are cut off, and
// may be repeated after the next start. It may be called again, and without
// Run.
func (f *Forwarder) Shutdown(ctx context.Context) error {
	f.close()
	if !f.running.Load() {
		return nil
	}
	select {
	case <-f.ended:
		return nil
	default:
	}
	select {
	case <-f.ended:
		return nil
	case <-ctx.Done():
		f.abortAttempts(errStopped)
		return ctx.Err()
	}
}
