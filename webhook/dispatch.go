package webhook

import (
	"sync"
	"time"
)

// A dispatcher hands leased deliveries to workers: round robin over the lanes
// that have any, each within its limit. It starts a worker when there is work
// and none is idle.
type dispatcher struct {
	maxActive int
	limit     func(destination string) int // of a new lane
	start     func()                       // starts a worker
	wake      func()                       // asks for another lease

	mu      sync.Mutex // guards what follows, and the lanes
	work    *sync.Cond // there is work, or closed
	lanes   map[string]*lane
	run     fifo[*lane] // lanes with something ready and a slot
	active  int         // deliveries being attempted
	ready   int         // deliveries waiting for a worker
	workers int
	idle    int  // workers that wait, and have not been signalled
	full    bool // the store may have more than the last lease asked for
	closed  bool
}

const (
	// maxIdle is how many workers are kept when there is nothing to do.
	maxIdle = 64
	// maxIdleLanes is how many lanes are kept when there is nothing to do
	// for them.
	maxIdleLanes = 16 << 10
)

func newDispatcher(maxActive int, limit func(string) int, start, wake func()) *dispatcher {
	d := &dispatcher{maxActive: maxActive, limit: limit, start: start, wake: wake, lanes: make(map[string]*lane)}
	d.work = sync.NewCond(&d.mu)
	return d
}

// capacity is how many more deliveries may be leased.
func (d *dispatcher) capacity() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := max(2*d.maxActive-d.active-d.ready, 0)
	d.full = n == 0
	return n
}

// room is how many more deliveries of a destination may be leased.
func (d *dispatcher) room(destination string, now time.Time) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lane(destination)
	l.given = l.room(now)
	l.more = l.given == 0
	return l.given
}

func (d *dispatcher) lane(destination string) *lane {
	l := d.lanes[destination]
	if l == nil {
		n := d.limit(destination)
		l = &lane{id: destination, limit: n, now: n}
		d.lanes[destination] = l
	}
	return l
}

// add takes over leased deliveries; asked is the Max of their lease.
func (d *dispatcher) add(ds []Delivery, asked int, until time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = len(ds) == asked
	d.ready += len(ds)
	for i := range ds {
		l := d.lane(ds[i].Destination)
		l.given--
		l.more = l.given <= 0
		l.ready.push(leased{&ds[i], until})
		d.enqueue(l)
	}
}

// enqueue puts l into the run queue if it has work and a slot, and sees that
// a worker comes for it.
func (d *dispatcher) enqueue(l *lane) {
	if l.queued || l.ready.len() == 0 || l.active >= l.now {
		return
	}
	l.queued = true
	d.run.push(l)
	switch {
	case d.idle > 0:
		d.idle--
		d.work.Signal()
	case d.workers < d.maxActive && !d.closed:
		d.workers++
		d.start()
	}
}

// next gives back the slot of prev, if any, and returns the next delivery to
// attempt, with its lane. It waits for one; it returns nil when the worker is
// to end.
func (d *dispatcher) next(prev *lane, p pace) (*lane, leased) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if prev != nil {
		d.release(prev, p)
	}
	for d.run.len() == 0 || d.closed {
		if d.closed || d.idle >= maxIdle {
			d.workers--
			return nil, leased{}
		}
		d.idle++
		d.work.Wait() // who signals takes it off idle
	}
	l := d.run.pop()
	l.queued = false
	v := l.ready.pop()
	l.active++
	d.active++
	d.ready--
	d.enqueue(l)
	if l.more && l.ready.len() <= l.now/2 || d.full && d.ready <= d.maxActive/2 {
		l.more, d.full = false, false
		d.wake()
	}
	return l, v
}

func (d *dispatcher) release(l *lane, p pace) {
	l.active--
	d.active--
	l.adapt(p)
	if l.ready.len() > 0 {
		d.enqueue(l)
		return
	}
	if l.more {
		l.more = false
		d.wake()
	}
	if l.active == 0 && !l.probing && len(d.lanes) > maxIdleLanes {
		delete(d.lanes, l.id) // made again when it is needed
	}
}

// park leaves the lane alone for a time, and returns that and what the lane has
// ready. A look-up that failed may succeed soon: the first of them costs a
// second, and each further one twice the time before, up to parkFor.
func (d *dispatcher) park(l *lane, now time.Time, blip bool) ([]leased, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	wait := parkFor
	if blip {
		wait = min(time.Second<<min(l.blips, 10), parkFor)
	}
	if !l.probing || !now.Before(l.parked) { // the first of those in flight
		l.blips++
		l.parked = now.Add(wait)
	}
	l.probing = true
	l.target.Store(nil) // so that who finds it usable says so
	time.AfterFunc(wait, d.wake)
	return d.take(l), wait
}

// use makes c the target of a lane, and ends its parking.
func (d *dispatcher) use(l *lane, c *compiled) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.now == l.limit || l.now > c.target.limit {
		l.now = c.target.limit
	}
	l.limit = c.target.limit
	l.target.Store(c)
	l.probing, l.blips = false, 0
	d.enqueue(l)
	d.wake()
}

// take removes and returns what l has ready.
func (d *dispatcher) take(l *lane) []leased {
	var vs []leased
	for l.ready.len() > 0 {
		vs = append(vs, l.ready.pop())
	}
	d.ready -= len(vs)
	if l.queued {
		l.queued = false
		for range d.run.len() { // turns the ring once, without l
			if other := d.run.pop(); other != l {
				d.run.push(other)
			}
		}
	}
	return vs
}

// close ends the workers, each after its delivery.
func (d *dispatcher) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.idle = 0
	d.work.Broadcast()
}

// drain removes and returns everything that is ready.
func (d *dispatcher) drain() []leased {
	d.mu.Lock()
	defer d.mu.Unlock()
	var vs []leased
	for _, l := range d.lanes {
		vs = append(vs, d.take(l)...)
	}
	return vs
}
