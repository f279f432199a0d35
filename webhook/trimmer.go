package webhook

import (
	"context"
	"errors"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A trimmer turns into dead letters what exceeds Config.BacklogMaxBytes or Config.BacklogMaxAge.
// Several forwarders may do so on one store: the one with the lease of a destination does. One that
// hangs for longer than the lease lasts may bury up to a chunk more than needed.
type trimmer struct {
	config   *Config
	schedule *scheduler
	settler  *settler
	sweeper  *sweeper
}

const (
	trimInterval = 10 * time.Second // between two looks with BacklogMaxBytes; otherwise an hour
	trimBytes    = 4 << 20          // bodies in memory
)

// run calls trim at intervals until ctx is done. A look never takes more than a fiftieth of the time.
func (t *trimmer) run(ctx context.Context) {
	interval := trimInterval
	if t.config.BacklogMaxBytes == 0 {
		if interval = time.Hour; t.config.BacklogMaxAge == Unlimited {
			return
		}
	}
	for wait := interval; ; {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		began := time.Now()
		n, err := t.trim(ctx)
		if n > 0 { // the dead letters have bounds, too
			err = errors.Join(err, t.sweeper.sweep(ctx))
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
			t.config.Logger.Error("webhook: the store fails; what waits beyond BacklogMaxBytes or BacklogMaxAge is kept for now", "error", err)
		}
		if wait = interval; n > 0 {
			wait = trimInterval // others may have claimed some for the time of the look
		}
		wait = max(wait, 50*time.Since(began))
	}
}

// trim looks at all destinations for which deliveries wait. It returns how many it has buried.
func (t *trimmer) trim(ctx context.Context) (total int, err error) {
	var oldest time.Time // deliveries that wait since before it have waited for too long
	if t.config.BacklogMaxAge != Unlimited {
		oldest = t.config.now().Add(-t.config.BacklogMaxAge)
	}
	for c, err := range t.config.Store.CountByDestination(ctx) {
		if err != nil {
			return total, err
		}
		x := excessive{trimmer: t, destination: c.Destination, before: oldest}
		if !x.measure(&c) {
			continue
		}
		err = x.alone(ctx)
		if total += x.buried; x.buried > 0 {
			t.config.Logger.Warn("webhook: what waits for a destination exceeded BacklogMaxBytes or BacklogMaxAge; the oldest of it is dead letters now",
				"destination", c.Destination, "count", x.buried)
		}
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// excessive is what exceeds the bounds for one destination.
type excessive struct {
	trimmer     *trimmer
	destination string
	lease       *lease
	bytes       int64     // still to bury, as the store counts them
	each        int64     // bytes of a delivery in the store, on average
	before      time.Time // deliveries that wait since before it are buried, too
	buried      int
}

// measure takes the excess from the counts of the destination, and returns false if there is none.
func (x *excessive) measure(c *store.DestinationCounts) bool {
	x.bytes, x.each = 0, c.Bytes/int64(max(c.Waiting, 1))+1 // rounded up, so that no delivery too many is buried
	if most := x.trimmer.config.BacklogMaxBytes; most > 0 {
		x.bytes = max(c.Bytes-most, 0)
	}
	return x.bytes > 0 || !c.Oldest.IsZero() && c.Oldest.Before(x.before)
}

// alone calls bury while this forwarder has the lease. Another one may have buried some before, so
// alone counts again.
func (x *excessive) alone(ctx context.Context) (err error) {
	if x.lease, err = takeLease(ctx, x.trimmer.config.Store, x.destination); x.lease == nil {
		return err
	}
	defer x.lease.end(ctx)
	for c, err := range x.trimmer.config.Store.CountByDestination(ctx, x.destination) {
		if err != nil {
			return err
		}
		if x.measure(&c) {
			return x.bury(ctx)
		}
	}
	return nil
}

// bury buries due deliveries, and then deliveries whose next attempt is yet to come, until the rest
// is within the bounds.
func (x *excessive) bury(ctx context.Context) error {
	for first := true; ; first = false {
		was := x.buried
		next, err := x.queue(ctx, true)
		if err == nil {
			_, err = x.queue(ctx, false)
		}
		if err != nil || x.bytes <= 0 || next.IsZero() || !first && x.buried == was {
			return err // in the last case, others have claimed the deliveries that are due now
		}
		if err := x.hasten(ctx); err != nil {
			return err
		}
	}
}

// queue buries the due deliveries of one queue, the earliest first, until the rest is within the
// bounds. It returns the Due of the first delivery that is left in the queue, or zero.
func (x *excessive) queue(ctx context.Context, retries bool) (next time.Time, err error) {
	wants := []store.Want{{Destination: x.destination, Retries: retries, Max: chunk}}
	t := x.trimmer
	for {
		if held, err := x.lease.renew(ctx); !held {
			x.bytes = 0 // another forwarder goes on
			return next, err
		}
		ds, err := t.config.Store.Fetch(ctx, wants, trimBytes, nil)
		if err != nil {
			return next, err
		}
		now, bytes, n := t.config.now(), int64(0), 0
		ss := make([]store.Settlement, len(ds))
		for i := range ds {
			d := &ds[i]
			bytes += int64(len(d.Body))
			since := d.Due
			if d.Expires.IsZero() {
				since = d.Accepted // Due may be later, if it was behind another one
			}
			if x.bytes <= 0 && !since.Before(x.before) {
				ss[i] = store.Settlement{Verdict: store.Return, Delivery: *d}
				continue
			}
			ss[i] = bury(d, ReasonBacklog, now)
			x.bytes -= max(d.Size(), x.each)
			n++
		}
		t.schedule.Claimed(bytes)
		settled, err := t.config.Store.Settle(ctx, ss)
		t.settler.stored(ss[:settled], err != nil)
		if settled < len(ss) {
			t.settler.addAll(ss[settled:]) // which tries again
		}
		if x.buried += n; err != nil || n == 0 {
			return wants[0].Next, err
		}
		if n < len(ds) { // only what was behind another may be left to bury
			wants[0].Max = 2 * n
		}
	}
}

// hasten makes some of the oldest retries due now, so that queue buries them.
func (x *excessive) hasten(ctx context.Context) error {
	q := Query{Destinations: []string{x.destination}, States: []State{StateWaiting}, Oldest: true}
	page, _, err := x.trimmer.config.Store.List(ctx, q, 0, chunk)
	if err != nil {
		return err
	}
	refs := make([]Ref, len(page))
	for i := range page {
		refs[i] = page[i].Ref()
	}
	_, _, err = x.trimmer.config.Store.Hasten(ctx, refs...)
	return err
}
