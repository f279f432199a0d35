package webhook

import (
	"context"
	"time"
)

// Delete accepts a request to delete a user: it tells each of the
// destinations, with a body of the type "delete", and returns nil once that is
// durable, like Forward. A destination stands for each affected source that
// has webhooks enabled.
func (f *Forwarder) Delete(ctx context.Context, userID string, destinations ...string) error {
	e, err := newDeletion(userID, time.Now())
	if err != nil {
		return err
	}
	return f.ForwardEvents(ctx, destinations, e)
}
