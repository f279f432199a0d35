// Package schedule decides which delivery is attempted when. It knows no store and no
// network: the forwarder tells it what waits in the store, fetches what Plan asks for,
// and runs workers that call Next.
//
// Each destination has a lane with two queues, of fresh deliveries and of retries, of
// which the scheduler knows only when the first one in the store is due. What it has
// claimed waits in the lane, in memory, for a slot. A slot is the right to one attempt at
// a time; share.go says how slots are divided between lanes, backlog.go how backlogs give
// way to deliveries that have just come, breaker.go how a destination is treated that
// fails.
package schedule

import (
	"runtime"
	"sync"
	"time"
)

// Config configures a Scheduler.
type Config struct {
	// Slots bounds the attempts at once; as many deliveries again may be ready.
	Slots int
	// Bytes bounds the bodies of what is claimed and not settled.
	Bytes int64
	// Window is the retry window.
	Window time.Duration
	// Limits returns those of a destination before Use does; the zero Limits if they are
	// not known.
	Limits func(destination string) Limits
	// NewData returns the Data of a new lane.
	NewData func(*Lane) any
	// Start starts a worker, a goroutine that calls Next until that returns false.
	Start func()
	// Wake asks for a call of Plan. It does not wait.
	Wake func()
	// Now is the clock.
	Now func() time.Time
	// Jitter returns a random duration below n.
	Jitter func(n time.Duration) time.Duration
}

// A Scheduler decides which delivery is attempted when. Its methods may be called
// concurrently.
type Scheduler struct {
	config Config

	mu                 sync.Mutex // guards what follows, and the lanes
	work               *sync.Cond // there is work, or closed
	lanes              map[string]*Lane
	touched            list                 // all lanes, the one that was used last at the end
	due                list                 // lanes that have something due in the store, and room for it
	unproven, doubtful list                 // lanes that have no room because of their standing
	later              laneHeap             // lanes that may fetch from a time on
	paused             map[string]time.Time // since when
	pauses             int                  // counts the calls of Pause and Resume

	run     fifo[*Lane] // lanes that have something ready, and may attempt it
	backlog backlog
	behind  fifo[*Lane] // lanes that would be in run, but give way
	giveWay *time.Timer // moves lanes from behind to run, while there are any

	turns    turns          // attempts under way, the oldest first
	active   int            // deliveries being attempted
	ready    int            // deliveries waiting for a slot
	reserved int            // deliveries on their way into the store, to be kept
	held     [standings]int // the sum of these, by the standing of their lanes
	offered  [standings]int // what the fetch under way may bring, likewise
	busy     int            // lanes that hold anything
	bytes    int64          // of the bodies of what is held, or not settled yet
	clock    time.Time      // of the latest call of Plan or Next
	workers  int
	idle     int  // workers that wait, and have not been signalled
	full     bool // Plan had no capacity
	open     bool // between Open and Close
	closed   bool
}

// maxIdle is how many workers are kept when there is nothing to do.
const maxIdle = 64

// New returns a Scheduler that does nothing until Open.
func New(c Config) *Scheduler {
	s := &Scheduler{
		config: c,
		lanes:  make(map[string]*Lane),
		paused: make(map[string]time.Time),
	}
	s.due.kind, s.unproven.kind, s.doubtful.kind = byPlace, byPlace, byPlace
	s.work = sync.NewCond(&s.mu)
	s.backlog.bound = backlogAttempts * runtime.GOMAXPROCS(0)
	return s
}

// An Item is a delivery that is claimed.
type Item struct {
	Destination string
	// Value is the delivery.
	Value any
	// Size is that of its body.
	Size int64
	// Retry says that it was attempted before, Due when it is due.
	Retry bool
	Due   time.Time

	since time.Time // when it was claimed
}

// Open lets Reserve succeed.
func (s *Scheduler) Open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = !s.closed
}

// Reserve takes room for a delivery that is about to be stored, so that the store can
// keep it claimed. It returns false if the delivery has to wait its turn in the store. A
// reservation ends by Start or Release.
func (s *Scheduler) Reserve(destination string, size int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.open || s.capacity() <= 0 || s.bytes+size > s.config.Bytes {
		return false
	}
	now := s.config.Now()
	l := s.lane(destination, now)
	s.touch(l, now)
	if l.fetching || l.fresh.isDue(now) || l.retry.isDue(now) || l.paused || l.hold != "" || l.breaker.open {
		return false
	}
	if n, again, _ := s.room(l, now); n <= 0 || !again.IsZero() {
		return false
	}
	s.hold(l, 1, size)
	s.bytes += size
	l.reserved++
	s.reserved++
	return true
}

