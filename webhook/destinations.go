package webhook

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// destinations finds destinations by their ids, and compiles them into targets.
type destinations struct {
	config    *Config
	static    map[string]*target // from Config.Destinations; does not change after New
	filtering bool               // some destination may have filters or a Transform
	ctx       context.Context    // parent of the contexts that Config.Lookup gets
}

// add compiles the destinations of a Config, and makes g trust the addresses in their URLs.
func (ds *destinations) add(all []Destination, g *guard) error {
	for i := range all {
		d := all[i]
		d.Filter = Filter{Include: slices.Clone(d.Filter.Include), Exclude: slices.Clone(d.Filter.Exclude)}
		field := fmt.Sprintf("Destinations[%d]", i)
		t, err := ds.compile(&d)
		if err != nil {
			return under(field, err)
		}
		if ds.static[d.ID] != nil {
			return refuse(field+".ID", "%q is given twice", d.ID)
		}
		ds.static[d.ID] = t
		ds.filtering = ds.filtering || d.filters()
		for _, e := range t.endpoints {
			g.trust(e.url)
		}
	}
	return nil
}

// compile checks d and returns its target.
func (ds *destinations) compile(d *Destination) (*target, error) {
	t, wrong := compile(d, ds.config)
	return t, wrong.join()
}

// known returns an error if Forward refuses events for a destination. It does not call
// Config.Lookup: a worker calls Lookup before each attempt, and so finds unknown destinations.
func (ds *destinations) known(id string) error {
	if id == "" || len(id) > maxID {
		return fmt.Errorf("%w: an id of %d bytes, 1 to %d are allowed", ErrUnknownDestination, len(id), maxID)
	}
	if ds.config.Lookup == nil && ds.static[id] == nil {
		return fmt.Errorf("%w %q", ErrUnknownDestination, id)
	}
	return nil
}

// resolve returns the target for the present settings of the destination. If the settings have not
// changed, that is l.target. If the destination cannot be used, resolve returns an error, and the
// Hold of its deliveries.
func (ds *destinations) resolve(l *lane) (*target, Hold, error) {
	t := ds.static[l.ID]
	if ds.config.Lookup != nil {
		ctx, cancel := context.WithTimeout(ds.ctx, ds.config.Timeout)
		defer cancel()
		d, hold, err := ds.ask(ctx, l.ID)
		if err != nil {
			return nil, hold, err
		}
		if t = l.target.Load(); t == nil || t.source != d {
			if d.ID != l.ID {
				return nil, HoldInvalid, fmt.Errorf("webhook: Lookup of %q returned the destination %q", l.ID, d.ID)
			}
			if t, err = ds.compile(d); err != nil {
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

// ask calls Config.Lookup. With an error, it returns the Hold that this error stands for.
func (ds *destinations) ask(ctx context.Context, id string) (d *Destination, hold Hold, err error) {
	err = noPanic("Lookup", func() (err error) {
		d, err = ds.config.Lookup(ctx, id)
		return err
	})
	switch {
	case errors.Is(err, ErrUnknownDestination):
		return nil, HoldUnknown, err
	case err != nil:
		return nil, HoldLookup, fmt.Errorf("webhook: look-up failed: %w", err)
	case d == nil:
		return nil, HoldUnknown, ErrUnknownDestination
	}
	return d, "", nil
}
