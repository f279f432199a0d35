package schedule

import "time"

// lanes holds the lanes of the destinations that have deliveries, or had some lately.
type lanes struct {
	config  *Config
	byID    map[string]*Lane
	touched list             // all lanes, the most recently used one last
	paused  map[string]Pause // by destination
}

// of returns the lane of a destination, and creates it if there is none.
func (ls *lanes) of(destination string, now time.Time) *Lane {
	l := ls.byID[destination]
	if l == nil {
		l = &Lane{ID: destination, limit: 1, touched: now}
		l.Data = ls.config.NewData(l)
		if holds(ls.paused, destination) {
			l.stopped, l.paused = ls.paused[destination].Since, true
		}
		if c := ls.config.Limits(destination); c.Slots > 0 {
			l.setLimits(c, now)
		}
		l.slots = min(firstSlots, l.limit)
		ls.byID[destination] = l
		ls.touched.push(l)
	}
	return l
}

// touch records that l is used now. If l was idle for longer than laneRest, touch reduces its slots
// to firstSlots.
func (ls *lanes) touch(l *Lane, now time.Time) {
	if l.active == 0 && now.Sub(l.touched) > laneRest {
		l.slots = min(l.slots, firstSlots)
	}
	l.touched = now
	if ls.touched.last != l {
		ls.touched.remove(l)
		ls.touched.push(l)
	}
}

// forget drops the lanes that have no deliveries and have been idle for idleLane.
func (ls *lanes) forget(now time.Time) {
	for l := ls.touched.first; l != nil && now.Sub(l.touched) >= idleLane; l = ls.touched.first {
		ls.touched.remove(l)
		waits := !l.fresh.due.IsZero() || !l.retry.due.IsZero() || l.fetching
		if waits || l.holds() > 0 || l.rate.full.After(now) {
			l.touched = now
			ls.touched.push(l)
			continue
		}
		delete(ls.byID, l.ID)
	}
}
