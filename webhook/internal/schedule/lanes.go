package schedule

import "time"

// lanes has the lanes of all destinations that deliveries wait for.
type lanes struct {
	config  *Config
	byID    map[string]*Lane
	touched list             // all lanes, the one that was used last at the end
	paused  map[string]Pause // by destination
}

// of returns the lane of a destination. It makes one if there is none.
func (ls *lanes) of(destination string, now time.Time) *Lane {
	l := ls.byID[destination]
	if l == nil {
		l = &Lane{ID: destination, limit: 1, touched: now}
		l.Data = ls.config.NewData(l)
		if holds(ls.paused, destination) {
			l.stopped, l.paused = ls.paused[destination].Since, true
		}
		if c := ls.config.Limits(destination); c.Slots > 0 {
			l.slots = c.Slots
			l.setLimits(c, now)
		}
		l.slots = min(firstSlots, l.limit)
		ls.byID[destination] = l
		ls.touched.push(l)
	}
	return l
}

// touch notes that l is used.
func (ls *lanes) touch(l *Lane, now time.Time) {
	if l.active == 0 && now.Sub(l.touched) > laneRest {
		l.slots, l.answers = min(l.slots, firstSlots), 0
	}
	l.touched = now
	if ls.touched.last != l {
		ls.touched.remove(l)
		ls.touched.push(l)
	}
}

// forget drops the lanes that no delivery has waited for during the time idleLane.
func (ls *lanes) forget(now time.Time) {
	for l := ls.touched.first; l != nil && now.Sub(l.touched) >= idleLane; l = ls.touched.first {
		ls.touched.remove(l)
		waits := !l.fresh.due.IsZero() || !l.retry.due.IsZero() || l.fetching
		if waits || l.holds() > 0 || !l.rate.idle(now) {
			l.touched = now
			ls.touched.push(l)
			continue
		}
		delete(ls.byID, l.ID)
	}
}
