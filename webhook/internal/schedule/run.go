package schedule

import (
	"sync"
	"time"
)

// A runQueue holds the lanes that may begin an attempt, and counts the workers, which take these
// lanes. The scheduler's mutex guards it.
type runQueue struct {
	mu     *sync.Mutex
	shares *shares
	start  func()           // Config.Start
	now    func() time.Time // Config.Now

	work    *sync.Cond  // wakes idle workers, for a lane or for close
	lanes   fifo[*Lane] // lanes with a ready delivery that may be attempted
	behind  fifo[*Lane] // lanes like those in the field lanes, but held back by backlog
	backlog backlog     // says which lanes have to wait
	giveWay *time.Timer // runs proceed while behind is not empty
	workers int
	idle    int // workers that wait in next and were not signalled
	closed  bool
}

// maxIdle is how many idle workers are kept. Further ones end.
const maxIdle = 64

// add puts l into the run queue if l may begin an attempt, and summons a worker.
func (q *runQueue) add(l *Lane) {
	if l.queued || l.ready.len() == 0 || l.active >= q.shares.slotsOf(l) {
		return
	}
	l.queued = true
	if q.holdBack(l) {
		return
	}
	q.lanes.push(l)
	q.summon()
}

// summon makes sure that a worker takes a lane that was put into the run queue. It wakes an idle
// worker, or else starts one. If there are as many workers as slots, the next worker that ends its
// attempt takes the lane.
func (q *runQueue) summon() {
	switch {
	case q.idle > 0:
		q.idle--
		q.work.Signal()
	case q.workers < q.shares.slots && !q.closed:
		q.workers++
		q.start()
	}
}

// next waits for a lane and takes it out of q. It returns nil if the calling worker must end.
func (q *runQueue) next() *Lane {
	l := q.pick()
	for l == nil || q.closed {
		if q.closed || q.idle >= maxIdle {
			q.workers--
			return nil
		}
		q.idle++
		q.work.Wait() // summon has already reduced idle when it wakes this worker
		l = q.pick()
	}
	l.queued = false
	return l
}

// pick takes the next lane out of q. It returns nil if there is none.
func (q *runQueue) pick() *Lane {
	for q.lanes.len() > 0 {
		if l := q.lanes.pop(); !q.holdBack(l) {
			return l
		}
	}
	return nil
}

func (q *runQueue) remove(l *Lane) {
	if l.queued {
		l.queued = false
		q.lanes.remove(l)
		q.behind.remove(l)
	}
}

// holdBack reports whether l has to wait because of backlog, and then puts it into q.behind.
func (q *runQueue) holdBack(l *Lane) bool {
	if !l.behind || q.backlog.lane == nil || q.backlog.free(q.now()) {
		return false
	}
	q.behind.push(l)
	switch {
	case q.behind.len() > 1 || q.closed:
	case q.giveWay == nil:
		q.giveWay = time.AfterFunc(backlogPeriod, q.proceed)
	default:
		q.giveWay.Reset(backlogPeriod)
	}
	return true
}

// proceed moves as many lanes from q.behind to q.lanes as the bound of q.backlog allows.
func (q *runQueue) proceed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	free := q.behind.len()
	if q.backlog.on(now) {
		q.backlog.advance(now)
		free = min(free, q.backlog.bound-q.backlog.begun[0]-q.backlog.begun[1])
	}
	for ; free > 0; free-- {
		q.lanes.push(q.behind.pop())
		q.summon()
	}
	if q.behind.len() > 0 && !q.closed {
		q.giveWay.Reset(backlogPeriod)
	}
}

// close makes the workers end, each after its attempt.
func (q *runQueue) close() {
	q.closed = true
	q.idle = 0
	if q.giveWay != nil {
		q.giveWay.Stop()
	}
	q.work.Broadcast()
}
