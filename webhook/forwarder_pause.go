package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"

	"github.com/hookferry/analytics/webhook/store"
)

// Pause keeps the deliveries of a destination in the store until Resume. Attempts in flight go on.
//
// A delivery that was never attempted has its whole retry window after Resume. For any other
// delivery the window goes on. If it ends during the pause, the delivery is attempted once more
// after Resume, even if the forwarder restarts before that. The same holds while a destination is
// disabled or unknown, unless the forwarder restarts after that and before the attempt.
//
// A pause is a document in the store. It applies to all nodes of the store, after Config.Poll at the
// latest, and survives restarts. After an error of the store the destination may be paused or not.
// The error is ErrUnknownDestination for a destination that Forward would refuse.
func (f *Forwarder) Pause(ctx context.Context, destination string) error {
	if err := f.directory.known(destination); err != nil {
		return err
	}
	_, err := f.pauses.set(ctx, Disabled{Destination: destination, Since: f.config.now().UTC()})
	return err
}

// Resume ends the pause of a destination, if there is one, whichever node began it. It also enables
// a destination that the forwarder has disabled; see Config.DisableAfter.
func (f *Forwarder) Resume(ctx context.Context, destination string) error {
	if err := f.directory.known(destination); err != nil {
		return err
	}
	d, p, err := f.pauses.find(ctx, destination)
	if err != nil {
		return err
	}
	if d.Version != 0 && p.Resumed.IsZero() {
		p.Resumed = f.config.now().UTC()
		if d.Value, err = json.Marshal(p); err == nil {
			_, err = f.config.Store.SetDocument(ctx, d)
		}
		if err == nil {
			f.enabled(p.Disabled)
		} else if !errors.Is(err, store.ErrConflict) { // on a conflict, another call has changed the pause
			return err
		}
	}
	if err := f.pauses.learn(ctx); err != nil {
		return err
	}
	f.schedule.Recheck(destination)
	return nil
}

// Recheck says that destinations of a tenant have changed: the answers of the Directory about them
// are out of date. A destination that is disabled, unknown, invalid or failing waits no longer for
// its next look-up or probe: a delivery of it is attempted at once. Recheck does not end a pause.
// An empty tenant stands for any tenant, and no destinations for all of the tenant. If both are
// empty, the forwarder forgets all answers, but makes no attempt earlier.
func (f *Forwarder) Recheck(tenant string, destinations ...string) {
	f.directory.forget(tenant, destinations...)
}

// Held returns the destinations that are held now, in the order of their ids. It leaves out one of
// which no delivery was due for some minutes, unless it is paused or disabled.
func (f *Forwarder) Held() []Hold { return f.held(nil) }

// held is Held for the destinations in only, or for all if it is empty.
func (f *Forwarder) held(only []string) []Hold {
	var held []Hold
	for _, h := range f.schedule.Held(only) {
		kind := cmp.Or(HoldKind(h.Why), HoldFailing)
		held = append(held, Hold{h.Destination, kind, h.Since.UTC(), h.Until.UTC(), Reason(h.Reason)})
	}
	return held
}

// enabled logs that Resume has enabled a destination, and tells the observers, unless Pause was
// called for it.
func (f *Forwarder) enabled(was Disabled) {
	if was.Reason == "" {
		return
	}
	f.config.Logger.Info("webhook: destination enabled; its deliveries are attempted again",
		"destination", was.Destination, "reason", string(was.Reason))
	f.recorder.tell(func(o Observer) {
		if o, ok := o.(DisableObserver); ok {
			o.Enabled(was)
		}
	})
}
