package schedule

import (
	"sync"
	"time"
)

// A runQueue holds the lanes that may begin an attempt, and counts the workers, which take them.
type runQueue[S, V any] struct {
	config *Config
	mu     *sync.Mutex
	shares *shares[S, V]

	work     *sync.Cond        // wakes idle workers, for a lane or for close
	answers  fifo[*Lane[S, V]] // proven lanes with a ready delivery that may be attempted, and lanes that had one
	suspects fifo[*Lane[S, V]] // likewise, lanes that were not proven when they came
	suspect  bool              // the lane that was picked last was one of suspects
	order    uint64            // counts the lanes that came to answers and suspects
	behind   fifo[*Lane[S, V]] // lanes like those in answers and suspects, but held back by backlog
	backlog  backlog[S, V]     // says which lanes have to wait
	giveWay  *time.Timer       // runs proceed while behind is not empty
	workers  int
	idle     int  // workers that wait in next and were not signalled
	draining bool // nothing is held back any more
	closed   bool
}

const maxIdle = 64 // idle workers that are kept; further ones end

// ready makes it, a delivery that was claimed now, a ready delivery of l.
func (q *runQueue[S, V]) ready(l *Lane[S, V], it Item[V], now time.Time) {
	q.backlog.note(l, it.Due, now)
	it.since = now
	l.ready.push(it)
	q.shares.count(l)
	q.add(l)
}

// add puts l into the run queue if l may begin an attempt, and summons a worker.
func (q *runQueue[S, V]) add(l *Lane[S, V]) {
	if l.queued || l.ready.len() == 0 || l.active >= q.shares.slotsOf(l) {
		return
	}
	l.queued = true
	if !q.holdBack(l) {
		q.push(l)
	}
}

func (q *runQueue[S, V]) push(l *Lane[S, V]) {
	q.order++
	l.order = q.order
	if l.standing == proven {
		q.answers.push(l)
	} else {
		q.suspects.push(l)
	}
	q.summon()
}

// summon makes sure that a worker takes a lane of the run queue. It wakes an idle worker, or else
// starts one. If there are as many as slots, the next one that ends its attempt takes the lane.
func (q *runQueue[S, V]) summon() {
	switch {
	case q.idle > 0:
		q.idle--
		q.work.Signal()
	case q.workers < q.config.Slots:
		q.workers++
		q.config.Start()
	}
}

// leave makes room for another worker in place of one that ends without calling next.
func (q *runQueue[S, V]) leave() {
	q.workers--
	if q.answers.len()+q.suspects.len() > 0 {
		q.summon()
	}
}

// next takes a lane out of q, and reports whether it had to wait. If next returns nil, the worker
// must end.
func (q *runQueue[S, V]) next() (l *Lane[S, V], waited bool) {
	l = q.pick()
	for l == nil {
		if q.closed || q.idle >= maxIdle {
			q.workers--
			return nil, waited
		}
		q.idle++
		q.work.Wait() // summon has already reduced idle when it wakes this worker
		l, waited = q.pick(), true
	}
	return l, waited
}

// pick takes the next lane that has a ready delivery out of q. It returns nil if there is none.
// That is the lane that came first, but no two suspects follow one another while a proven lane
// waits. So a delivery to a destination that answers does not wait behind the deliveries to all
// destinations that fail or are new.
func (q *runQueue[S, V]) pick() *Lane[S, V] {
	for q.answers.len()+q.suspects.len() > 0 {
		q.suspect = q.answers.len() == 0 ||
			!q.suspect && q.suspects.len() > 0 && (*q.suspects.first()).order < (*q.answers.first()).order
		from := &q.answers
		if q.suspect {
			from = &q.suspects
		}
		l := from.pop()
		switch {
		case l.ready.len() == 0: // Scheduler.take has taken its deliveries
			l.queued = false
		case !q.holdBack(l):
			l.queued = false
			return l
		}
	}
	return nil
}

// holdBack reports whether l has to wait because of backlog, and then puts it into q.behind.
func (q *runQueue[S, V]) holdBack(l *Lane[S, V]) bool {
	if !l.behind || q.draining || q.backlog.lane == nil || q.backlog.free(q.config.Now()) > 0 {
		return false
	}
	q.behind.push(l)
	switch {
	case q.behind.len() > 1:
	case q.giveWay == nil:
		q.giveWay = time.AfterFunc(q.backlog.pause(), q.proceed)
	default:
		q.giveWay.Reset(q.backlog.pause())
	}
	return true
}