// Release gives back the reservation of a delivery with a body of size bytes.
func (s *Scheduler) Release(destination string, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[destination] // it holds a reservation, so it was not forgotten
	l.reserved--
	s.reserved--
	s.drop(l, 1, size)
	s.bytes -= size
	s.place(l, s.config.Now())
}

// Start takes over a delivery that was reserved and that the store has kept. It returns
// false if the delivery has to go back to the store.
func (s *Scheduler) Start(it Item) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	l := s.lanes[it.Destination]
	l.reserved--
	s.reserved--
	if s.closed || l.paused || l.hold != "" || l.breaker.open {
		s.drop(l, 1, it.Size)
		s.place(l, now)
		return false
	}
	s.backlog.note(l, it.Due, now)
	it.since = now
	l.ready.push(it)
	s.ready++
	s.enqueue(l)
	return true
}

// Note tells when something in the store is due that is not claimed: a fresh delivery, a
// retry, or both. Zero times are left out.
func (s *Scheduler) Note(destination string, fresh, retry time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	l := s.lane(destination, now)
	l.fresh.note(fresh)
	l.retry.note(retry)
	s.touch(l, now)
	s.place(l, now)
}

// A Want is what is to be fetched of one queue.
type Want struct {
	Lane    *Lane
	Retries bool
	Max     int
	// Next is to be set: when the earliest is due that was left, zero if none was.
	Next time.Time
}

// maxWants bounds the queues of one fetch, so that the first results come soon.
const maxWants = 1024

// Plan appends to wants what is to be fetched now. It returns how many bytes may be
// fetched, and when something is to be fetched at the latest that cannot be now, zero if
// nothing. If there is something in wants, the next call has to be Fetched or Failed.
func (s *Scheduler) Plan(wants []Want) (_ []Want, maxBytes int64, again time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	s.clock = now
	s.forget(now)
	for len(s.later) > 0 && !s.later[0].at.After(now) {
		s.place(s.later[0], now)
	}
	n := s.capacity()
	maxBytes = s.config.Bytes - s.bytes
	if s.full = n <= 0 || maxBytes <= 0; s.full {
		return wants, 0, time.Time{}
	}
	for s.due.first != nil && n > 0 && len(wants) < maxWants {
		share := max(1, n/s.due.n)
		l := s.due.first
		s.touch(l, now)
		w := s.wanted(l, now)
		if w.fresh+w.retries == 0 {
			s.place(l, now)
			continue
		}
		if w.lapsing {
			l.lapsing = true
		} else {
			w.limit(min(share, n))
			n -= w.fresh + w.retries
			s.offered[l.standing] += w.fresh + w.retries
		}
		l.answers = 0
		l.fetching = true
		l.fresh.noted, l.retry.noted = time.Time{}, time.Time{}
		s.place(l, now)
		if w.retries > 0 {
			wants = append(wants, Want{Lane: l, Retries: true, Max: w.retries})
		}
		if w.fresh > 0 {
			wants = append(wants, Want{Lane: l, Max: w.fresh})
		}
	}
	if len(s.later) > 0 {
		again = s.later[0].at
	}
	return wants, maxBytes, again
}

// capacity returns how many more deliveries may be held.
func (s *Scheduler) capacity() int { return 2*s.config.Slots - s.active - s.ready - s.reserved }

// Fetched takes over what was fetched for wants. It returns what has to go back to the
// store because its lane has to wait, and what has lapsed: it is to be given up without
// an attempt.
func (s *Scheduler) Fetched(wants []Want, items []Item) (back, lapsed []Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	for i := range wants {
		w := &wants[i]
		w.Lane.queue(w.Retries).fetched(w.Next)
	}
	s.offered = [standings]int{}
	for _, it := range items {
		s.bytes += it.Size
		l := s.lane(it.Destination, now)
		b := &l.breaker
		switch {
		case s.closed, l.paused:
			back = append(back, it)
			continue
		case b.open && !it.Retry && !now.Before(b.lapses(it.Due, s.config.Window)):
			lapsed = append(lapsed, it)
			continue
		case b.open && !it.Retry && now.Before(b.probe):
			// It was planned before the lane began to wait, or the store mixes the two
			// queues. Then retries are hidden until the probe.
			b.retry = b.probe
			back = append(back, it)
			continue
		case b.open && l.holds() > 0, l.hold != "" && l.holds() > 0:
			back = append(back, it)
			continue
		}
		s.backlog.note(l, it.Due, now)
		l.largest = max(it.Size, l.largest-l.largest/16)
		it.since = now
		s.hold(l, 1, it.Size)
		l.ready.push(it)
		s.ready++
		s.enqueue(l)
	}
	s.endFetch(wants, now)
	return back, lapsed
}

