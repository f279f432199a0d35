package webhook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
)

// A Forwarder accepts events, keeps them in a Store, and delivers them to
// their destinations' endpoints while Run runs. Its methods may be called
// concurrently.
type Forwarder struct {
	*engine
	open    context.Context    // done after Shutdown: nothing more is accepted
	close   context.CancelFunc // ends open
	running atomic.Bool
}

// New returns a Forwarder, or a *ConfigError for what is wrong with c. It delivers
// nothing until Run is called.
func New(c Config) (*Forwarder, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	e, err := newEngine(c)
	if err != nil {
		return nil, err
	}
	f := &Forwarder{engine: e}
	f.open, f.close = context.WithCancel(context.Background())
	return f, nil
}

// Forward accepts calls for a destination and returns nil once they are
// durable in the queue: from then on each is delivered, or becomes a dead
// letter. All of them are accepted, or none and an error. A call is a message
// of the root package, or a JSON. Calls that switch the destination Webhooks
// off in their integrations are left out and counted, and so are those that the
// destination's Filter leaves out or its Transform fails for, and those with a messageId that the queue has seen for
// the destination.
//
// It returns a *event.CallError, or an error of the root package, for a call that is
// not valid; ErrUnknownDestination, though not for what a Lookup does not know:
// deliveries wait for a destination to become known; ErrQueueFull; ErrClosed
// after Shutdown; or what failed in the store. Calls that the queue refused may
// be made again.
//
// Forward works before, after and without Run.
func (f *Forwarder) Forward(ctx context.Context, destination string, calls ...analytics.Message) error {
	events, err := encode(calls)
	if err != nil {
		return err
	}
	return f.ForwardEvents(ctx, []string{destination}, events...)
}

// encode makes events of calls that come in now.
func encode(calls []analytics.Message) ([]event.Event, error) {
	encoder, err := event.NewEncoder(event.Envelope{ReceivedAt: time.Now()})
	if err != nil {
		return nil, err
	}
	events := make([]event.Event, len(calls))
	for i, call := range calls {
		if events[i], err = encoder.Encode(call); err != nil {
			if len(calls) > 1 {
				return nil, fmt.Errorf("call %d: %w", i, err)
			}
			return nil, err
		}
	}
	return events, nil
}

// ForwardEvents is Forward for events that were made of calls before, and for
// several destinations: they are stored in one commit.
func (f *Forwarder) ForwardEvents(ctx context.Context, destinations []string, events ...event.Event) error {
	if err := f.check(destinations); err != nil {
		return err
	}
	var routesOf [routesSpace]route
	routes, err := f.destinations.routes(ctx, destinations, routesOf[:0])
	if err != nil {
		return err
	}
	return f.forward(ctx, destinations, routes, events)
}

// Announce is ForwardEvents for audiences and deletions, which pass the filters of
// destinations and are not transformed. Package audience makes such events.
func (f *Forwarder) Announce(ctx context.Context, destinations []string, events ...event.Event) error {
	if err := f.check(destinations); err != nil {
		return err
	}
	return f.forward(ctx, destinations, nil, events)
}

// forward stores events for destinations.
func (f *Forwarder) forward(ctx context.Context, destinations []string, routes []route, events []event.Event) error {
	space := puts.Get().(*putSpace)
	ps := slices.Grow(space.puts[:0], len(destinations)*len(events))
	defer func() {
		// Neither stores nor observers keep what they were given.
		if clear(ps); cap(ps) <= maxSpace {
			space.puts = ps
			puts.Put(space)
		}
	}()
	off, err := f.eachDelivery(ctx, destinations, routes, events, func(p Put) { ps = append(ps, p) })
	if err != nil {
		return err
	}
	if _, err := f.put(ctx, ps, space); err != nil {
		return err
	}
	f.leftOut(destinations, routes, off)
	return nil
}

// leftOut counts the events that are off, and what destinations left out by their filters and
// Transforms.
func (f *Forwarder) leftOut(destinations []string, routes []route, off int) {
	f.count.off.Add(int64(off))
	for i := range routes {
		if n := int64(routes[i].filtered); n > 0 {
			f.count.filtered.Add(n)
			f.accounts.get(destinations[i]).filtered.Add(n)
		}
		if n := int64(routes[i].transformErrors); n > 0 {
			f.count.transformErrors.Add(n)
			f.accounts.get(destinations[i]).transformErrors.Add(n)
		}
	}
}

// Run delivers until ctx is done or Shutdown is called, and returns nil after
// a clean stop: nothing more is fetched, the attempts in flight end, each
// within Config.Timeout, what was fetched and not attempted goes back to the
// store, and all of it is stored. Run returns an error if the store was closed
// under it, or failed until the end. It is called once: another call returns an
// error at once. After Shutdown it returns nil.
func (f *Forwarder) Run(ctx context.Context) error {
	if !f.running.CompareAndSwap(false, true) {
		return errors.New("webhook: Run was called before")
	}
	if f.open.Err() != nil { // shut down before
		close(f.ended)
		return nil
	}
	return f.run(ctx, f.open)
}

// Shutdown ends the forwarder: Forward accepts nothing more, and Run stops as
// when its context is done. It returns when Run has, or with the context's
// error when ctx is done before; then the attempts in flight are cut off, and
// may be repeated after the next start. It may be called again, and without
// Run.
func (f *Forwarder) Shutdown(ctx context.Context) error {
	f.close()
	if !f.running.Load() {
		return nil
	}
	select {
	case <-f.ended:
		return nil
	default:
	}
	select {
	case <-f.ended:
		return nil
	case <-ctx.Done():
		f.abortAttempts(errStopped)
		return ctx.Err()
	}
}

// check returns ErrClosed after Shutdown, and an error for destinations that deliveries cannot
// be stored for.
func (f *Forwarder) check(destinations []string) error {
	if f.open.Err() != nil {
		return ErrClosed
	}
	return f.destinations.check(destinations)
}
