package webhook

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// leaseTimeouts is how long a lease lasts, as a multiple of Config.Timeout. In that
// time a delivery waits for those that are ready before it, is attempted, and is
// settled.
const leaseTimeouts = 12

const (
	// manyFull is how many destinations without room a call of Queue.Lease may go
	// through before, if it handed out little, the next one has to wait.
	manyFull = 2000
	// fullRest is how long it waits for each of them. To go through one takes about
	// a third of that, so leasing takes a quarter of a processor at most. The time
	// that a call took says less: most of what takes long has waited for a
	// processor, and those who wait for the call would wait for as long again.
	fullRest = time.Microsecond
)

// lease keeps the dispatcher supplied until ctx is done. While the store fails
// it tries again. The error is that of a store that was closed.
func (f *Forwarder) lease(ctx context.Context) error {
	l := leaser{f: f}
	timer := time.NewTimer(f.config.Poll)
	defer timer.Stop()
	var others <-chan struct{} // nil: never
	if w, ok := f.config.Queue.(Waker); ok {
		others = w.Wake()
	}
	for {
		pause, err := l.lease(ctx)
		if err != nil || ctx.Err() != nil {
			return err
		}
		timer.Reset(pause)
		select {
		case <-f.news:
		case <-others:
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// A leaser leases from the store for the dispatcher.
type leaser struct {
	f    *Forwarder
	full int // destinations without room that the latest call of Queue.Lease went through
	// buf is space for what is leased next. Lanes point into its array, so what
	// was used of that is not used again.
	buf     []Delivery
	trouble outage
}

// leaseSpace is how many deliveries the array of a leaser's buf has.
const leaseSpace = 256

// lease leases what there is room for, and returns how long to wait at most until
// it is called again. It waits itself while the store fails or is slow. The error is
// that of a store that was closed.
func (l *leaser) lease(ctx context.Context) (pause time.Duration, err error) {
	f := l.f
	held := f.dispatch.heldBytes() // first: what ends meanwhile counts twice, not never
	behind, settling := f.settler.behind(8*f.config.MaxInFlight, f.config.MaxBytesInFlight/2)
	if behind {
		// What is attempted now might not be settled before its lease expires,
		// and be attempted again. A commit wakes Run.
		return f.config.Poll, nil
	}
	n := f.dispatch.capacity(time.Now(), held+settling)
	if n == 0 {
		return f.config.Poll, nil
	}
	now := time.Now()
	count, next, err := l.take(ctx, n, now)
	switch {
	case ctx.Err() != nil:
		return 0, nil
	case errors.Is(err, ErrClosed):
		return 0, fmt.Errorf("webhook: leasing: %w", err)
	case err != nil:
		if l.trouble.failed() {
			f.config.Logger.Error("webhook: the store fails, nothing is delivered", "error", err)
		}
		l.trouble.wait(ctx)
		return 0, nil
	}
	if l.trouble.over() {
		f.config.Logger.Info("webhook: the store works again")
	}
	f.dispatch.sense()
	if l.full > max(manyFull, 50*count) {
		// What becomes due meanwhile is for the next lease.
		rest := time.NewTimer(min(time.Duration(l.full)*fullRest, 50*time.Millisecond))
		defer rest.Stop()
		select {
		case <-rest.C:
		case <-ctx.Done():
			return 0, nil
		}
	}
	pause = f.config.Poll
	for _, at := range [...]time.Time{next, f.dispatch.roomAgain()} {
		if !at.IsZero() {
			pause = min(pause, max(at.Sub(now), time.Millisecond))
		}
	}
	return pause, nil
}

// take leases up to n deliveries and hands them to the dispatcher. It returns how
// many there were, and what Queue.Lease says of the time of the next lease.
func (l *leaser) take(ctx context.Context, n int, now time.Time) (count int, next time.Time, err error) {
	f := l.f
	if cap(l.buf) < leaseSpace/8 {
		l.buf = make([]Delivery, 0, leaseSpace)
	}
	until := now.Add(leaseTimeouts * f.config.Timeout)
	l.full = 0
	ds, next, err := f.config.Queue.Lease(ctx, LeaseRequest{
		Max:   n,
		Until: until,
		Room: func(destination string) int {
			room := f.dispatch.room(destination, now)
			if room == 0 {
				l.full++
			}
			return room
		},
	}, l.buf)
	if len(ds) == 0 {
		return 0, next, err
	}
	back, lapsed := f.dispatch.add(ds, n, now, until)
	for _, d := range back {
		f.settler.giveBack(d)
	}
	f.lapse(lapsed, now)
	l.buf = ds[len(ds):len(ds):cap(ds)]
	return len(ds), next, err
}

// lapse buries deliveries that have waited too long, and has Run look for more of
// them.
func (f *Forwarder) lapse(ds []*Delivery, now time.Time) {
	for _, d := range ds {
		f.settler.add(bury(d, ReasonExpired, now), f.accounts.get(d.Destination))
		*d = Delivery{}
	}
	if len(ds) > 0 {
		f.wake()
	}
}
