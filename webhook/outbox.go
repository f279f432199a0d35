package webhook

import (
	"context"
	"fmt"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
)

// An Outbox is a Store that can store deliveries in a transaction of the caller's own
// database, as pgqueue does.
type Outbox interface {
	// PutTx stores ds in tx as Put would: they are delivered if tx commits, and were never
	// there if it does not. It returns how many of ds had not been put before. The store says
	// what types tx may have; another one is an error.
	PutTx(ctx context.Context, tx any, ds []Delivery) (stored int, err error)
	// FirstClaims returns how many deliveries this node was the first to claim of those that
	// any node has stored by PutTx.
	FirstClaims() int64
}

// ForwardTx is Forward in a transaction of the caller's own: the transactional outbox. The
// event is forwarded if, and only if, tx commits, so it needs no second write that may fail.
// With pgqueue, tx is a pgx.Tx or a *sql.Tx.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1)", order.ID); err != nil {
//			return err
//		}
//		return forwarder.ForwardTx(ctx, tx, "acme", &analytics.Track{UserId: order.User, Event: "Order Placed"})
//	})
//
// Its errors are those of Forward, and ErrUnsupported if the store is no Outbox. After an
// error the transaction has to be rolled back. With a Config.Lookup any id of 1 to 255 bytes
// is taken: what is stored for a destination that the Lookup does not know waits until it does.
//
// Stats.InTransaction counts the deliveries at the call. Each counts as accepted on the node
// that claims it first. The Observer is not told of it.
func (f *Forwarder) ForwardTx(ctx context.Context, tx any, destination string, calls ...analytics.Message) error {
	events, err := encode(calls)
	if err != nil {
		return err
	}
	return f.ForwardEventsTx(ctx, tx, []string{destination}, events...)
}

// ForwardEventsTx is ForwardTx for events that were made of calls before, and for several
// destinations. Event.NoDedup has no effect.
func (f *Forwarder) ForwardEventsTx(ctx context.Context, tx any, destinations []string, events ...event.Event) error {
	outbox, ok := f.config.Store.(Outbox)
	if !ok {
		return fmt.Errorf("webhook: ForwardTx: %w", ErrUnsupported)
	}
	if err := f.check(destinations); err != nil {
		return err
	}
	var routesOf [routesSpace]route
	routes, err := f.destinations.routes(ctx, destinations, routesOf[:0])
	if err != nil {
		return err
	}
	ds := make([]Delivery, 0, len(destinations)*len(events))
	off, err := f.eachDelivery(ctx, destinations, routes, events, func(p Put) { ds = append(ds, p.Delivery) })
	if err != nil {
		return err
	}
	stored, err := outbox.PutTx(ctx, tx, ds)
	if err != nil {
		return err
	}
	f.count.inTransaction.Add(int64(stored))
	f.count.duplicates.Add(int64(len(ds) - stored))
	f.leftOut(destinations, routes, off)
	return nil
}
