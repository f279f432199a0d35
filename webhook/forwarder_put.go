package webhook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook/store"
)

// Forward accepts calls for a destination: messages of the root package, event.JSON or *event.Custom.
// It returns nil once they are durable in the store. From then on each is delivered, or becomes a dead letter.
// With an error it has accepted none of them. Without Run, deliveries wait for the next Run.
//
// Forward leaves out a call, and counts it in Stats, if
//
//   - the integrations of the call switch Webhooks off,
//   - the destination's Filter leaves it out,
//   - the destination's Transform fails for it,
//   - the Directory says ErrTakesNothing for the destination, or
//   - the store remembers its messageId for the destination.
//
// The error for a wrong call is a *event.CallError, or an error of the root package. Other errors
// are ErrUnknownDestination, ErrQueueFull, ErrClosed after Shutdown, and those of the store, after
// which the caller may repeat the call. With a Directory an unknown destination is no error: its
// deliveries wait until the Directory knows it.
func (f *Forwarder) Forward(ctx context.Context, destination string, calls ...event.Call) error {
	events, err := encode(calls)
	if err != nil {
		return err
	}
	return f.ForwardEvents(ctx, []string{destination}, events...)
}

// encode turns calls that arrive now into events.
func encode(calls []event.Call) ([]event.Event, error) {
	encoder, err := event.NewEncoder(event.Envelope{ReceivedAt: time.Now()})
	if err != nil {
		return nil, err
	}
	events := make([]event.Event, len(calls))
	for i, call := range calls {
		if events[i], err = encoder.Encode(call); err != nil {
			return nil, oneOf(len(calls), i, "call", err)
		}
	}
	return events, nil
}

// oneOf returns the error for number i of n calls or events, which it names if there are several.
func oneOf(n, i int, what string, err error) error {
	if n > 1 {
		return fmt.Errorf("%s %d: %w", what, i, err)
	}
	return err
}

// ForwardEvents is Forward for several destinations, and for events that the caller has made with
// package event, or by hand: these it checks with Event.Check. It stores all deliveries in one commit.
func (f *Forwarder) ForwardEvents(ctx context.Context, destinations []string, events ...event.Event) error {
	return f.forward(ctx, nil, destinations, events, f.put)
}

// ForwardTx is Forward in a transaction of the caller, a transactional outbox: the event is
// forwarded if, and only if, tx commits. With pgqueue, which has examples, tx is a pgx.Tx or a
// *sql.Tx.
//
// ForwardTx returns the errors of Forward, and ErrUnsupported if the store is not an Outbox. After
// an error the caller rolls the transaction back. Observer.Accepted is not called. Stats counts the
// deliveries in InTransaction, and as Accepted on the node that is the first to claim them.
//
// The Directory is asked while the transaction holds a connection, for up to Config.Timeout. It must
// not need another connection of the same pool; a TxDirectory does not.
func (f *Forwarder) ForwardTx(ctx context.Context, tx any, destination string, calls ...event.Call) error {
	events, err := encode(calls)
	if err != nil {
		return err
	}
	return f.ForwardEventsTx(ctx, tx, []string{destination}, events...)
}

// ForwardEventsTx is ForwardTx for several destinations, and for events as in ForwardEvents.
func (f *Forwarder) ForwardEventsTx(ctx context.Context, tx any, destinations []string, events ...event.Event) error {
	outbox, ok := f.config.Store.(store.Outbox)
	if !ok {
		return fmt.Errorf("webhook: ForwardTx: %w", ErrUnsupported)
	}
	return f.forward(ctx, tx, destinations, events, func(ctx context.Context, b *batch) (int, error) {
		stored, err := outbox.PutTx(ctx, tx, b.puts)
		if err == nil {
			f.recorder.count(func(s *Stats) {
				s.InTransaction += int64(stored)
				s.Duplicates += int64(len(b.puts) - stored)
			})
		}
		return stored, err
	})
}

// A batch holds the deliveries of one call, and the store's results for them.
type batch struct {
	puts    []store.Put
	results []store.Result
}

// batches is a pool of *batch, each with space for at most 4096 deliveries.
var batches = sync.Pool{New: func() any { return new(batch) }}