// Failed says that what Plan asked for could not be fetched.
func (s *Scheduler) Failed(wants []Want) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offered = [standings]int{}
	s.endFetch(wants, s.config.Now())
}

func (s *Scheduler) endFetch(wants []Want, now time.Time) {
	for i := range wants {
		l := wants[i].Lane
		l.fetching, l.lapsing = false, false
		s.place(l, now)
	}
	s.feedStarved(now) // less may have come than there was room for
}

// enqueue puts l into the run queue if it may begin an attempt, and makes sure that a
// worker takes it.
func (s *Scheduler) enqueue(l *Lane) {
	if l.queued || l.ready.len() == 0 || l.active >= s.window(l) {
		return
	}
	l.queued = true
	if s.holdBack(l) {
		return
	}
	s.run.push(l)
	s.summon()
}

// summon makes sure that a worker takes the lane that was put into the run queue: an idle
// one, a new one, or else the next that ends an attempt.
func (s *Scheduler) summon() {
	switch {
	case s.idle > 0:
		s.idle--
		s.work.Signal()
	case s.workers < s.config.Slots && !s.closed:
		s.workers++
		s.config.Start()
	}
}

// A Turn is one delivery in the hands of a worker, and its slot. A worker has one, which
// is empty at first.
type Turn struct {
	Item
	Lane *Lane // nil: there is no delivery

	began      time.Time
	period     int64 // for backlog.end
	overdue    bool
	prev, next *Turn
}

// Outcome is what a turn tells about the destination.
type Outcome uint8

const (
	// NoAttempt tells nothing: there was no attempt.
	NoAttempt Outcome = iota
	// Answered says that the destination answered, whatever it thinks of the delivery.
	Answered
	// Failing says that it failed, as it would have with another delivery. Fail was
	// called before.
	Failing
)

// Next gives back the slot of t, if it has one, and sets t to the next delivery to
// attempt. It waits for one, and returns false when the worker has to end.
func (s *Scheduler) Next(t *Turn, o Outcome) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.Lane != nil {
		s.release(t, o)
	}
	*t = Turn{}
	l := s.pick()
	for l == nil || s.closed {
		if s.closed || s.idle >= maxIdle {
			s.workers--
			return false
		}
		s.idle++
		s.work.Wait() // summon has taken it off idle
		l = s.pick()
	}
	now := s.config.Now()
	s.clock = now
	l.queued = false
	t.Lane, t.Item, t.began = l, l.ready.pop(), now
	s.turns.push(t)
	l.active++
	s.active++
	s.ready--
	l.trial = l.breaker.open
	if l.rate.interval > 0 {
		l.rate.take(now)
	}
	if l.behind && s.backlog.lane != nil {
		t.period = s.backlog.begin(now)
	}
	s.enqueue(l)
	s.place(l, now)
	s.refill()
	return true
}

// pick takes the lane whose turn it is out of the run queue; nil if there is none.
func (s *Scheduler) pick() *Lane {
	for s.run.len() > 0 {
		if l := s.run.pop(); !s.holdBack(l) {
			return l
		}
	}
	return nil
}

// release gives back the slot of t.
func (s *Scheduler) release(t *Turn, o Outcome) {
	now := s.config.Now()
	l := t.Lane
	if o == Answered {
		l.answer(now)
		s.setStanding(l, proven)
	}
	if !t.overdue {
		s.turns.remove(t)
	}
	l.active--
	s.active--
	s.drop(l, 1, t.Size)
	if s.backlog.end(t.period); s.behind.len() > 0 && s.backlog.free(now) {
		s.run.push(s.behind.pop()) // the worker that calls next takes a lane now
	}
	s.enqueue(l)
	s.place(l, now)
	s.refill()
}

