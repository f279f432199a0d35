package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
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
			return nil, oneOf(len(calls), i, err)
		}
	}
	return events, nil
}

// oneOf returns the error for the event with the index i of n, which it names, from 1, if there are
// several.
func oneOf(n, i int, err error) error {
	if n > 1 {
		return fmt.Errorf("event %d of %d: %w", i+1, n, err)
	}
	return err
}

// Send forwards calls to the destinations of a tenant: to each whose Filter takes the call. All
// deliveries are stored in one commit. If a tenant has no destination, or is not known, nothing is
// stored, and it is no error. Send returns what became of each call, and the errors of Forward and of
// the Directory, and no results with an error. ErrTooLarge says that there were more than 4,096
// deliveries, one for each call and destination.
func (f *Forwarder) Send(ctx context.Context, tenant string, calls ...event.Call) ([]Sent, error) {
	events, err := encode(calls)
	if err != nil {
		return nil, err
	}
	return f.send(ctx, nil, tenant, events, f.put)
}

// SendTx is Send in a transaction of the caller, as ForwardTx is Forward. All calls are stored by one
// statement.
func (f *Forwarder) SendTx(ctx context.Context, tx any, tenant string, calls ...event.Call) ([]Sent, error) {
	outbox, err := f.outbox("SendTx")
	if err != nil {
		return nil, err
	}
	events, err := encode(calls)
	if err != nil {
		return nil, err
	}
	return f.send(ctx, tx, tenant, events, func(ctx context.Context, b *batch) (int, error) { return f.putTx(ctx, outbox, tx, b) })
}

// Sent says what became of a call of Send: for how many destinations of the tenant it is stored, is
// left out because the store remembers its id, and is left out by a Filter or a Transform, or because
// the Transform failed. If all are zero, the tenant has no destination, or the integrations of the call
// switch Webhooks off.
type Sent struct{ Stored, Duplicates, Filtered int }

// maxFanOut bounds the deliveries of one call of Send: its calls, times the destinations of the tenant.
const maxFanOut = 4096

// send passes a delivery of each event for each destination of a tenant to queue.
func (f *Forwarder) send(ctx context.Context, tx any, tenant string, events []event.Event, queue queue) ([]Sent, error) {
	if err := f.takes(events); err != nil {
		return nil, err
	}
	if tenant == "" || len(tenant) > maxID {
		return nil, fmt.Errorf("webhook: the tenant has %d bytes, 1 to %d are allowed", len(tenant), maxID)
	}
	destinations, err := f.directory.of(ctx, tx, tenant)
	if err != nil {
		return nil, err
	}
	if n := len(destinations) * len(events); n > maxFanOut {
		return nil, fmt.Errorf("%w: %d events for %d destinations of a tenant; at most %d deliveries are allowed", ErrTooLarge, len(events), len(destinations), maxFanOut)
	}
	var array [8]route
	routes := array[:0]
	for i := range destinations {
		r := route{id: destinations[i].ID}
		r.use(&destinations[i])
		routes = append(routes, r)
	}
	if len(routes) == 0 {
		f.recorder.count(func(s *Stats) { s.NoDestination += int64(len(events)) })
	}
	sent := make([]Sent, len(events))
	if err = f.store(ctx, routes, events, sent, queue); err != nil {
		return nil, err
	}
	return sent, nil
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
	outbox, err := f.outbox("ForwardTx")
	if err != nil {
		return err
	}
	return f.forward(ctx, tx, destinations, events, func(ctx context.Context, b *batch) (int, error) { return f.putTx(ctx, outbox, tx, b) })
}

// outbox returns the store as an Outbox, for the method named call.
func (f *Forwarder) outbox(call string) (store.Outbox, error) {
	outbox, ok := f.config.Store.(store.Outbox)
	if !ok {
		return nil, fmt.Errorf("webhook: %s: %T has no transactions of its caller, as pgqueue has; call %s: %w",
			call, f.config.Store, strings.TrimSuffix(call, "Tx"), ErrUnsupported)
	}
	return outbox, nil
}

