package pgqueue

import (
	"math"
	"slices"
	"time"
)

// A memory is what this node knows of the store: the chunks that it has claimed, and the due times of
// the first unclaimed chunks. heartbeat.mu guards all its fields except changed.
type memory struct {
	heartbeat
	changed chan struct{} // of Changed; capacity 1
	queues  map[queueKey]*queue
	chunks  map[int64]*chunk // the chunks that this node has claimed, by id
	bytes   int64            // of the chunks
	claims  map[uint64]*item
	events  uint64          // the number of the latest event; see event
	heard   uint64          // the latest event heard of a queue that is not in queues
	news    map[string]bool // up to maxNews destinations that others have changed; nil: any
	looked  time.Duration   // how long it took to read all heads last time
}

// A queue is what this node knows of a queue of the store.
type queue struct {
	free []*item // of the claimed chunks, in the order of itemOrder
	// beyond is the due time of the first unclaimed chunk in the database, or never if there is none.
	// It may be too early. While the queue is stale or contended, it may also be too late.
	beyond int64
	per    int // how many deliveries the first unclaimed chunk has, as far as is known

	// The numbers of the latest events: a chunk was reported, other nodes may have stored a chunk, a
	// query began that has returned the head.
	reported, heard, asked uint64
}

// maxNews bounds the names in memory of destinations with news. Any role of the database can send
// notifications. With more names, the next call of Heads asks for all destinations.
const maxNews = 4096

// stale says that other nodes may have stored a chunk that the latest query has not seen.
func (q *queue) stale() bool { return q.asked <= q.heard }

const never = math.MaxInt64

// event returns the number of a new event, such as a claim. Later events have higher numbers.
func (s *memory) event() uint64 {
	s.events++
	return s.events
}

// queueOf returns the queue with this key. A new queue is stale. The caller holds s.mu, as for all
// functions in this file that do not lock it themselves.
func (s *memory) queueOf(key queueKey) *queue {
	q := s.queues[key]
	if q == nil {
		q = &queue{beyond: never, per: chunkItems, heard: s.heard}
		s.queues[key] = q
	}
	return q
}

// report notes that there may be these drafts as unclaimed chunks, because this node has stored them,
// or the answer was lost.
func (s *memory) report(drafts ...*draft) {
	for _, d := range drafts {
		q := s.queueOf(d.queue)
		q.reported = s.event()
		if d.due < q.beyond {
			q.beyond, q.per = d.due, len(d.entries)
		}
	}
}

// A head is the first unclaimed chunk of a queue. If there is none, due is never.
type head struct {
	queue   queueKey
	due     int64
	waiting int
}

// learn stores the head of a queue that a query has returned. The query began with the event asked. It
// may not have seen a chunk that was reported later, or returned by a query that began later. Then learn
// keeps an earlier due time.
func (s *memory) learn(h head, asked uint64) *queue {
	q := s.queueOf(h.queue)
	if asked > max(q.reported, q.asked) || h.due < q.beyond {
		q.beyond, q.per = h.due, h.waiting
	}
	q.asked = max(q.asked, asked)
	return q
}

// first returns the first delivery that is in memory and not handed out, or nil. q may be nil.
func (q *queue) first() *item {
	if q == nil || len(q.free) == 0 {
		return nil
	}
	return q.free[0]
}

// next returns when the first delivery that is not handed out is due, or zero if there is none. q may
// be nil.
func (q *queue) next() time.Time {
	if q == nil {
		return time.Time{}
	}
	at := q.beyond
	if it := q.first(); it != nil {
		at = min(at, it.due())
	}
	return timeOf(at)
}

func timeOf(at int64) time.Time {
	if at == never {
		return time.Time{}
	}
	return time.UnixMicro(at).UTC()
}

// enqueue adds a free item to its queue.
func (s *memory) enqueue(it *item) {
	q := s.queueOf(it.chunk.queue)
	i, _ := slices.BinarySearchFunc(q.free, it, itemOrder)
	q.free = slices.Insert(q.free, i, it)
}

// dequeue removes an item from its queue, if it is there.
func (s *memory) dequeue(it *item) {
	q := s.queueOf(it.chunk.queue)
	if q.first() == it { // usually; no other item is moved
		q.free[0] = nil // so that the array does not keep the item in memory
		q.free = q.free[1:]
	} else if i, found := slices.BinarySearchFunc(q.free, it, itemOrder); found {
		q.free = slices.Delete(q.free, i, i+1)
	}
}

// hand claims an item.
func (s *memory) hand(it *item) uint64 {
	s.dequeue(it)
	it.state, it.d.Claim = inHand, s.event()
	s.claims[it.d.Claim] = it
	it.chunk.inHand++
	it.chunk.used = time.Now()
	return it.d.Claim
}

// unhand ends the claim of an item, if there is one, and sets its new state.
func (s *memory) unhand(it *item, state itemState) {
	if it.d.Claim != 0 {
		delete(s.claims, it.d.Claim)
		it.chunk.inHand--
		it.chunk.used = time.Now()
	}
	it.d.Claim, it.state = 0, state
}

// takeBack puts those items that are still handed out back into their queues.
func (s *memory) takeBack(items ...*item) {
	for _, it := range items {
		if it.state == inHand {
			s.unhand(it, free)
			s.enqueue(it)
		}
	}
}

// install adds a claimed chunk to memory, and its free items to their queue.
func (s *memory) install(c *chunk) {
	if c.damaged != nil {
		c.inHand++
		s.config.Logger.Error("pgqueue: a chunk of deliveries is damaged; its unreadable deliveries stay in the table until somebody deletes the chunk",
			"chunk", c.id, "destination", c.queue.destination, "error", c.damaged)
	}
	c.used = time.Now()
	s.chunks[c.id] = c
	s.bytes += c.size
	for i := range c.items {
		if it := &c.items[i]; it.state == free {
			s.enqueue(it)
		}
	}
}

// forget removes chunks from memory, and ends the claims of their items.
func (s *memory) forget(cs ...*chunk) {
	changed := make(map[*queue]bool)
	for _, c := range cs {
		if s.chunks[c.id] != c {
			continue
		}
		delete(s.chunks, c.id)
		s.bytes -= c.size
		for i := range c.items {
			it := &c.items[i]
			if it.state == free {
				changed[s.queueOf(c.queue)] = true
			}
			s.unhand(it, settled)
		}
	}
	for q := range changed { // once, not for each item
		q.free = slices.DeleteFunc(q.free, func(it *item) bool { return it.state != free })
	}
}

// Changed implements store.Store.
func (s *memory) Changed() <-chan struct{} { return s.changed }

// signal puts a value into a channel with capacity 1, unless it has one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// hear notes that the database may have other unclaimed chunks of these destinations. Then Fetch and
// Heads ask for them. The names may be made up, so it adds no queues.
func (s *memory) hear(names ...string) {
	s.mu.Lock()
	for _, name := range names {
		if s.news != nil {
			s.news[name] = true
		}
		if len(s.news) > maxNews {
			s.news = nil
		}
		for _, key := range queuesOf(name) {
			at := &s.heard
			if q := s.queues[key]; q != nil {
				at = &q.heard
			}
			*at = s.event()
		}
	}
	s.mu.Unlock()
	signal(s.changed)
}

// hearAny does the same for all destinations. It removes empty queues.
func (s *memory) hearAny() {
	s.mu.Lock()
	s.news, s.heard = nil, s.event()
	for key, q := range s.queues {
		q.heard = s.event()
		if len(q.free) == 0 && q.beyond == never {
			delete(s.queues, key)
		}
	}
	s.mu.Unlock()
	signal(s.changed)
}
