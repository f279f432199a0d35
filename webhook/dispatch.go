package webhook

import (
	"sync"
	"time"
)

// A dispatcher hands leased deliveries to workers: round robin over the lanes
// that have any, each within its limit. It starts a worker when there is work
// and none is idle.
//
// share.go says how it divides the slots, brake.go how it holds backlogs back.
//
// What is leased is bounded in bytes too: all by maxBytes, and each lane, while
// several are busy, by its share of it.
type dispatcher struct {
	maxActive int
	maxBytes  int64
	lapse     time.Duration                    // see breaker
	known     func(destination string) *target // of a new lane; nil: to be looked up
	start     func()                           // starts a worker
	wake      func()                           // asks for another lease

	mu      sync.Mutex // guards what follows, and the lanes
	work    *sync.Cond // there is work, or closed
	lanes   map[string]*lane
	touched lanesByUse
	paused  map[string]bool
	run     fifo[*lane] // lanes with something ready and a slot
	brake   brake
	braked  fifo[*lane]    // as run, but they wait for the brake
	looked  *time.Timer    // looks at the brake again, while braked is not empty
	active  int            // deliveries being attempted
	ready   int            // deliveries waiting for a worker
	held    [standings]int // of both, by the standing of their lanes
	busy    int            // lanes that have any of them
	bytes   int64          // of the bodies of both
	clock   time.Time      // of the latest lease
	largest int64          // about the size of the largest of late
	workers int
	idle    int       // workers that wait, and have not been signalled
	full    bool      // the store may have more than the last lease asked for
	starved bool      // a lane could have had more room but for its standing
	again   time.Time // the earliest time at which a lane without room will have some; zero: none
	closed  bool
}

// maxIdle is how many workers are kept when there is nothing to do.
const maxIdle = 64

func newDispatcher(maxActive int, maxBytes int64, lapse time.Duration, known func(string) *target, start, wake func()) *dispatcher {
	d := &dispatcher{
		maxActive: maxActive,
		maxBytes:  maxBytes,
		lapse:     lapse,
		known:     known,
		start:     start,
		wake:      wake,
		lanes:     make(map[string]*lane),
		paused:    make(map[string]bool),
	}
	d.work = sync.NewCond(&d.mu)
	d.brake.bound, d.brake.most = maxActive, maxActive
	return d
}

// capacity is how many more deliveries may be leased. It begins a lease.
func (d *dispatcher) capacity(now time.Time) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget(now)
	d.clock = now
	d.again = time.Time{}
	n := max(2*d.maxActive-d.active-d.ready, 0)
	if left := d.maxBytes - d.bytes; left <= 0 {
		n = 0
	} else if d.largest > 0 {
		n = int(min(int64(n), max(left/d.largest, 1)))
	}
	d.full = n == 0
	return n
}

// room is how many more deliveries of a destination may be leased.
func (d *dispatcher) room(destination string, now time.Time) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lane(destination, now)
	if l.active == 0 && now.Sub(l.touched) > lanePause {
		l.slots, l.answers = min(l.slots, firstSlots), 0
	}
	l.touched = now
	d.touched.use(l)
	n, again := d.roomOf(l, now)
	l.answers, l.lapsing = 0, false
	if again.IsZero() {
		l.more = n == 0
	} else {
		l.more = false // it has to wait
		if d.again.IsZero() || again.Before(d.again) {
			d.again = again
		}
	}
	l.given = n
	return n
}

// roomAgain returns when a lane that had no room in the latest lease will have
// some, whatever becomes of what was leased; zero if there is none.
func (d *dispatcher) roomAgain() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.again
}

// add takes over leased deliveries; asked is the Max of their lease. It returns
// those that are to go back, because they have to wait, and those that have
// waited too long.
func (d *dispatcher) add(ds []Delivery, asked int, now, until time.Time) (back, lapsed []*Delivery) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = len(ds) == asked
	for i := range ds {
		l := d.lane(ds[i].Destination, now)
		switch {
		case l.paused:
			back = append(back, &ds[i])
			continue
		case l.breaker.lapsed(&ds[i], now, d.lapse):
			l.lapsing = true // there may be more
			lapsed = append(lapsed, &ds[i])
			continue
		case !l.breaker.admits(&ds[i], now), l.breaker.open && l.active+l.ready.len() > 0:
			back = append(back, &ds[i])
			continue
		}
		d.brake.note(l, &ds[i], now)
		l.given--
		l.more = l.given <= 0
		size := int64(len(ds[i].Body))
		l.largest = max(size, l.largest-l.largest/16)
		d.largest = max(size, d.largest-d.largest/1024)
		if l.active+l.ready.len() == 0 {
			d.busy++
		}
		d.ready++
		d.held[l.standing]++
		d.bytes += size
		l.ready.push(leased{&ds[i], until, size})
		d.enqueue(l)
	}
	return back, lapsed
}

// enqueue puts l into the run queue if it has work and a slot, and sees that
// a worker comes for it.
func (d *dispatcher) enqueue(l *lane) {
	if l.queued || l.ready.len() == 0 || l.active >= d.window(l) {
		return
	}
	l.queued = true
	if d.stopped(l) {
		return
	}
	d.run.push(l)
	d.summon()
}

// summon sees that a worker comes for a lane of the run queue.
func (d *dispatcher) summon() {
	switch {
	case d.idle > 0:
		d.idle--
		d.work.Signal()
	case d.workers < d.maxActive && !d.closed:
		d.workers++
		d.start()
	}
}

