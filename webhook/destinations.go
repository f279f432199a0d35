package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hookferry/analytics/webhook/internal/schedule"
	"github.com/hookferry/analytics/webhook/internal/wire"
)

// destinations knows the destinations, and makes them ready for attempts.
type destinations struct {
	config *Config
	static map[string]*compiled // Config.Destinations; not changed after New
	// filtering says that there may be destinations with filters or a Transform.
	filtering bool
	tls       *tlsConfigs
	ctx       context.Context // parent of those of Config.Lookup
}

// compiled is a target with the Destination it was made of.
type compiled struct {
	source *Destination
	target *target
}

// add adds the destinations of a Config, whose addresses g lets pass from now on.
func (ds *destinations) add(all []Destination, g *guard) error {
	for i := range all {
		field := fmt.Sprintf("Destinations[%d]", i)
		t, err := ds.compile(&all[i])
		if err != nil {
			return under(field, err)
		}
		id := all[i].ID
		if ds.static[id] != nil {
			return refuse(field+".ID", "%q is given twice", id)
		}
		d := all[i]
		d.Filter = Filter{Include: slices.Clone(d.Filter.Include), Exclude: slices.Clone(d.Filter.Exclude)}
		ds.static[id] = &compiled{source: &d, target: t}
		ds.filtering = ds.filtering || all[i].filters()
		for _, e := range t.endpoints {
			g.trust(e.url)
		}
	}
	return nil
}

// compile checks d and makes it ready for requests.
func (ds *destinations) compile(d *Destination) (*target, error) {
	t, err := compile(d, ds.config.ServiceName, ds.config.MaxConcurrent)
	if err := append(split(err), d.checkPace(ds.config.Timeout, ds.config.Window)...).join(); err != nil {
		return nil, err
	}
	t.timeout, t.window = cmp.Or(t.timeout, ds.config.Timeout), cmp.Or(t.window, ds.config.Window)
	t.limits.Window = t.window
	if d.filters() && !ds.filtering && ds.config.Lookup != nil {
		field := "Filter"
		if d.Transform != nil {
			field = "Transform"
		}
		return nil, refuse(field, "is not asked for; set Config.LookupFilters")
	}
	config := ds.tls.of(t.tls)
	for _, e := range t.endpoints {
		e.wire = wire.NewTarget(e.url, e.header, config)
		e.wire.NetHTTP = t.netHTTP
	}
	return t, nil
}

// check checks that there are destinations, and that they are known.
func (ds *destinations) check(ids []string) error {
	if len(ids) == 0 {
		return fmt.Errorf("%w: none is given", ErrUnknownDestination)
	}
	for _, id := range ids {
		if err := ds.known(id); err != nil {
			return err
		}
	}
	return nil
}

// known checks the id of a destination. What a Lookup knows is asked when a
// delivery's turn comes.
func (ds *destinations) known(id string) error {
	if id == "" || len(id) > maxID {
		return fmt.Errorf("%w: an id of %d bytes, 1 to %d are allowed", ErrUnknownDestination, len(id), maxID)
	}
	if ds.config.Lookup == nil && ds.static[id] == nil {
		return fmt.Errorf("%w %q", ErrUnknownDestination, id)
	}
	return nil
}

// limits returns the limits of one of Config.Destinations.
func (ds *destinations) limits(destination string) schedule.Limits {
	if c := ds.static[destination]; c != nil {
		return c.target.limits
	}
	return schedule.Limits{}
}

// errDisabled says that a destination is switched off.
var errDisabled = errors.New("webhook: destination is disabled")

// errInvalid is wrapped around what is wrong with a destination.
var errInvalid = errors.New("webhook: destination is not valid")

// errLookup is wrapped around the error of a Lookup that does not know.
var errLookup = errors.New("webhook: look-up failed")

// resolve returns the lane's destination as it is now, ready for attempts: l.target if it has
// not changed.
func (ds *destinations) resolve(l *lane) (*compiled, error) {
	c := l.target.Load()
	switch {
	case ds.config.Lookup != nil:
		source, err := ds.lookup(l.ID)
		if err != nil {
			return nil, err
		}
		if c != nil && c.source == source {
			break
		}
		if source.ID != l.ID {
			return nil, fmt.Errorf("%w: Lookup of %q returned the destination %q", errInvalid, l.ID, source.ID)
		}
		t, err := ds.compile(source)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errInvalid, err)
		}
		c = &compiled{source, t}
	case c == nil:
		if c = ds.static[l.ID]; c == nil {
			return nil, ErrUnknownDestination
		}
	}
	if c.target.disabled {
		return nil, errDisabled
	}
	return c, nil
}

// lookup asks for a destination within Config.Timeout.
func (ds *destinations) lookup(id string) (*Destination, error) {
	ctx, cancel := context.WithTimeout(ds.ctx, ds.config.Timeout)
	defer cancel()
	return ds.ask(ctx, id)
}

// ask calls Config.Lookup. A panic in it is not the end of the program that the forwarder is
// part of.
func (ds *destinations) ask(ctx context.Context, id string) (d *Destination, err error) {
	defer func() {
		if v := recover(); v != nil {
			d, err = nil, fmt.Errorf("%w: panic: %v", errLookup, v)
		}
	}()
	d, err = ds.config.Lookup(ctx, id)
	switch {
	case errors.Is(err, ErrUnknownDestination):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errLookup, err)
	case d == nil:
		return nil, ErrUnknownDestination
	}
	return d, nil
}

// holdOf names the error of resolve.
func holdOf(err error) Hold {
	switch {
	case errors.Is(err, errLookup):
		return HoldLookup
	case errors.Is(err, errInvalid):
		return HoldInvalid
	case errors.Is(err, errDisabled):
		return HoldDisabled
	}
	return HoldUnknown
}
