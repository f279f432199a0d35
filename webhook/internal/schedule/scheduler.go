// Package schedule decides which delivery is attempted when. It knows no store and no network: the
// forwarder tells it what waits in the store, fetches what Plan asks for, and runs workers that call
// Next.
//
// Each destination has a lane with two queues in the store, of fresh deliveries and of retries. The
// scheduler knows of a queue only when its first delivery is due. Deliveries that were claimed are
// ready: they wait in the lane, in memory, for a slot. A slot is the right to one attempt at a time.
//
//   - share.go divides slots and bytes among lanes.
//   - place.go says which lanes may fetch; plan.go plans the fetches and takes their results.
//   - run.go says which lane begins the next attempt; slot.go has the attempts.
//   - backlog.go lets backlogs give way to deliveries that have just come.
//   - breaker.go treats destinations that fail; hold.go those that may not be attempted.
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
	// Bytes bounds the bodies of deliveries that are claimed and not settled.
	Bytes int64
	// Window is the retry window.
	Window time.Duration
	// Limits returns the limits of a destination that Use has not yet set. It returns the zero
	// Limits if they are not known.
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

	mu      sync.Mutex // guards what follows
	lanes   lanes
	shares  shares
	places  places
	run     runQueue
	taken   slots
	open    bool   // between Open and Close
	reading uint64 // the latest one that SetPaused was given
}

// New returns a Scheduler that does nothing until Open.
func New(c Config) *Scheduler {
	s := &Scheduler{config: c}
	s.lanes = lanes{config: &s.config, byID: make(map[string]*Lane)}
	s.shares = shares{slots: c.Slots, maxBytes: c.Bytes}
	s.places = places{shares: &s.shares, window: c.Window, wake: c.Wake}
	for p := range s.places.lists {
		s.places.lists[p].kind = byPlace
	}
	s.run = runQueue{
		mu: &s.mu, shares: &s.shares, start: c.Start, now: c.Now,
		work:    sync.NewCond(&s.mu),
		backlog: backlog{bound: backlogAttempts * runtime.GOMAXPROCS(0)},
	}
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
	s.open = !s.run.closed
}

// Reserve takes room for a delivery that is about to be stored, so that the store can keep it
// claimed. It returns false if the delivery has to wait for its turn in the store. Start or Release
// ends a reservation.
func (s *Scheduler) Reserve(destination string, size int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.open || s.shares.capacity() <= 0 || s.shares.bytes+size > s.config.Bytes {
		return false
	}
	now := s.config.Now()
	l := s.lanes.of(destination, now)
	s.lanes.touch(l, now)
	if l.fetching || l.fresh.isDue(now) || l.retry.isDue(now) || l.paused || l.hold != "" || l.breaker.open {
		return false
	}
	if n, again, _ := s.shares.room(l, now); n <= 0 || !again.IsZero() {
		return false
	}
	s.shares.hold(l, 1, size)
	s.shares.bytes += size
	l.reserved++
	s.shares.reserved++
	return true
}

// Release gives back the reservation of a delivery with a body of size bytes.
func (s *Scheduler) Release(destination string, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes.byID[destination] // it holds a reservation, so it was not forgotten
	l.reserved--
	s.shares.reserved--
	s.shares.drop(l, 1, size)
	s.shares.bytes -= size
	s.places.update(l, s.config.Now())
}

// Start takes a delivery that has a reservation and that the store has kept claimed. It returns false
// if the delivery has to go back to the store.
func (s *Scheduler) Start(it Item) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	l := s.lanes.byID[it.Destination]
	l.reserved--
	s.shares.reserved--
	if s.run.closed || l.paused || l.hold != "" || l.breaker.open {
		s.shares.drop(l, 1, it.Size)
		s.places.update(l, now)
		return false
	}
	s.run.backlog.note(l, it.Due, now)
	it.since = now
	l.ready.push(it)
	s.shares.ready++
	s.run.add(l)
	return true
}

// Note says when unclaimed deliveries in the store are due: a fresh one, a retry, or both. A zero
// time is ignored.
func (s *Scheduler) Note(destination string, fresh, retry time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	l := s.lanes.of(destination, now)
	l.fresh.note(fresh)
	l.retry.note(retry)
	s.lanes.touch(l, now)
	s.places.update(l, now)
}

// Settled says that the outcomes of deliveries are stored. Their bodies, of bytes in all, no longer
// count towards Config.Bytes.
func (s *Scheduler) Settled(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shares.bytes -= bytes
	s.places.refill()
}

// Fail notes that an attempt of l failed because of the destination. If that opens the breaker, Fail
// returns true, and the ready deliveries of l.
func (s *Scheduler) Fail(l *Lane, f Failure) (back []Item, opened bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	opened = l.fail(f, now, s.config.Jitter)
	if l.breaker.doubtful() {
		s.shares.setStanding(l, doubtful)
	}
	if opened {
		back = s.take(l)
	}
	s.places.update(l, now)
	return back, opened
}

// Use says that the destination of l can be used, with these limits. It ends a hold of l.
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
		s.shares.setStanding(l, unproven)
	}
	s.run.add(l)
	s.places.update(l, now)
}

// take removes and returns the ready deliveries of l.
func (s *Scheduler) take(l *Lane) (items []Item) {
	var size int64
	for l.ready.len() > 0 {
		it := l.ready.pop()
		size += it.Size
		items = append(items, it)
	}
	s.shares.ready -= len(items)
	s.shares.drop(l, len(items), size)
	s.run.remove(l)
	return items
}

// Close ends the workers, each after its delivery, and returns all ready deliveries.
func (s *Scheduler) Close() (items []Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = false
	s.run.close()
	for _, l := range s.lanes.byID {
		items = append(items, s.take(l)...)
	}
	return items
}

// A LaneLoad counts the claimed deliveries of one destination.
type LaneLoad struct {
	Destination   string
	Active, Ready int
}

// Loads returns the loads of lanes that have claimed deliveries.
func (s *Scheduler) Loads() (loads []LaneLoad) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lanes.byID {
		if l.active+l.ready.len() > 0 {
			loads = append(loads, LaneLoad{l.ID, l.active, l.ready.len()})
		}
	}
	return loads
}

// Load returns how many deliveries are being attempted, and how many are ready.
func (s *Scheduler) Load() (active, ready int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shares.active, s.shares.ready
}

// Draining reports whether a backlog drains beside deliveries that have just come.
func (s *Scheduler) Draining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	return s.run.backlog.on(now) && now.UnixNano()/int64(backlogPeriod)-s.run.backlog.period < int64(lateAfter/backlogPeriod)
}
