package webhook

import (
	"context"

	"github.com/hookferry/analytics/event"
)

// EraseUser removes a user's deliveries, dead letters and history from the store, for all
// destinations. It returns how many it has removed, and how many it has skipped because they are
// claimed, for example for an attempt. A further call removes those.
//
// EraseUser does not tell the destinations; see package audience. It selects by Delivery.User.
// Deliveries of other users stay, even if their bodies name this user, and so do the members of
// audiences.
//
// The error is a *event.CallError for a user id that does not have 1 to 8192 bytes, or an error of
// the store.
func (f *Forwarder) EraseUser(ctx context.Context, userID string) (erased, claimed int, err error) {
	e, err := event.Delete(userID, f.now()) // replaces a long id by its digest
	if err != nil {
		return 0, 0, err
	}
	return f.config.Store.Erase(ctx, e.User)
}
