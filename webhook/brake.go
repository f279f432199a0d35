package webhook

import (
	"runtime"
	"time"
)

// A brake keeps backlogs that drain from taking the processors from deliveries
// that have just come. A receiver that answers at once makes a backlog the work
// of processors alone: with many of its attempts under way each goroutine waits
// behind dozens of them, several times in a delivery, though a few would drain
// it about as fast.
//
// While fresh deliveries come, it bounds the attempts for lanes that are behind,
// all together. The bound adapts: it shrinks when goroutines wait for a
// processor, and grows while they do not. An attempt counts for a millisecond at
// most. What takes longer waits for its receiver, which takes no processor, so
// neither distance nor a lane that hangs uses the bound up.
type brake struct {
	bound int
	most  int  // the largest bound
	tight bool // a lane has had to wait since the bound last grew
	calm  int  // short delays in a row

	lane  *lane     // the last lane that had a fresh delivery
	until time.Time // brakeFor after that; then it no longer counts

	period int64  // the latest, in brakePeriods since 1970
	begun  [2]int // attempts that began in period, and in the one before, and have not ended
}

const (
	// lateAfter is how long after it was due a delivery that is leased counts as
	// part of a backlog, and its lane as behind. One that is leased sooner is
	// fresh.
	lateAfter = 100 * time.Millisecond
	// brakeFor is how long fresh deliveries keep the brake on.
	brakeFor = time.Second
	// brakePeriod is the resolution in time: an attempt counts for one to two
	// periods.
	brakePeriod = 500 * time.Microsecond
	// longDelay is how long a goroutine may wait for a processor before the
	// bound shrinks.
	longDelay = 15 * time.Microsecond
)

// note is told that a delivery of l was leased at now.
func (b *brake) note(l *lane, d *Delivery, now time.Time) {
	l.behind = now.Sub(d.Due) > lateAfter
	switch {
	case l.behind && b.lane == l:
		b.lane = nil // its own backlog is not held back for its sake
	case !l.behind && l.standing != doubtful:
		b.lane, b.until = l, now.Add(brakeFor)
	}
}

// on reports whether there were fresh deliveries lately, so that the bound holds.
func (b *brake) on(now time.Time) bool { return b.lane != nil && now.Before(b.until) }

// free reports whether an attempt for a lane that is behind may begin.
func (b *brake) free(now time.Time) bool { return b.left(now) > 0 }

// left is how many attempts for lanes that are behind may begin.
func (b *brake) left(now time.Time) int {
	if !b.on(now) {
		return b.most
	}
	b.turn(now)
	n := b.bound - b.begun[0] - b.begun[1]
	b.tight = b.tight || n <= 0
	return n
}

// turn advances to the period of now, and forgets the attempts that began too long
// ago to count.
func (b *brake) turn(now time.Time) {
	switch p := now.UnixNano() / int64(brakePeriod); {
	case p == b.period:
	case p == b.period+1:
		b.begun[1], b.begun[0] = b.begun[0], 0
		b.period = p
	default:
		b.begun = [2]int{}
		b.period = p
	}
}

// begin counts an attempt for a lane that is behind. It returns the argument for
// end.
func (b *brake) begin(now time.Time) int64 {
	b.turn(now)
	b.begun[0]++
	return b.period
}

// end is told that the attempt has ended for which begin returned period, 0 for one
// that begin did not count.
func (b *brake) end(period int64) {
	if i := b.period - period; period != 0 && (i == 0 || i == 1) {
		b.begun[i]--
	}
}

// adapt is told how long a goroutine has waited for a processor.
func (b *brake) adapt(delay time.Duration) {
	if delay > longDelay {
		b.calm = 0
		b.bound = max(b.bound-max(b.bound/8, 1), max(runtime.GOMAXPROCS(0)/2, 1))
		return
	}
	if b.calm++; b.calm >= 4 && b.tight {
		b.calm, b.tight = 0, false
		b.bound = min(b.bound+1, b.most)
	}
}

// holdBack puts l, which is queued, among the lanes that wait for the brake if it
// has to wait, and reports whether it does.
func (d *dispatcher) holdBack(l *lane) bool {
	if !l.behind || d.brake.lane == nil || d.brake.free(time.Now()) {
		return false
	}
	d.braked.push(l)
	switch {
	case d.braked.len() > 1 || d.closed:
	case d.brakeTimer == nil:
		d.brakeTimer = time.AfterFunc(brakePeriod, d.unbrake)
	default:
		d.brakeTimer.Reset(brakePeriod)
	}
	return true
}

// unbrake moves the lanes that need no longer wait for the brake to the run queue.
func (d *dispatcher) unbrake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n := d.brake.left(time.Now()); n > 0 && d.braked.len() > 0; n-- {
		d.run.push(d.braked.pop())
		d.summon()
	}
	if d.braked.len() > 0 && !d.closed {
		d.brakeTimer.Reset(brakePeriod)
	}
}

// sense measures, while the brake is on, how long goroutines wait for a processor:
// a goroutine that yields waits for those that are ready to run.
func (d *dispatcher) sense() {
	began := time.Now()
	d.mu.Lock()
	on := d.brake.on(began)
	d.mu.Unlock()
	if !on {
		return
	}
	began = time.Now()
	runtime.Gosched()
	delay := time.Since(began)
	d.mu.Lock()
	d.brake.adapt(delay)
	d.mu.Unlock()
}

// draining reports whether the brake is on, and there is a lane that is behind.
func (d *dispatcher) draining() bool {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.brake.on(now) && now.UnixNano()/int64(brakePeriod)-d.brake.period < int64(lateAfter/brakePeriod)
}
