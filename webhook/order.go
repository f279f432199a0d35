package webhook

import (
	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/event"
)

// An Order says which deliveries of a destination come one after the other, as event.Custom.Key
// describes it.
type Order string

const (
	OrderByKey Order = "" // those whose events have the same Key
	// OrderByUser gives calls of the tracking API, and deletions, their user id as Key, if they have one.
	// Events that have a Key keep it: those with an equal Key are in the same order.
	OrderByUser Order = "user"
)

func (o Order) check(field string, wrong *check.Faults) {
	wrong.Refuse(o != OrderByKey && o != OrderByUser, field, `is not known; "user" and "" (the default) are allowed`)
}

// key returns the Key of the delivery of e.
func (o Order) key(e *event.Event) string {
	if o == OrderByUser && e.Key == "" && event.IsTracking(e.Type) {
		return e.User
	}
	return e.Key
}
