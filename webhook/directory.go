package webhook

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Directory finds destinations: in a table of the program, or in package tenants. The Forwarder
// keeps its answers for a while; see Config.AnswerAge. The methods are called concurrently, and must
// end with their context. A panic is an error. Nobody may change what an answer refers to.
//
// ErrUnknownDestination, which may be wrapped, says that there is no such destination, and
// ErrTakesNothing that it is gone for good. With any other error, deliveries wait and the Forwarder
// asks again.
type Directory interface {
	// Destination returns the destination with this id. No two tenants may have the same id.
	Destination(ctx context.Context, id string) (Destination, error)
	// Destinations returns all destinations of a tenant, also disabled ones, each with all that
	// Destination returns; none, and no error, if the tenant has none or is not known. It may leave
	// Destination.Tenant empty.
	Destinations(ctx context.Context, tenant string) ([]Destination, error)
}

// A TxDirectory can answer through a transaction of the caller of ForwardTx, who then needs no second
// connection.
type TxDirectory interface {
	Directory
	// WithTx returns a Directory that asks through tx, which is of a type that the Store takes. The
	// Forwarder does not keep its answers, which may have changes that are not committed.
	WithTx(tx any) Directory
}

// A LiveDirectory reports its changes, so that the Forwarder may use answers for longer.
type LiveDirectory interface {
	Directory
	// Follow calls changed for each change, on any node, within two seconds, until ctx is done. First,
	// and whenever it may have missed changes, it calls changed with two empty strings: then the
	// Forwarder forgets all answers, and attempts deliveries of the destinations that are held or fail,
	// of up to a thousand destinations a second. An empty tenant stands for any tenant. Run calls
	// Follow, and calls it again after an error. changed may be called concurrently, and does not block.
	Follow(ctx context.Context, changed func(tenant, destination string)) error
}

// A directory finds destinations: those of Config.Destinations, or of Config.Directory.
type directory struct {
	config   *Config
	answers  answers                  // of Config.Directory
	schedule *scheduler               // is told what has changed
	static   map[string]*target       // of Config.Destinations, by id; does not change after New
	tenants  map[string][]Destination // of Config.Destinations, by tenant; does not change after New
	// nothing stands for each destination that ErrTakesNothing is about. It has no endpoint.
	nothing *target
}

// known returns an error if Forward refuses events for a destination. It does not ask
// Config.Directory: a worker does that before each attempt, and so finds unknown destinations.
func (ds *directory) known(id string) error {
	if id == "" || len(id) > maxID {
		return fmt.Errorf("%w: an id of %d bytes, 1 to %d are allowed", ErrUnknownDestination, len(id), maxID)
	}
	if ds.config.Directory == nil && ds.static[id] == nil {
		return fmt.Errorf("%w %q", ErrUnknownDestination, id)
	}
	return nil
}

