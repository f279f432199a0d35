package webhook

import (
	"context"
	"fmt"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
)

// An Outbox is a Store, such as pgqueue, that can store deliveries in a transaction of the caller.
type Outbox interface {
	// PutTx stores ds in the transaction tx, as Put would: durably if, and only if, tx commits. It
	// returns how many of ds had not been put before. Each store documents which types tx may have.
	// Any other type is an error.
	PutTx(ctx context.Context, tx any, ds []Delivery) (stored int, err error)
	// FirstClaims counts the deliveries that PutTx has stored, on any node, and that this node was
	// the first to claim.
	FirstClaims() int64
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
