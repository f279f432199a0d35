// Package schedule decides which delivery is attempted when. It uses no store and no network. The
// forwarder tells it which deliveries wait in the store, makes the fetches that Plan asks for, and
// runs workers that call Next.
//
// Each destination has a lane with two queues in the store: fresh deliveries, and retries. Of a
// queue, the scheduler knows only when its first delivery is due. A claimed delivery is ready: it
// waits in memory, in its lane, for a slot. A slot is the right to make one attempt at a time.
//
//   - share.go divides slots and bytes among lanes.
//   - place.go says which lanes may fetch. plan.go plans the fetches and takes their results.
//   - run.go says which lane begins the next attempt, and has the attempts.
//   - backlog.go makes old deliveries wait while fresh ones arrive.
//   - batch.go makes attempts of several deliveries.
//   - breaker.go handles destinations that fail, hold.go those that may not be attempted.
package schedule

import (
	"sync"
	"time"
)

// Config configures a Scheduler.
type Config struct {
	Slots  int                                 // bounds the concurrent attempts; as many further deliveries may be ready
	Bytes  int64                               // bounds the bodies of the deliveries that are claimed and not settled
	Window time.Duration                       // the retry window
	Start  func()                              // starts a worker: a goroutine that calls Next until Next returns false
	Wake   func()                              // asks the forwarder to call Plan; must not block
	Now    func() time.Time                    // returns the time by the clock of the store
	Jitter func(n time.Duration) time.Duration // returns a random duration below n
}

// A Scheduler decides which delivery is attempted when. Its methods may be called concurrently. S is
// the type of Lane.State, and V that of Item.Value.
type Scheduler[S, V any] struct {
	config Config
	part   func(V) int64

	mu      sync.Mutex             // guards the fields below
	lanes   map[string]*Lane[S, V] // of the destinations that have deliveries, or had some lately
	paused  map[string]Pause       // by destination; SetPaused replaces it
	shares  shares[S, V]
	places  places[S, V]
	run     runQueue[S, V]
	slots   map[*Slot[S, V]]bool // the slots of all workers
	left    int                  // attempts that have left their slots; see Leave
	open    bool                 // between Open and Drain
	groups  uint64               // counts the batches that Divide has made
	version uint64               // the latest one that SetPaused has got
	recheck time.Time            // when RecheckAll may have the next destination looked up
}

// New returns a Scheduler. It makes no reservations until Open is called. part returns how many bytes
// a delivery takes in the body of a batch; it is called for lanes with batches only.
func New[S, V any](c Config, part func(V) int64) *Scheduler[S, V] {
	s := &Scheduler[S, V]{config: c, part: part, lanes: make(map[string]*Lane[S, V]), slots: make(map[*Slot[S, V]]bool)}
	s.shares = shares[S, V]{config: &s.config}
	s.places = places[S, V]{config: &s.config, shares: &s.shares}
	s.run = runQueue[S, V]{
		config: &s.config, mu: &s.mu, shares: &s.shares,
		work: sync.NewCond(&s.mu), backlog: newBacklog[S, V](),
	}
	return s
}

// An Item is a claimed delivery.
type Item[V any] struct {
	Destination string
	Value       V      // the delivery itself, which the scheduler does not look at
	Claim       uint64 // of the delivery, not zero
	Size        int64  // of the body, in bytes
	Retry       bool   // the delivery was attempted before
	Group       uint64 // not zero: of a batch that failed, so its deliveries stay together
	Apart       bool   // of a batch that was refused: its Group joins no other
	Part        bool   // of a batch that was divided: the store does not know of the latest attempt
	Due         time.Time

	since time.Time // when the delivery was claimed
}

// Open makes the scheduler ready: from now on Reserve may succeed.
func (s *Scheduler[S, V]) Open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = !s.run.draining
}

// lane returns the lane of a destination, and creates it if there is none.
func (s *Scheduler[S, V]) lane(destination string, now time.Time) *Lane[S, V] {
	l := s.lanes[destination]
	if l == nil {
		l = &Lane[S, V]{ID: destination, limit: 1, slots: 1, touched: now} // until Use says the limits
		if holds(s.paused, destination) {
			l.stopped, l.paused = s.paused[destination].Since, true
		}
		s.lanes[destination] = l
	}
	return l
}

// Reserve reserves room for a delivery that is about to be stored. If it returns true, the store
// may claim the delivery, and the caller must call Start. Otherwise it has to wait in the store, where
// all deliveries of a lane with batches gather.
func (s *Scheduler[S, V]) Reserve(destination string, size int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.open || s.shares.capacity() <= 0 || s.shares.bytes+size > s.config.Bytes {
		return false
	}
	now := s.config.Now()
	l := s.lane(destination, now)
	l.touch(now)
	if l.batch.Events > 0 || l.fetching || isDue(l.fresh.due, now) || isDue(l.retry.due, now) || !l.mayStart() {
		return false
	}
	n, _, _ := s.shares.room(l, now)
	if n == 0 || s.shares.allowance(l.standing) <= 0 || l.standing != proven && s.places.due[l.standing].n > 0 {
		return false
	}
	s.shares.bytes += size
	l.reserved++
	s.shares.reserved++
	s.shares.count(l)
	return true
}