// forward passes a delivery of each event for each destination to queue. Unless tx is nil, the call is
// part of that transaction.
func (f *Forwarder) forward(ctx context.Context, tx any, destinations []string, events []event.Event, queue func(context.Context, *batch) (stored int, err error)) error {
	if f.open.Err() != nil {
		return ErrClosed
	}
	if len(destinations) == 0 {
		return fmt.Errorf("%w: none is given", ErrUnknownDestination)
	}
	for i := range events {
		if err := events[i].Check(); err != nil {
			return oneOf(len(events), i, "event", err)
		}
	}
	var array [8]route // saves an allocation for calls with few destinations
	routes := array[:0]
	for _, id := range destinations {
		r, err := f.directory.route(ctx, tx, id)
		if err != nil {
			return err
		}
		routes = append(routes, r)
	}
	b := batches.Get().(*batch)
	defer func() {
		// Stores and observers keep no reference to b, so another call can use it.
		if clear(b.puts); cap(b.puts) <= 4096 {
			b.puts = b.puts[:0]
			batches.Put(b)
		}
	}()
	b.puts = slices.Grow(b.puts, len(destinations)*len(events))
	off, err := f.appendDeliveries(ctx, b, routes, events)
	if err == nil && len(b.puts) > 0 {
		_, err = queue(ctx, b)
	}
	if err != nil {
		return err
	}
	f.recorder.count(func(s *Stats) { s.Off += int64(off) })
	for i := range routes {
		r := &routes[i]
		if r.filtered+r.transformErrors > 0 {
			f.recorder.countFor(r.id, func(a *account) {
				a.counts.Filtered += int64(r.filtered)
				a.counts.TransformErrors += int64(r.transformErrors)
			})
		}
	}
	return nil
}

// appendDeliveries appends the deliveries of events to b. It counts in each route the events that
// it leaves out, and returns how many events are Off. It fails only if ctx ends during a Transform.
func (f *Forwarder) appendDeliveries(ctx context.Context, b *batch, routes []route, events []event.Event) (off int, err error) {
	now := f.config.now().UTC()
	trace := event.TraceOf(ctx)
	for i := range events {
		e := &events[i]
		if e.Off {
			off++
			continue
		}
		id := deliveryID(e)
		for j := range routes {
			r := &routes[j]
			if r.takesNothing {
				r.filtered++
				continue
			}
			p := store.Put{NoDedup: e.NoDedup, Delivery: Delivery{
				Destination: r.id, ID: id, MessageID: e.ID, Source: e.Source, User: e.User, Event: e.Name,
				Tenant: r.tenant, Key: e.Key, Type: e.Type, Body: e.Body, Accepted: e.Received, Due: now, Trace: trace,
			}}
			if r.settings != nil && !e.Unfiltered {
				var left bool
				p.Body, left, err = r.settings.transform(ctx, e)
				switch {
				case ctx.Err() != nil:
					return off, ctx.Err()
				case err != nil:
					r.transformErrors++
					f.recorder.logUntransformed(&p.Delivery, err)
					continue
				case left:
					r.filtered++
					continue
				}
			}
			b.puts = append(b.puts, p)
		}
	}
	return off, nil
}

// put stores the deliveries of b, and returns how many are new. It asks the store to claim those
// that the scheduler can attempt at once, and starts them. It notes when the others are due.
func (f *Forwarder) put(ctx context.Context, b *batch) (stored int, err error) {
	ps := b.puts
	for i := range ps {
		p := &ps[i]
		noRoom := i > 0 && ps[i-1].Destination == p.Destination && !ps[i-1].Keep
		p.Keep = !noRoom && f.schedule.Reserve(p.Destination, int64(len(p.Body)))
	}
	b.results = append(b.results[:0], make([]store.Result, len(ps))...)
	if err = f.config.Store.Put(ctx, ps, b.results); err != nil {
		clear(b.results) // after an error nothing is claimed, and nothing counts as stored
	}
	for i := range ps {
		p, r := &ps[i], b.results[i]
		if r.Stored {
			stored++
		}
		if r.Claim != 0 {
			d := p.Delivery
			d.Body, d.Claim = bytes.Clone(d.Body), r.Claim
			if !f.schedule.Start(itemOf(&d)) {
				f.settler.giveBack(&d)
			}
			continue
		}
		if p.Keep {
			f.schedule.Start(item{Destination: p.Destination, Size: int64(len(p.Body))})
		}
		if r.Stored || err != nil && !errors.Is(err, ErrQueueFull) { // an error may come too late
			f.schedule.Note(p.Destination, p.Due, time.Time{})
		}
	}
	if err != nil {
		return 0, err
	}
	f.recorder.count(func(s *Stats) {
		s.Accepted += int64(stored)
		s.Duplicates += int64(len(ps) - stored)
	})
	f.recorder.tell(func(o Observer) { o.Accepted(Accepted{ps, b.results, stored}) })
	return stored, nil
}

// deliveryID returns the ID that all deliveries of the event have; see Delivery.ID.
func deliveryID(e *event.Event) string {
	if e.Source == "" {
		return e.ID
	}
	var array [binary.MaxVarintLen64 + 2*maxID]byte
	b := binary.AppendUvarint(array[:0], uint64(len(e.Source)))
	b = append(append(b, e.Source...), e.ID...)
	sum := sha256.Sum256(b)
	var id [24]byte
	base64.RawURLEncoding.Encode(id[:], sum[:18])
	return string(id[:])
}
