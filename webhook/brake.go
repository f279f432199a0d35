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
	most  int  // of bound
	tight bool // something has waited for it since it last grew
	calm  int  // delays in a row that were short

	lane  *lane     // the last that had something fresh
	until time.Time // when that is long ago

	period int64  // the latest, in brakePeriods since 1970
	begun  [2]int // attempts of it and of the one before that have not ended
}

const (
	// lateAfter is how long after it is due a delivery counts as one of a
	// backlog, and its lane as behind. What comes earlier is fresh.
	lateAfter = 100 * time.Millisecond
	// brakeFor is how long fresh deliveries keep the brake on.
	brakeFor = time.Second
	// brakePeriod is the resolution in time: attempts count for one to two.
	brakePeriod = 500 * time.Microsecond
	// longDelay is what a goroutine may wait for a processor.
	longDelay = 50 * time.Microsecond
)

// note says that a delivery of l was leased, and how late.
func (b *brake) note(l *lane, d *Delivery, now time.Time) {
	l.behind = now.Sub(d.Due) > lateAfter
	switch {
	case l.behind && b.lane == l:
		b.lane = nil // it is not to be kept from its own backlog
	case !l.behind && l.standing != doubtful:
		b.lane, b.until = l, now.Add(brakeFor)
	}
}

// on reports whether there are bounds at all.
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

// turn lets go of the attempts that began too long ago to count.
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

// begin counts an attempt for a lane that is behind, and returns what end is to
// be told.
func (b *brake) begin(now time.Time) int64 {
	b.turn(now)
	b.begun[0]++
	return b.period
}

// end says that an attempt has ended; 0 stands for one that begin was not told
// of.
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

// stopped has l, which is queued, wait for the brake if it has to, and reports
// whether it does.
func (d *dispatcher) stopped(l *lane) bool {
	if !l.behind || d.brake.lane == nil || d.brake.free(time.Now()) {
		return false
	}
	d.braked.push(l)
	d.lookAgain()
	return true
}

// lookAgain has look called in a while.
func (d *dispatcher) lookAgain() {
	switch {
	case d.braked.len() != 1 || d.closed:
	case d.looked == nil:
		d.looked = time.AfterFunc(brakePeriod, d.look)
	default:
		d.looked.Reset(brakePeriod)
	}
}

// look returns lanes that the brake lets go to the run queue.
func (d *dispatcher) look() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n := d.brake.left(time.Now()); n > 0 && d.braked.len() > 0; n-- {
		d.run.push(d.braked.pop())
		d.summon()
	}
	if d.braked.len() > 0 && !d.closed {
		d.looked.Reset(brakePeriod)
	}
}

// sense finds out, while the brake is on, how long goroutines wait for a
// processor: who yields has to wait behind those that can run.
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
