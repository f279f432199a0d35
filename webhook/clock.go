package webhook

import "time"

// A clockWatch notices that the clock of the store was set back. Waiting deliveries would then not
// be due until the clock is right again.
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