// A turn is a worker's with one delivery of a lane.
type turn struct {
	lane *lane // nil: there is none
	leased
	begun int64 // what the brake is to be told at its end
}

// next gives back the slot of prev, if any, and returns the next delivery to
// attempt. It waits for one; it returns no turn when the worker is to end.
func (d *dispatcher) next(prev turn, p pace) turn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if prev.lane != nil {
		d.release(prev, p)
	}
	l := d.pick()
	for l == nil || d.closed {
		if d.closed || d.idle >= maxIdle {
			d.workers--
			return turn{}
		}
		d.idle++
		d.work.Wait() // who signals takes it off idle
		l = d.pick()
	}
	l.queued = false
	v := l.ready.pop()
	l.active++
	d.active++
	d.ready--
	l.trial = l.breaker.open
	if l.rate.interval > 0 {
		l.rate.take(time.Now())
	}
	d.enqueue(l)
	if l.more && l.ready.len() <= l.slots/2 || d.full && d.ready <= d.maxActive/2 {
		l.more, d.full = false, false
		d.wake()
	}
	t := turn{lane: l, leased: v}
	if l.behind && d.brake.lane != nil {
		t.begun = d.brake.begin(time.Now())
	}
	return t
}

// pick takes the lane whose turn it is out of the run queue; nil if there is
// none.
func (d *dispatcher) pick() *lane {
	for d.run.len() > 0 {
		if l := d.run.pop(); !d.stopped(l) {
			return l
		}
	}
	return nil
}

// release gives back the slot of t. What the failing paces mean for the lane is
// fail's to say.
func (d *dispatcher) release(t turn, p pace) {
	l := t.lane
	if p == answered {
		l.answer(l.active, d.clock)
		d.stand(l, proven)
	}
	l.active--
	d.active--
	d.let(l, 1, t.size)
	if d.brake.end(t.begun); d.braked.len() > 0 && d.brake.free(time.Now()) {
		d.run.push(d.braked.pop()) // who calls comes for it
	}
	if l.ready.len() > 0 {
		d.enqueue(l)
		return
	}
	if l.more || d.full && (d.ready == 0 || d.bytes <= d.maxBytes/2) {
		l.more, d.full = false, false
		d.wake()
	}
}

// let counts n deliveries of l out, of size bytes.
func (d *dispatcher) let(l *lane, n int, size int64) {
	d.held[l.standing] -= n
	d.bytes -= size
	if n > 0 && l.active+l.ready.len() == 0 {
		d.busy--
	}
	if n > 0 && d.starved && l.standing != proven {
		d.starved = false
		d.wake()
	}
}

// stand changes the standing of l.
func (d *dispatcher) stand(l *lane, s standing) {
	if l.standing == s {
		return
	}
	n := l.active + l.ready.len()
	d.held[l.standing] -= n
	d.held[s] += n
	l.standing = s
	if d.starved && s != doubtful {
		d.starved = false
		d.wake()
	}
}

// fail notes that an attempt of l failed in a way that is not the delivery's
// own, and what becomes of the delivery. If the lane is to be left alone from
// now on, it returns true, and what the lane has ready.
func (d *dispatcher) fail(l *lane, p pace, s *Settlement, now time.Time) (back []leased, opened bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	opened = l.fail(p, s, now)
	if l.breaker.doubtful() {
		d.stand(l, doubtful)
	}
	if opened {
		back = d.take(l)
	}
	return back, opened
}

// park leaves the lane alone for a time, and returns that and what the lane has
// ready. A look-up that failed may succeed soon: the first of them costs a
// second, and each further one twice the time before, up to parkFor.
func (d *dispatcher) park(l *lane, now time.Time, why Hold) ([]leased, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	wait := parkFor
	if why == HoldLookup {
		wait = min(time.Second<<min(l.blips, 10), parkFor)
	}
	if l.hold == "" || !now.Before(l.parked) { // the first of those in flight
		l.blips++
		l.parked = now.Add(wait)
	}
	l.stop(now)
	l.hold = why
	l.target.Store(nil) // so that who finds it usable says so
	d.stand(l, doubtful)
	return d.take(l), wait
}

// use makes c the target of a lane, and ends its parking.
func (d *dispatcher) use(l *lane, c *compiled, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.target.Load() == nil {
		l.slots = firstSlots
	}
	l.limit = c.target.limit
	l.slots = min(l.slots, l.limit)
	l.rate.set(c.target.interval, c.target.burst, now)
	l.target.Store(c)
	if l.hold != "" {
		l.hold, l.blips = "", 0
		l.resume(now)
		d.stand(l, unproven)
	}
	d.enqueue(l)
	d.wake()
}

// take removes and returns what l has ready.
func (d *dispatcher) take(l *lane) []leased {
	var vs []leased
	var size int64
	for l.ready.len() > 0 {
		v := l.ready.pop()
		size += v.size
		vs = append(vs, v)
	}
	d.ready -= len(vs)
	d.let(l, len(vs), size)
	if l.queued {
		l.queued = false
		d.run.remove(l)
		d.braked.remove(l)
	}
	return vs
}

// load returns how many deliveries are attempted and how many are ready.
func (d *dispatcher) load() (active, ready int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.active, d.ready
}

// close ends the workers, each after its delivery.
func (d *dispatcher) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.idle = 0
	if d.looked != nil {
		d.looked.Stop()
	}
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
