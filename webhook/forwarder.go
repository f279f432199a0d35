package webhook

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
)

// A Forwarder accepts events, keeps them in a Store, and delivers them to the endpoints of their
// destinations while Run runs. Its methods may be called concurrently.
type Forwarder struct {
	*engine
	open    context.Context    // done after Shutdown: nothing more is accepted
	close   context.CancelFunc // ends open
	running atomic.Bool
}

// New returns a Forwarder, which delivers nothing until Run is called, or a *ConfigError.
func New(c Config) (*Forwarder, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	e, err := newEngine(c)
	if err != nil {
		return nil, err
	}
	f := &Forwarder{engine: e}
	f.open, f.close = context.WithCancel(context.Background())
	return f, nil
}

// Forward accepts calls for a destination, and returns nil once they are durable in the store. From
// then on each is delivered, or becomes a dead letter. With an error it has accepted none of them.
// A call is a message of the root package, or an event.JSON. Forward does not need Run: deliveries
// wait for the next Run.
//
// Forward leaves out a call, and counts it in Stats, if
//
//   - the integrations of the call switch Webhooks off,
//   - the destination's Filter leaves it out,
//   - the destination's Transform fails for it, or
//   - the store remembers its messageId for the destination.
//
// The error for a call that is not valid is a *event.CallError, or an error of the root package.
// Other errors are ErrUnknownDestination, ErrQueueFull, ErrClosed after Shutdown, and those of the
// store. With a Lookup an unknown destination is no error: its deliveries wait until Lookup knows
// it. The caller may repeat a call that the store refused.
func (f *Forwarder) Forward(ctx context.Context, destination string, calls ...analytics.Message) error {
	events, err := encode(calls)
	if err != nil {
		return err
	}
	return f.ForwardEvents(ctx, []string{destination}, events...)
}

// encode turns calls that arrive now into events.
func encode(calls []analytics.Message) ([]event.Event, error) {
	encoder, err := event.NewEncoder(event.Envelope{ReceivedAt: time.Now()})
	if err != nil {
		return nil, err
	}
	events := make([]event.Event, len(calls))
	for i, call := range calls {
		if events[i], err = encoder.Encode(call); err != nil {
			if len(calls) > 1 {
				return nil, fmt.Errorf("call %d: %w", i, err)
			}
			return nil, err
		}
	}
	return events, nil
}

// ForwardEvents is Forward for several destinations, and for events that the caller has made with
// package event. It stores all deliveries in one commit.
func (f *Forwarder) ForwardEvents(ctx context.Context, destinations []string, events ...event.Event) error {
	return forward(f, ctx, destinations, events, true, f.put)
}

// Announce is ForwardEvents without filters and Transforms. It is for the events of audiences and
// deletions, which package audience makes.
func (f *Forwarder) Announce(ctx context.Context, destinations []string, events ...event.Event) error {
	return forward(f, ctx, destinations, events, false, f.put)
}

// ForwardTx is Forward in a transaction of the caller: the transactional outbox pattern. The event
// is forwarded if, and only if, tx commits. With pgqueue, tx is a pgx.Tx or a *sql.Tx.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1)", order.ID); err != nil {
//			return err
//		}
//		return forwarder.ForwardTx(ctx, tx, "acme", &analytics.Track{UserId: order.User, Event: "Order Placed"})
//	})
//
// ForwardTx returns the errors of Forward, and ErrUnsupported if the store is not an Outbox. After
// an error the caller rolls the transaction back. Observer.Accepted is not called. Stats counts the
// deliveries in InTransaction, and as Accepted on the node that is the first to claim them.
func (f *Forwarder) ForwardTx(ctx context.Context, tx any, destination string, calls ...analytics.Message) error {
	events, err := encode(calls)
	if err != nil {
		return err
	}
	return f.ForwardEventsTx(ctx, tx, []string{destination}, events...)
}

// ForwardEventsTx is ForwardTx for several destinations, and for events that the caller has made
// with package event. Event.NoDedup has no effect.
func (f *Forwarder) ForwardEventsTx(ctx context.Context, tx any, destinations []string, events ...event.Event) error {
	outbox, ok := f.config.Store.(Outbox)
	if !ok {
		return fmt.Errorf("webhook: ForwardTx: %w", ErrUnsupported)
	}
	return forward(f, ctx, destinations, events, true, func(ctx context.Context, b *batch) (int, error) {
		stored, err := outbox.PutTx(ctx, tx, b.deliveries())
		if err == nil {
			f.count.inTransaction.Add(int64(stored))
			f.count.duplicates.Add(int64(len(b.puts) - stored))
		}
		return stored, err
	})
}

// Run delivers until ctx is done or Shutdown is called. Then it waits for the attempts in flight,
// each for at most Config.Timeout, stores their outcomes, and returns nil. It returns an error if
// the store was closed too early, or could not store the last outcomes. Run may be called only
// once. After Shutdown it returns nil.
func (f *Forwarder) Run(ctx context.Context) error {
	if !f.running.CompareAndSwap(false, true) {
		return errors.New("webhook: Run was called before")
	}
	if f.open.Err() != nil { // after Shutdown
		close(f.ended)
		return nil
	}
	return f.run(ctx, f.open)
}

// Shutdown ends the forwarder: Forward accepts nothing more, and Run stops. Shutdown returns when
// Run has returned. If ctx is done before that, Shutdown cuts off the attempts in flight, which may
// be repeated after the next start, and returns the error of ctx. It may be called again.
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