// putTx is put in the transaction tx.
func (f *Forwarder) putTx(ctx context.Context, outbox store.Outbox, tx any, b *batch) (stored int, err error) {
	b.reset()
	if err = outbox.PutTx(ctx, tx, b.puts, b.results); err != nil {
		return 0, err
	}
	for _, r := range b.results {
		if r.Stored {
			stored++
		}
	}
	f.recorder.count(func(s *Stats) {
		s.InTransaction += int64(stored)
		s.Duplicates += int64(len(b.puts) - stored)
	})
	return stored, nil
}

// A batch holds the deliveries of one call, and the store's results for them.
type batch struct {
	puts    []store.Put
	results []store.Result
}

// reset makes as many results as there are puts, without a value.
func (b *batch) reset() { b.results = append(b.results[:0], make([]store.Result, len(b.puts))...) }

// tell says in sent what became of the puts of each event. At first, Stored of each element is the
// number of the event's puts.
func (b *batch) tell(sent []Sent) {
	results := b.results
	for i := range sent {
		s := &sent[i]
		for _, r := range results[:s.Stored] {
			if !r.Stored {
				s.Duplicates++
			}
		}
		results = results[s.Stored:]
		s.Stored -= s.Duplicates
	}
}

// batches is a pool of *batch, each with space for at most 4096 deliveries.
var batches = sync.Pool{New: func() any { return new(batch) }}

// forward passes a delivery of each event for each destination to queue. Unless tx is nil, the call is
// part of that transaction.
func (f *Forwarder) forward(ctx context.Context, tx any, destinations []string, events []event.Event, queue queue) error {
	if err := f.takes(events); err != nil {
		return err
	}
	if len(destinations) == 0 {
		return fmt.Errorf("%w: none is given", ErrUnknownDestination)
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
	return f.store(ctx, routes, events, nil, queue)
}

// A queue stores a batch, and sets its results. It returns how many of the deliveries are new.
type queue func(context.Context, *batch) (stored int, err error)

// takes returns an error if the Forwarder takes no events, or not these.
func (f *Forwarder) takes(events []event.Event) error {
	if f.open.Err() != nil {
		return ErrClosed
	}
	for i := range events {
		if err := cmp.Or(events[i].Check(), f.config.Catalogue.Check(events[i].Type)); err != nil {
			return oneOf(len(events), i, err)
		}
	}
	return nil
}

// store passes a delivery of each event for each route to queue. Unless sent is nil, it gets what became
// of each event.
func (f *Forwarder) store(ctx context.Context, routes []route, events []event.Event, sent []Sent, queue queue) error {
	b := batches.Get().(*batch)
	defer func() {
		// Stores and observers keep no reference to b, so another call can use it.
		if clear(b.puts); cap(b.puts) <= 4096 {
			b.puts = b.puts[:0]
			batches.Put(b)
		}
	}()
	b.puts = slices.Grow(b.puts, len(routes)*len(events))
	off, err := f.appendDeliveries(ctx, b, routes, events, sent)
	if err == nil && len(b.puts) > 0 {
		_, err = queue(ctx, b)
	}
	if err != nil {
		return err
	}
	b.tell(sent)
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
func (f *Forwarder) appendDeliveries(ctx context.Context, b *batch, routes []route, events []event.Event, sent []Sent) (off int, err error) {
	now := f.config.now().UTC()
	trace := event.TraceOf(ctx)
	for i := range events {
		e := &events[i]
		if e.Off {
			off++
			continue
		}
		id := deliveryID(e)
		before := len(b.puts)
		for j := range routes {
			r := &routes[j]
			if r.takesNothing {
				r.filtered++
				continue
			}
			p := store.Put{NoDedup: e.NoDedup, Delivery: Delivery{
				Destination: r.id, ID: id, MessageID: e.ID, Source: e.Source, User: e.User, Event: e.Name,
				Tenant: r.tenant, Key: r.order.key(e), Type: e.Type, Body: e.Body, Accepted: e.Received, Due: now, Trace: trace,
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
		if sent != nil {
			sent[i].Stored = len(b.puts) - before // see batch.tell
			sent[i].Filtered = len(routes) - sent[i].Stored
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
	b.reset()
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
		if r.Stored && !r.Behind || err != nil && !errors.Is(err, ErrQueueFull) { // an error may come too late
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