// Settled says that the outcomes of deliveries are stored, whose bodies have bytes in all:
// until then they count towards Config.Bytes.
func (s *Scheduler) Settled(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes -= bytes
	s.refill()
}

// refill asks for a call of Plan if the last one had no capacity and there is some again.
func (s *Scheduler) refill() {
	if s.full && s.ready+s.reserved <= s.config.Slots/2 && s.bytes <= s.config.Bytes/2 {
		s.full = false
		s.config.Wake()
	}
}

// hold notes that l holds n more deliveries, with bodies of size bytes in all, before
// they are counted in l.
func (s *Scheduler) hold(l *Lane, n int, size int64) {
	if l.holds() == 0 {
		s.busy++
	}
	s.held[l.standing] += n
	l.bytes += size
}

// drop notes that l holds n deliveries less, after they are counted in l.
func (s *Scheduler) drop(l *Lane, n int, size int64) {
	s.held[l.standing] -= n
	l.bytes -= size
	if n > 0 && l.holds() == 0 {
		s.busy--
	}
	if l.standing != proven {
		s.feedStarved(s.config.Now())
	}
}

// setStanding changes the standing of l.
func (s *Scheduler) setStanding(l *Lane, to standing) {
	if l.standing == to {
		return
	}
	n := l.holds()
	s.held[l.standing] -= n
	s.held[to] += n
	l.standing = to
	if to != doubtful {
		s.feedStarved(s.config.Now())
	}
}

// Fail notes that an attempt of l failed for the destination's fault. If that opens the
// breaker, it returns true, and what the lane had ready.
func (s *Scheduler) Fail(l *Lane, f Failure) (back []Item, opened bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	opened = l.fail(f, now, s.config.Jitter)
	if l.breaker.doubtful() {
		s.setStanding(l, doubtful)
	}
	if opened {
		back = s.take(l)
	}
	s.place(l, now)
	return back, opened
}

// Use says that the destination of l can be used, with these limits, and ends its hold.
func (s *Scheduler) Use(l *Lane, limits Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	if !l.known {
		l.known = true
		l.slots = firstSlots
	}
	l.setLimits(limits, now)
	if l.hold != "" {
		l.hold, l.holdsInRow = "", 0
		l.resume(now)
		s.setStanding(l, unproven)
	}
	s.enqueue(l)
	s.place(l, now)
}

// take removes and returns what l has ready.
func (s *Scheduler) take(l *Lane) (items []Item) {
	var size int64
	for l.ready.len() > 0 {
		it := l.ready.pop()
		size += it.Size
		items = append(items, it)
	}
	s.ready -= len(items)
	s.drop(l, len(items), size)
	if l.queued {
		l.queued = false
		s.run.remove(l)
		s.behind.remove(l)
	}
	return items
}

// Overdue returns what was claimed longer ago than limit and is still being attempted, or
// ready, so that it goes back to the store. An attempt that hangs keeps its slot.
func (s *Scheduler) Overdue(limit time.Duration) (items []Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	for t := s.turns.first; t != nil && now.Sub(t.began) > limit; t = s.turns.first {
		s.turns.remove(t)
		t.overdue = true
		items = append(items, t.Item)
	}
	for _, l := range s.lanes {
		if l.ready.len() > 0 && now.Sub(l.ready.ring[l.ready.head].since) > limit {
			items = append(items, s.take(l)...)
			s.place(l, now)
		}
	}
	return items
}

// Load returns how many deliveries are attempted and how many are ready.
func (s *Scheduler) Load() (active, ready int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active, s.ready
}

// Close ends the workers, each after its delivery, and returns what is ready.
func (s *Scheduler) Close() (items []Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.closed = false, true
	s.idle = 0
	if s.giveWay != nil {
		s.giveWay.Stop()
	}
	s.work.Broadcast()
	for _, l := range s.lanes {
		items = append(items, s.take(l)...)
	}
	return items
}

// turns is a list of turns.
type turns struct {
	first, last *Turn
}

func (ts *turns) push(t *Turn) {
	if t.prev = ts.last; t.prev != nil {
		t.prev.next = t
	} else {
		ts.first = t
	}
	ts.last = t
}

func (ts *turns) remove(t *Turn) {
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		ts.first = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	} else {
		ts.last = t.prev
	}
	t.prev, t.next = nil, nil
}