// resolve returns the target for the present settings of the destination: l.target if they have not
// changed. If the destination cannot be used, it returns an error, and the HoldKind of its deliveries.
func (ds *directory) resolve(ctx context.Context, l *lane) (*target, HoldKind, error) {
	t := ds.static[l.ID]
	if ds.config.Directory != nil {
		a := ds.answers.find(ctx, question{key: l.ID})
		switch {
		case errors.Is(a.err, ErrTakesNothing):
			return ds.nothing, "", nil
		case errors.Is(a.err, ErrUnknownDestination):
			return nil, HoldUnknown, a.err
		case a.err != nil:
			return nil, HoldLookup, a.err
		}
		d := &a.destinations[0]
		if t = l.State.target.Load(); t == nil || t.source != d {
			if d.ID != l.ID {
				return nil, HoldInvalid, fmt.Errorf("webhook: the Directory's answer for %q is the destination %q", l.ID, d.ID)
			}
			var err error
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

// A route is one destination of a call. It counts the events that the destination does not get.
type route struct {
	id              string
	tenant          string
	order           Order
	settings        *Destination // nil: the destination takes every event as it is
	takesNothing    bool         // the Directory says ErrTakesNothing
	filtered        int          // events that the filter, the Transform or takesNothing has left out
	transformErrors int
}

// route returns the route to a destination, or an error if Forward refuses events for it. Unless tx
// is nil, the call is part of that transaction.
func (ds *directory) route(ctx context.Context, tx any, id string) (route, error) {
	r := route{id: id}
	if err := ds.known(id); err != nil {
		return r, err
	}
	if t := ds.static[id]; t != nil {
		r.use(t.source)
	} else {
		a := ds.find(ctx, tx, question{key: id})
		r.takesNothing = errors.Is(a.err, ErrTakesNothing)
		switch {
		case a.err == nil:
			r.use(&a.destinations[0])
		case !r.takesNothing && !errors.Is(a.err, ErrUnknownDestination):
			return r, a.err
		}
	}
	return r, nil
}

// use makes r the route to d.
func (r *route) use(d *Destination) {
	r.tenant, r.order = d.Tenant, d.Order
	if d.filters() {
		r.settings = d
	}
}

// of returns the destinations of a tenant.
func (ds *directory) of(ctx context.Context, tx any, tenant string) ([]Destination, error) {
	if ds.config.Directory == nil {
		return ds.tenants[tenant], nil
	}
	a := ds.find(ctx, tx, question{true, tenant})
	for i := range a.destinations {
		if id := a.destinations[i].ID; id == "" || len(id) > maxID {
			return nil, fmt.Errorf("webhook: the Directory has a destination of %q whose id has %d bytes, 1 to %d are allowed", tenant, len(id), maxID)
		}
	}
	return a.destinations, a.err
}

// find answers q for a call, which is part of the transaction tx unless that is nil. If no answer
// is known, a TxDirectory is asked through tx.
func (ds *directory) find(ctx context.Context, tx any, q question) *answer {
	if tx == nil {
		return ds.answers.find(ctx, q)
	}
	through, ok := ds.config.Directory.(TxDirectory)
	if !ok {
		a := ds.answers.find(ctx, q)
		if errors.Is(a.err, context.DeadlineExceeded) {
			return &answer{err: fmt.Errorf("%w; if the Directory takes its connection from the pool of the transaction, make it a TxDirectory: "+
				"transactions that hold all connections wait for each other", a.err)}
		}
		return a
	}
	if a := ds.answers.kept(q); a != nil && len(a.destinations) > 0 {
		return a
	}
	a := new(answer)
	ctx, cancel := context.WithTimeout(ctx, ds.config.Timeout)
	defer cancel()
	a.ask(ctx, q, through.WithTx(tx))
	return a
}

// forget makes the next call or attempt ask about the destinations of a tenant, and about these ones.
func (ds *directory) forget(tenant string, destinations ...string) {
	for _, id := range append(ds.answers.forget(tenant, destinations...), destinations...) {
		ds.schedule.Recheck(id)
	}
}

// follow keeps the answers up to date, if Config.Directory is a LiveDirectory, until ctx is done.
func (ds *directory) follow(ctx context.Context) {
	live, ok := ds.config.Directory.(LiveDirectory)
	if !ok {
		return
	}
	changed := func(tenant, destination string) {
		if destination != "" {
			ds.forget(tenant, destination)
			return
		}
		if ds.forget(tenant); tenant == "" {
			ds.schedule.RecheckAll() // any of them may have changed, and nobody says which
			ds.answers.live.Store(true)
		}
	}
	for wait := time.Second; ctx.Err() == nil; wait = min(2*wait, longestPause) {
		err := noPanic("the Directory", func() error { return live.Follow(ctx, changed) })
		if followed := ds.answers.live.Swap(false); followed {
			wait = time.Second
		}
		if ctx.Err() != nil {
			return
		}
		ds.config.Logger.Warn("webhook: the Directory reports no changes; they take effect within AnswerAge", "error", err, "wait", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}