// proceed moves as many lanes out of q.behind as q.backlog allows.
func (q *runQueue[S, V]) proceed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for range min(q.behind.len(), q.backlog.free(q.config.Now())) {
		q.push(q.behind.pop())
	}
	if q.behind.len() > 0 {
		q.giveWay.Reset(q.backlog.pause())
	}
}

// drain holds no lane back any more. The lanes have no ready deliveries.
func (q *runQueue[S, V]) drain() {
	q.draining = true
	if q.giveWay != nil {
		q.giveWay.Stop()
	}
	for q.behind.len() > 0 {
		q.behind.pop().queued = false
	}
}

// close makes the workers end once no lane may begin an attempt.
func (q *runQueue[S, V]) close() {
	q.closed = true
	q.idle = 0
	q.work.Broadcast()
}

// A Slot is the right of a worker to make one attempt at a time. It has the deliveries of the
// attempt, and is empty at first.
type Slot[S, V any] struct {
	Item  Item[V]
	Batch []Item[V]   // of a lane with batches: Item and those attempted with it
	Lane  *Lane[S, V] // nil: there is no delivery
	Bury  bool        // the destination has a Pause with Bury

	began    time.Time // by the clock of the process, because the store's clock may be set forward
	overdue  bool      // Scheduler.Overdue has returned the delivery
	rechecks uint64    // Lane.rechecks when the attempt began
}

// Next ends the attempt of t, if there is one; answered says that the destination answered, even
// with a refusal. Then it waits for the next delivery for t. If Next returns false, the worker must
// end.
func (s *Scheduler[S, V]) Next(t *Slot[S, V], answered bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	if t.Lane != nil {
		s.release(t, answered, now)
	} else {
		s.slots[t] = true
	}
	clear(t.Batch)
	*t = Slot[S, V]{Batch: t.Batch[:0]}
	l, waited := s.run.next()
	if l == nil {
		delete(s.slots, t)
		return false
	}
	if waited {
		now = s.config.Now()
	}
	s.shares.clock = now
	t.Lane, t.Item, t.Bury, t.began = l, l.ready.pop(), s.paused[l.ID].Bury, time.Now()
	t.rechecks = l.rechecks
	l.active++
	s.shares.active++
	if l.batch.Events > 0 {
		t.gather(s.part)
		s.shares.count(l)
	}
	l.trial = l.breaker.open
	l.breaker.asked = max(l.breaker.asked-1, 0)
	l.rate.take(now)
	if l.behind && s.run.backlog.lane != nil {
		s.run.backlog.begin(now)
	}
	s.run.add(l)
	s.places.update(l, now)
	s.places.refill()
	return true
}

func (s *Scheduler[S, V]) release(t *Slot[S, V], answered bool, now time.Time) {
	l := t.Lane
	if answered {
		l.answer(now)
		s.shares.setStanding(l, proven)
	}
	l.active--
	s.shares.active--
	s.shares.count(l)
	s.run.add(l)
	s.places.update(l, now)
	s.places.refill()
}

// Overdue returns, once, each delivery that has taken longer than the limit of its lane and so goes
// back to the store: hanging has those whose attempt still runs, ready those of lanes whose first ready
// delivery waits that long. A hanging attempt keeps its slot and its delivery. Overdue also drops
// idle lanes.
func (s *Scheduler[S, V]) Overdue(limit func(*Lane[S, V]) time.Duration) (hanging, ready []Item[V]) {
	s.mu.Lock()
	for t := range s.slots {
		if t.Lane != nil && !t.overdue && time.Since(t.began) > limit(t.Lane) {
			t.overdue = true
			hanging = append(hanging, t.Items()...)
		}
	}
	s.mu.Unlock()
	now := s.config.Now()
	s.each(nil, func(l *Lane[S, V]) {
		if l.ready.len() > 0 && now.Sub(l.ready.first().since) > limit(l) {
			ready = append(ready, s.take(l)...)
			s.places.update(l, now)
		}
		if l.isIdle(now) {
			delete(s.lanes, l.ID)
		}
	})
	return hanging, ready
}
