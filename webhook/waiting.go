package webhook

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"
)

// A WaitingFilter selects deliveries that wait for a destination, be it known or not. What is
// empty selects all.
type WaitingFilter struct {
	// Destination is required.
	Destination string
	// ID is that of a delivery or its messageId, User and Event are those of deliveries.
	ID, User, Event string
}

// Match reports whether the filter selects d.
func (f *WaitingFilter) Match(d *Delivery) bool {
	return f.Destination == d.Destination && (f.ID == "" || f.ID == d.ID || f.ID == d.MessageID) &&
		(f.User == "" || f.User == d.User) && (f.Event == "" || f.Event == d.Event)
}

// A Change says what Keeper.Change does with deliveries that wait.
type Change uint8

// The changes.
const (
	// DueNow makes a delivery due now, and open the endpoints that wait for a time; see
	// Delivery.Hasten. It passes over what is due already.
	DueNow Change = iota + 1
	// Discarded forgets a delivery.
	Discarded
)

var errNoDestination = errors.New("webhook: a WaitingFilter without a destination")

// Check returns an error for a filter, or a change, that a Keeper refuses.
func (c Change) Check(f *WaitingFilter) error {
	switch {
	case f.Destination == "":
		return errNoDestination
	case c != DueNow && c != Discarded:
		return errors.New("webhook: a change that is none")
	}
	return nil
}

// Hasten makes d due at now: no endpoint is waited for, but those that are closed for good stay
// so. It reports whether d was due later.
func (d *Delivery) Hasten(now time.Time) bool {
	if !d.Due.After(now) {
		return false
	}
	d.Due = now
	d.Closed = slices.DeleteFunc(slices.Clone(d.Closed), func(c Closed) bool { return !c.Until.IsZero() })
	return true
}

// Waiting yields the deliveries that filter selects, in the order of Due, from the one after the
// one whose ID is after ("" for the first); those that are being attempted are among them.
// The loop may call RetryNow and DiscardWaiting. An error ends it.
func (f *Forwarder) Waiting(ctx context.Context, filter WaitingFilter, after string) iter.Seq2[Delivery, error] {
	return func(yield func(Delivery, error) bool) {
		for d, err := range f.config.Store.Waiting(ctx, filter.Destination, after) {
			if (err != nil || filter.Match(&d)) && !yield(d, err) {
				return
			}
		}
	}
}

// RetryNow makes the deliveries due now that filter selects and that wait for a later time. They
// are attempted as soon as their destination has room: one that is paused, or fails and is
// asked now and then, is left so. It returns how many there were, and how many it passed over
// because they are being attempted.
func (f *Forwarder) RetryNow(ctx context.Context, filter WaitingFilter) (n, claimed int, err error) {
	return f.config.Store.Change(ctx, filter, DueNow)
}

// DiscardWaiting forgets the deliveries that filter selects: they are neither delivered nor
// dead letters, and Stats.Discarded counts them. It returns how many there were, and how many
// it passed over because they are being attempted: it may be called again for these.
func (f *Forwarder) DiscardWaiting(ctx context.Context, filter WaitingFilter) (n, claimed int, err error) {
	n, claimed, err = f.config.Store.Change(ctx, filter, Discarded)
	f.count.discarded.Add(int64(n))
	return n, claimed, err
}
