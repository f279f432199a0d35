package webhook

import "time"

// idleLane is how long a lane is kept when there is nothing to do for it.
const idleLane = time.Minute

// lane returns the lane of a destination, which is made if need be.
func (d *dispatcher) lane(destination string, now time.Time) *lane {
	l := d.lanes[destination]
	if l == nil {
		l = &lane{id: destination, limit: 1, touched: now}
		l.stopped, l.paused = d.paused[destination]
		if t := d.known(destination); t != nil {
			l.limit = t.limit
			l.rate.interval, l.rate.burst = t.interval, t.burst
		}
		l.slots = min(firstSlots, l.limit)
		d.lanes[destination] = l
		d.touched.use(l)
	}
	return l
}

// forget drops the lanes for which there was nothing to do for a while. They are
// made anew when there is.
func (d *dispatcher) forget(now time.Time) {
	for l := d.touched.first; l != nil && now.Sub(l.touched) >= idleLane; l = d.touched.first {
		if l.active+l.ready.len() > 0 || !l.rate.idle(now) {
			l.touched = now
			d.touched.use(l)
			continue
		}
		d.touched.remove(l)
		delete(d.lanes, l.id)
	}
}

// A laneLoad is what is leased of one destination.
type laneLoad struct {
	destination   string
	active, ready int
}

// loads returns the lanes that have anything.
func (d *dispatcher) loads() []laneLoad {
	d.mu.Lock()
	defer d.mu.Unlock()
	var ls []laneLoad
	for _, l := range d.lanes {
		if l.active+l.ready.len() > 0 {
			ls = append(ls, laneLoad{l.id, l.active, l.ready.len()})
		}
	}
	return ls
}

// lanesByUse is a list of lanes, the one that was touched last at the end.
type lanesByUse struct {
	first, last *lane
}

// use moves l to the end, or adds it there.
func (u *lanesByUse) use(l *lane) {
	if u.last == l {
		return
	}
	u.remove(l)
	l.prev = u.last
	if u.last == nil {
		u.first = l
	} else {
		u.last.next = l
	}
	u.last = l
}

// remove takes l out, if it is in.
func (u *lanesByUse) remove(l *lane) {
	if l.prev != nil {
		l.prev.next = l.next
	} else if u.first == l {
		u.first = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	} else if u.last == l {
		u.last = l.prev
	}
	l.prev, l.next = nil, nil
}
