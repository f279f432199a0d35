package webhook

import (
	"context"
	"errors"
	"fmt"
)

// A directory finds destinations by their ids.
type directory struct {
	config *Config
	static map[string]*target // of Config.Destinations, by id; does not change after New
	// nothing stands for each destination whose Lookup returns ErrTakesNothing. It has no endpoint.
	nothing *target
}

// known returns an error if Forward refuses events for a destination. It does not call
// Config.Lookup: a worker does that before each attempt, and so finds unknown destinations.
func (ds *directory) known(id string) error {
	if id == "" || len(id) > maxID {
		return fmt.Errorf("%w: an id of %d bytes, 1 to %d are allowed", ErrUnknownDestination, len(id), maxID)
	}
	if ds.config.Lookup == nil && ds.static[id] == nil {
		return fmt.Errorf("%w %q", ErrUnknownDestination, id)
	}
	return nil
}

// resolve returns the target for the present settings of the destination: l.target if they have not
// changed. If the destination cannot be used, it returns an error, and the HoldKind of its deliveries.
func (ds *directory) resolve(ctx context.Context, l *lane) (*target, HoldKind, error) {
	t := ds.static[l.ID]
	if ds.config.Lookup != nil {
		ctx, cancel := context.WithTimeout(ctx, ds.config.Timeout)
		defer cancel()
		d, hold, err := ds.ask(ctx, l.ID)
		switch {
		case errors.Is(err, ErrTakesNothing):
			return ds.nothing, "", nil
		case err != nil:
			return nil, hold, err
		}
		if t = l.State.target.Load(); t == nil || t.source != d {
			if d.ID != l.ID {
				return nil, HoldInvalid, fmt.Errorf("webhook: Lookup of %q returned the destination %q", l.ID, d.ID)
			}
			if t, err = compile(d, ds.config, t); err != nil {
				return nil, HoldInvalid, fmt.Errorf("webhook: destination is not valid: %w", err)
			}
		}
	}
	switch {
	case t == nil:
		return nil, HoldUnknown, ErrUnknownDestination
	case t.source.Disabled:
		return nil, HoldDisabled, errors.New("webhook: destination is disabled")
	}
	return t, "", nil
}

// ask calls Config.Lookup. With an error, it returns the HoldKind that this error stands for, which is
// none for ErrTakesNothing.
func (ds *directory) ask(ctx context.Context, id string) (d *Destination, hold HoldKind, err error) {
	err = noPanic("Lookup", func() (err error) {
		d, err = ds.config.Lookup(ctx, id)
		return err
	})
	switch {
	case errors.Is(err, ErrTakesNothing):
		return nil, "", err
	case errors.Is(err, ErrUnknownDestination):
		return nil, HoldUnknown, err
	case err != nil:
		return nil, HoldLookup, &lookupError{err}
	case d == nil:
		return nil, HoldUnknown, ErrUnknownDestination
	}
	return d, "", nil
}

// A route is one destination of a call. It counts the events that the destination does not get.
type route struct {
	id              string
	settings        *Destination // nil: the destination takes every event as it is
	takesNothing    bool         // Lookup has returned ErrTakesNothing
	filtered        int          // events that the filter, the Transform or takesNothing has left out
	transformErrors int
}

// route returns the route to a destination, or an error if Forward refuses events for it.
func (ds *directory) route(ctx context.Context, id string) (route, error) {
	r := route{id: id}
	if err := ds.known(id); err != nil {
		return r, err
	}
	if t := ds.static[id]; t != nil {
		r.settings = t.source
	} else if ds.config.LookupFilters {
		d, hold, err := ds.ask(ctx, id)
		if hold == HoldLookup {
			return r, err
		}
		r.settings, r.takesNothing = d, errors.Is(err, ErrTakesNothing)
	}
	if r.settings != nil && !r.settings.filters() {
		r.settings = nil
	}
	return r, nil
}

// A lookupError is an error of Config.Lookup.
type lookupError struct{ err error }

func (e *lookupError) Error() string { return "webhook: look-up failed: " + e.err.Error() }

func (e *lookupError) Unwrap() error { return e.err }

// A Directory finds destinations: of a table of the program, or of package tenants. The Forwarder
// keeps its answers for a while; see Config.Directory. The methods are called concurrently, and must
// end with their context. A panic is an error. Nobody may change what an answer refers to.
//
// ErrUnknownDestination, which may be wrapped, says that there is no such destination, and
// ErrTakesNothing that it is gone for good. With any other error, deliveries wait and the Forwarder
// asks again.
type Directory interface {
	// Destination returns the destination with this id. No two tenants may have the same id.
	Destination(ctx context.Context, id string) (Destination, error)
	// Destinations returns all destinations of a tenant, also disabled ones; none, and no error, if the
	// tenant has none or is not known. It may leave Destination.Tenant empty.
	Destinations(ctx context.Context, tenant string) ([]Destination, error)
}

// A TxDirectory can answer through a transaction of the caller of SendTx or ForwardTx, who then
// needs no second connection.
type TxDirectory interface {
	Directory
	// WithTx returns a Directory that asks through tx, which is of a type that the Store takes.
	WithTx(tx any) Directory
}

// A LiveDirectory reports its changes, so that the Forwarder may use answers for longer.
type LiveDirectory interface {
	Directory
	// Follow calls changed for each change, on any node, within two seconds, until ctx is done. First,
	// and whenever it may have missed changes, it calls changed with two empty strings: then the
	// Forwarder forgets all answers. An empty tenant stands for any tenant. Run calls Follow, and calls
	// it again after an error. changed may be called concurrently, and does not block.
	Follow(ctx context.Context, changed func(tenant, destination string)) error
}
