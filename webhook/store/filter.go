package store

import (
	"errors"
	"time"
)

// An EndedFilter selects dead letters, or deliveries of a History. The zero value selects all.
type EndedFilter struct {
	// If one of these fields is not empty, the delivery must have the same value.
	Destination string `json:"destination,omitempty"`
	ID          string `json:"id,omitempty"` // the ID or the MessageID of the delivery
	Type        string `json:"type,omitempty"`
	Reason      Reason `json:"reason,omitempty"`
	User        string `json:"user,omitempty"`
	// From and To bound At: From <= At < To. A bound that is zero does not apply.
	From        time.Time `json:"from,omitzero"`
	To          time.Time `json:"to,omitzero"`
	NewestFirst bool      `json:"newestFirst,omitempty"` // lists begin with the delivery that ended last
}

// Match reports whether the filter selects d.
func (f EndedFilter) Match(d *Ended) bool {
	return matches(f.Destination, d.Destination) && (matches(f.ID, d.ID) || f.ID == d.MessageID) &&
		matches(f.Type, d.Type) && matches(f.User, d.User) && matches(string(f.Reason), string(d.Reason)) &&
		(f.From.IsZero() || !d.At.Before(f.From)) && (f.To.IsZero() || d.At.Before(f.To))
}

// A WaitingFilter selects waiting deliveries of one destination, which the forwarder need not know.
type WaitingFilter struct {
	Destination string `json:"destination"` // is required
	// Each of these fields must match, unless it is empty. ID may equal the ID or the MessageID.
	ID    string `json:"id,omitempty"`
	User  string `json:"user,omitempty"`
	Event string `json:"event,omitempty"`
}

// Match reports whether the filter selects d.
func (f *WaitingFilter) Match(d *Delivery) bool {
	return f.Destination == d.Destination && (matches(f.ID, d.ID) || f.ID == d.MessageID) &&
		matches(f.User, d.User) && matches(f.Event, d.Event)
}

// A Change is an operation on waiting deliveries.
type Change uint8

const (
	DueNow    Change = iota + 1 // makes a delivery due now, as Delivery.Hasten does
	Discarded                   // removes a delivery, which does not become a dead letter
)

// Check returns an error if an Inspector has to refuse the filter or the change.
func (c Change) Check(f *WaitingFilter) error {
	switch {
	case f.Destination == "":
		return errors.New("webhook: a WaitingFilter without a destination")
	case c != DueNow && c != Discarded:
		return errors.New("webhook: unknown Change")
	}
	return nil
}

// matches reports whether a field has the value that a filter asks for, if it asks for one.
func matches(want, field string) bool { return want == "" || want == field }
