package webhook

import (
	"context"
	"time"
)

// A clockWatch notices that the clock of the store was set back. Then waiting deliveries would not be
// due until it is right again.
type clockWatch struct {
	wall, at time.Time // the clock of the store, and that of the process, at the latest look
}

const setBack = time.Minute // a clock that is set back by less delays no delivery for long

// look reports whether the clock was set back since the previous look.
func (c *clockWatch) look(wall time.Time) bool {
	at := time.Now()
	back := !c.at.IsZero() && c.wall.Add(at.Sub(c.at)).Sub(wall.Round(0)) >= setBack // Round drops the monotonic clock
	c.wall, c.at = wall.Round(0), at
	return back
}

// hasten makes all waiting deliveries due now. It does so again a minute later, for those that were
// claimed at first.
func (r *fetcher) hasten(ctx context.Context) {
	total := 0
	pass := func() error {
		for c, err := range r.config.Store.CountByDestination(ctx) {
			n := 0
			if err == nil {
				n, _, err = r.config.Store.Change(ctx, WaitingFilter{Destination: c.Destination}, DueNow)
			}
			if total += n; err != nil {
				return err
			}
		}
		return nil
	}
	for passes := 0; passes < 2; {
		wait := longestPause
		if pass() == nil {
			passes++
			wait = time.Minute
		}
		if passes == 1 && total > 0 {
			r.config.Logger.Warn("webhook: the clock was set back; deliveries that would have waited until it is right again are due now", "count", total)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}
