package webhook

import (
	"context"

	"github.com/hookferry/analytics/event"
)

// EraseUser removes the deliveries, the dead letters and the history of a user from the store, for
// every destination. It returns how many there were, and how many it passed over because they are
// claimed, for example for an attempt. A further call removes those. Destinations do not learn of it;
// see package audience. EraseUser goes by Delivery.User: deliveries of other users that name this one
// in their bodies stay, and so do the members of audiences.
//
// The error is a *event.CallError for a user id that is not 1 to 8192 bytes, or the store's.
func (f *Forwarder) EraseUser(ctx context.Context, userID string) (erased, claimed int, err error) {
	e, err := event.Delete(userID, f.now()) // for the digest of a long id
	if err != nil {
		return 0, 0, err
	}
	return f.config.Store.Erase(ctx, e.User)
}
