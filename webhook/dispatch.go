package webhook

import (
	"sync"
	"time"
)

// A dispatcher hands leased deliveries to workers: round robin over the lanes
// that have any, each within its limit. It starts a worker when there is work
// and none is idle.
//
// A slot is the right to one attempt at a time: there are maxActive of them.
// share.go says how they are divided between lanes, brake.go how backlogs are held
// back.
//
// What is leased is bounded in bytes too: in all by maxBytes, and in each lane,
// while several are busy, by its share of that.
type dispatcher struct {
	maxActive int
	maxBytes  int64
	lapse     time.Duration                    // see breaker.lapsed
	known     func(destination string) *target // of a new lane; nil if it has to be looked up
	start     func()                           // starts a worker
	wake      func()                           // asks for another lease

	mu      sync.Mutex // guards what follows, and the lanes
	work    *sync.Cond // there is work, or closed
	lanes   map[string]*lane
	touched lanesByUse
	paused  map[string]time.Time // since when
	pauses  int                  // counts the calls of pause and unpause

	run    fifo[*lane] // lanes that have something ready, and may attempt it
	brake  brake
	braked fifo[*lane] // lanes that would be in run, but wait for the brake

	brakeTimer *time.Timer // calls unbrake, while braked is not empty

	active  int            // deliveries being attempted
	ready   int            // deliveries waiting for a worker
	held    [standings]int // active and ready, by the standing of their lanes
	offered [standings]int // room that the lease going on was told of, likewise
	busy    int            // lanes with anything active or ready
	bytes   int64          // of the bodies of what is active or ready
	clock   time.Time      // when the latest lease began
	largest int64          // about the size of the largest recent body
	workers int
	idle    int       // workers that wait, and have not been signalled
	full    bool      // the store may have more than the last lease asked for
	starved bool      // the standing of a lane has kept room from it
	again   time.Time // the earliest time at which a lane without room will have some; zero if there is none
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
		paused:    make(map[string]time.Time),
	}
	d.work = sync.NewCond(&d.mu)
	d.brake.bound, d.brake.most = maxActive, maxActive
	return d
}

// heldBytes returns the bytes of the bodies of what is active or ready.
func (d *dispatcher) heldBytes() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bytes
}

// capacity returns how many more deliveries may be leased; used are the bytes of the bodies
// in memory, those whose outcome is not stored yet included. It is called at the beginning
// of each lease.
func (d *dispatcher) capacity(now time.Time, used int64) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget(now)
	d.clock = now
	d.again = time.Time{}
	d.offered = [standings]int{}
	n := max(2*d.maxActive-d.active-d.ready, 0)
	if left := d.maxBytes - max(used, d.bytes); left <= 0 {
		n = 0
	} else if d.largest > 0 {
		n = int(min(int64(n), max(left/d.largest, 1)))
	}
	d.full = n == 0
	return n
}

// room returns how many more deliveries of a destination may be leased. It is the
// Room of a LeaseRequest.
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
	d.offered[l.standing] += n
	return n
}

// roomAgain returns when a lane that had no room in the latest lease will have
// some by the passing of time alone; zero if there is no such lane.
func (d *dispatcher) roomAgain() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.again
}

// add takes over leased deliveries; asked is the Max of their lease. It returns
// those that have to go back to the store, because their lane has to wait, and
// those that have waited too long.
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
		d.offered[l.standing]--
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
	if d.starved && len(ds) > 0 && d.offered[unproven]+d.offered[doubtful] > 0 {
		d.starved = false // there was less than the room that was kept for it
		d.wake()
	}
	d.offered = [standings]int{}
	return back, lapsed
}

// enqueue puts l into the run queue if it may begin an attempt, and makes sure that
// a worker takes it.
func (d *dispatcher) enqueue(l *lane) {
	if l.queued || l.ready.len() == 0 || l.active >= d.window(l) {
		return
	}
	l.queued = true
	if d.holdBack(l) {
		return
	}
	d.run.push(l)
	d.summon()
}

// summon makes sure that a worker takes the lane that was put into the run queue:
// an idle one, a new one, or else the next that ends an attempt.
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

// A turn is one delivery in the hands of a worker, and its slot.
type turn struct {
	lane *lane // nil: there is no delivery
	leased
	begun int64 // for brake.end
}

// next gives back the slot of prev, if any, and returns the next delivery to
// attempt. It waits for one, and returns the zero turn when the worker has to end.
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
		d.work.Wait() // summon has taken it off idle
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
		if l := d.run.pop(); !d.holdBack(l) {
			return l
		}
	}
	return nil
}

// release gives back the slot of t. Of a failed attempt the lane was told before, by
// fail.
func (d *dispatcher) release(t turn, p pace) {
	l := t.lane
	if p == answered {
		l.answer(l.active, d.clock)
		d.setStanding(l, proven)
	}
	l.active--
	d.active--
	d.subtract(l, 1, t.size)
	if d.brake.end(t.begun); d.braked.len() > 0 && d.brake.free(time.Now()) {
		d.run.push(d.braked.pop()) // the worker that calls next takes a lane now
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

// subtract takes n deliveries of l, with bodies of size bytes in all, off what is
// held. They are no longer in l.active or l.ready.
func (d *dispatcher) subtract(l *lane, n int, size int64) {
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

// setStanding changes the standing of l.
func (d *dispatcher) setStanding(l *lane, s standing) {
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

// fail notes that an attempt of l failed for the destination's fault, and what
// becomes of the delivery. If that opens the breaker, it returns true, and what the
// lane had ready.
func (d *dispatcher) fail(l *lane, p pace, s *Settlement, now time.Time) (back []leased, opened bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	opened = l.fail(p, s, now)
	if l.breaker.doubtful() {
		d.setStanding(l, doubtful)
	}
	if opened {
		back = d.take(l)
	}
	return back, opened
}

// park leaves the lane alone for a time, and returns what it had ready, and for how
// long. A look-up that failed may succeed soon: after the first the lane waits for a
// second, after each further one twice as long, up to parkFor.
func (d *dispatcher) park(l *lane, now time.Time, why Hold) ([]leased, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	wait := parkFor
	if why == HoldLookup {
		wait = min(time.Second<<min(l.parks, 10), parkFor)
	}
	if l.hold == "" || !now.Before(l.parked) { // the first of those in flight to say so
		l.parks++
		l.parked = now.Add(wait)
	}
	l.stop(now)
	l.hold = why
	l.target.Store(nil) // so that resolve calls use once it is usable again
	d.setStanding(l, doubtful)
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
		l.hold, l.parks = "", 0
		l.resume(now)
		d.setStanding(l, unproven)
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
	d.subtract(l, len(vs), size)
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
	if d.brakeTimer != nil {
		d.brakeTimer.Stop()
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