// Start ends a reservation, and makes the delivery ready if the store has claimed it. It returns
// false without a claim. It also does so if the destination was paused, held or found failing since
// Reserve, or Drain was called: then the caller must return the delivery to the store.
func (s *Scheduler[S, V]) Start(it Item[V]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	l := s.lanes[it.Destination] // a lane with a reservation is not dropped
	l.reserved--
	s.shares.reserved--
	if it.Claim == 0 {
		s.shares.bytes -= it.Size // those of a claimed delivery count until it is settled
	}
	if it.Claim == 0 || !s.open || !l.mayStart() {
		s.shares.count(l)
		s.places.update(l, now)
		return false
	}
	s.run.ready(l, it, now)
	return true
}

// Note notes when a fresh delivery and a retry in the store are due. It ignores a zero time.
func (s *Scheduler[S, V]) Note(destination string, fresh, retry time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	l := s.lane(destination, now)
	l.fresh.note(fresh)
	l.retry.note(retry)
	if l.batch.Wait > 0 && !fresh.IsZero() {
		l.arrived++
	}
	s.run.backlog.arrive(l, now)
	l.touch(now)
	s.places.update(l, now)
}

// Claimed counts the bytes of the bodies of deliveries that the caller has fetched without the
// scheduler. They count until Settled.
func (s *Scheduler[S, V]) Claimed(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shares.bytes += bytes
}

// Settled frees the memory of deliveries whose outcomes the store now has. Their bodies have this
// many bytes in all.
func (s *Scheduler[S, V]) Settled(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shares.bytes -= bytes
	s.places.refill()
}

// Fail records that an attempt of l failed because of the destination. If that opens the breaker,
// it returns true and the ready deliveries of l, which the caller returns to the store. A timeout
// costs the lane an eighth of its slots. So a hanging destination soon has a single slot, while one
// that is slow now and then keeps most of its slots.
func (s *Scheduler[S, V]) Fail(l *Lane[S, V], f Failure) (back []Item[V], opened bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	if f.TimedOut {
		l.slots = max(l.slots-(l.slots+7)/8, 1)
	}
	opened = l.breaker.fail(f, l.trial, now, s.config.Jitter)
	l.trial = false
	if l.breaker.points >= doubtPoints {
		s.shares.setStanding(l, doubtful)
	}
	if opened {
		back = s.take(l)
	}
	s.places.update(l, now)
	return back, opened
}

// Use says that the destination of l can be used, with these limits. An attempt of l calls it.
func (s *Scheduler[S, V]) Use(l *Lane[S, V], limits Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	if !l.known {
		l.known = true
		l.slots = firstSlots
	}
	limited := l.rate.interval > 0
	l.limit, l.slots = limits.Slots, min(l.slots, limits.Slots)
	l.rate.interval, l.rate.burst = limits.Interval, limits.Burst
	l.breaker.window = limits.Window
	l.batch = limits.Batch
	s.shares.count(l)
	if !limited && l.active > 0 {
		l.rate.take(now) // for the attempt that calls Use: Next did not know the rate
	}
	if l.hold != "" {
		l.hold, l.holdsInRow = "", 0
		l.resume(now)
		s.shares.setStanding(l, unproven)
	}
	s.run.add(l)
	s.places.update(l, now)
}

// take removes and returns the ready deliveries of l.
func (s *Scheduler[S, V]) take(l *Lane[S, V]) (items []Item[V]) {
	for l.ready.len() > 0 {
		items = append(items, l.ready.pop())
	}
	s.shares.count(l)
	return items
}

// Drain returns all ready deliveries. From then on Plan asks for one batch of each lane that waits
// for more deliveries, and for nothing else.
func (s *Scheduler[S, V]) Drain() (back []Item[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	s.open, s.places.draining = false, true
	for _, l := range s.lanes {
		back = append(back, s.take(l)...)
	}
	s.run.drain()
	for _, l := range s.lanes {
		s.places.update(l, now)
	}
	return back
}

// Close makes the workers end once nothing is ready. Call it after Drain.
func (s *Scheduler[S, V]) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run.close()
}

// Load returns how many deliveries are being attempted, and how many are ready. A batch counts as one.
func (s *Scheduler[S, V]) Load() (active, ready int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shares.active, s.shares.waiting() - s.shares.reserved
}

// Loads calls f for each destination with deliveries that are being attempted or ready, with their
// numbers: for those in only, or for all if it is empty. f must not call the scheduler.
func (s *Scheduler[S, V]) Loads(only []string, f func(destination string, active, ready int)) {
	s.each(only, func(l *Lane[S, V]) {
		if ready := l.batch.attempts(l.ready.len()); l.active+ready > 0 {
			f(l.ID, l.active, ready)
		}
	})
}

// each calls f for each lane of the destinations in only, or for all if it is empty, with s.mu held,
// which f must not release. As there may be many lanes, each lets go of s.mu now and then. It may
// leave out lanes that come or go meanwhile.
func (s *Scheduler[S, V]) each(only []string, f func(*Lane[S, V])) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range only {
		if l := s.lanes[id]; l != nil {
			f(l)
		}
	}
	if len(only) > 0 {
		return
	}
	n := 0
	for _, l := range s.lanes {
		f(l)
		if n++; n%256 == 0 {
			s.mu.Unlock()
			s.mu.Lock()
		}
	}
}
