package webhook

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/hookferry/analytics/event"
)

// A WaitingFilter selects waiting deliveries of one destination, even if the forwarder does not
// know that destination. Each of the other fields must match, unless it is empty.
type WaitingFilter struct {
	Destination string // is required
	// ID is compared with both the ID and the MessageID of a delivery, User and Event with the
	// fields of the same name.
	ID, User, Event string
}

// Match reports whether the filter selects d.
func (f *WaitingFilter) Match(d *Delivery) bool {
	return f.Destination == d.Destination && (f.ID == "" || f.ID == d.ID || f.ID == d.MessageID) &&
		(f.User == "" || f.User == d.User) && (f.Event == "" || f.Event == d.Event)
}

// A Change is an operation on waiting deliveries.
type Change uint8

const (
	DueNow    Change = iota + 1 // makes a delivery due now, as Delivery.Hasten does
	Discarded                   // removes a delivery, which does not become a dead letter
)

// Check returns an error if a Keeper has to refuse the filter or the change.
func (c Change) Check(f *WaitingFilter) error {
	switch {
	case f.Destination == "":
		return errors.New("webhook: a WaitingFilter without a destination")
	case c != DueNow && c != Discarded:
		return errors.New("webhook: unknown Change")
	}
	return nil
}

// Hasten makes d due at the time now, and opens the endpoints that are closed to d only for some
// time. It changes nothing and returns false if d is due already.
func (d *Delivery) Hasten(now time.Time) bool {
	if !d.Due.After(now) {
		return false
	}
	d.Due = now
	d.Closed = slices.DeleteFunc(slices.Clone(d.Closed), func(c Closed) bool { return !c.Until.IsZero() })
	return true
}

// Waiting yields the deliveries that filter selects, as Keeper.Waiting does.
func (f *Forwarder) Waiting(ctx context.Context, filter WaitingFilter, after string) iter.Seq2[Delivery, error] {
	return func(yield func(Delivery, error) bool) {
		for d, err := range f.config.Store.Waiting(ctx, filter.Destination, after) {
			if (err != nil || filter.Match(&d)) && !yield(d, err) {
				return
			}
		}
	}
}

// ChangeWaiting makes the deliveries that filter selects due now, or discards them. It returns how
// many it has changed, and how many it has skipped because they are being attempted: call it again
// later. DueNow ends neither a pause nor the probing of a destination that fails.
func (f *Forwarder) ChangeWaiting(ctx context.Context, filter WaitingFilter, to Change) (n, claimed int, err error) {
	n, claimed, err = f.config.Store.Change(ctx, filter, to)
	if to == Discarded {
		f.count(func(s *Stats) { s.Discarded += int64(n) })
	}
	return n, claimed, err
}

// EraseUser removes a user's deliveries, dead letters and history from the store, for all
// destinations. It returns how many it has removed, and how many it has skipped because they are
// claimed: call it again later. The error is a *event.CallError for a user id that does not have 1
// to 8192 bytes, or one of the store.
//
// EraseUser does not tell the destinations; see package audience. It selects by Delivery.User.
// Deliveries of other users that name this user stay, and so do the members of audiences.
func (f *Forwarder) EraseUser(ctx context.Context, userID string) (erased, claimed int, err error) {
	e, err := event.Delete(userID, f.now()) // replaces a long id by its digest
	if err != nil {
		return 0, 0, err
	}
	return f.config.Store.Erase(ctx, e.User)
}
