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
	events  uint64           // the number of the latest event; see event
	chunks  map[int64]*chunk // the chunks that this node has claimed, by id
	bytes   int64            // of the chunks
	claims  map[uint64]*item
	news    map[string]bool // destinations that others have changed
	allNew  bool            // others may have changed any destination
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

// stale says that other nodes may have stored a chunk that the latest query has not seen.
func (q *queue) stale() bool { return q.asked <= q.heard }

const never = math.MaxInt64

// event returns the number of a new event, such as a claim. Later events have higher numbers.
func (s *memory) event() uint64 {
	s.events++
	return s.events
}

// queueOf returns the queue with this key. A new queue is stale. The caller holds s.mu. This is true
// of all functions in this file that do not lock s.mu themselves.
func (s *memory) queueOf(key queueKey) *queue {
	q := s.queues[key]
	if q == nil {
		q = &queue{beyond: never, per: chunkItems}
		s.queues[key] = q
	}
	return q
}

// report notes that a queue may have an unclaimed chunk, which this node has stored.
func (s *memory) report(key queueKey, due int64, waiting int) {
	q := s.queueOf(key)
	q.reported = s.event()
	if due < q.beyond {
		q.beyond, q.per = due, max(1, waiting)
	}
}

// reportAll notes that the queues of drafts may have these drafts as unclaimed chunks.
func (s *memory) reportAll(drafts []*draft) {
	for _, d := range drafts {
		s.report(d.queue, d.due, len(d.entries))
	}
}

// A head is the first unclaimed chunk of a queue. If there is none, waiting is 0.
type head struct {
	queue   queueKey
	due     int64
	waiting int
}

// learn stores the head of a queue that a query has returned. The argument asked is the number of
// the event that the query began. The query may not have seen a chunk that was reported later, or
// that a query which began later has returned. Then learn keeps an earlier due time.
func (s *memory) learn(h head, asked uint64) {
	if h.waiting == 0 {
		h.due, h.waiting = never, chunkItems
	}
	q := s.queueOf(h.queue)
	if asked > max(q.reported, q.asked) || h.due < q.beyond {
		q.beyond, q.per = h.due, h.waiting
	}
	q.asked = max(q.asked, asked)
}

// first returns the first delivery that is in memory and not handed out, or nil. q may be nil.
func (q *queue) first() *item {
	if q == nil || len(q.free) == 0 {
		return nil
	}
	return q.free[0]
}

// next returns when the first delivery that is not handed out is due. It returns the zero time if
// there is none.
func (q *queue) next() time.Time {
	at := q.beyond
	if it := q.first(); it != nil {
		at = min(at, it.due)
	}
	return timeOf(at)
}

func timeOf(at int64) time.Time {
	if at == never {
		return time.Time{}
	}
	return time.UnixMicro(at).UTC()
}

// pop removes the first item from the queue and returns it.
func (q *queue) pop() *item {
	it := q.free[0]
	q.free[0] = nil // so that the array does not keep the item in memory
	q.free = q.free[1:]
	return it
}

// putBack adds items to their queue.
func (s *memory) putBack(key queueKey, items ...*item) {
	q := s.queueOf(key)
	for _, it := range items {
		it.state, it.claim = free, 0
	}
	q.free = append(q.free, items...)
	slices.SortFunc(q.free, itemOrder)
}

// tidy removes the items that are no longer free from a queue.
func (s *memory) tidy(key queueKey) {
	q := s.queueOf(key)
	q.free = slices.DeleteFunc(q.free, func(it *item) bool { return it.state != free })
}

// hand claims an item. The caller of hand removes the item from its queue.
func (s *memory) hand(it *item) uint64 {
	it.state, it.claim = inHand, s.event()
	s.claims[it.claim] = it
	it.chunk.inHand++
	it.chunk.used = time.Now()
	return it.claim
}

// unhand ends the claim of an item and sets its new state.
func (s *memory) unhand(it *item, state itemState) {
	delete(s.claims, it.claim)
	it.chunk.inHand--
	it.chunk.used = time.Now()
	it.claim, it.state = 0, state
}

// takeBack ends the claims of those items that are still handed out, and puts these items back into
// their queues.
func (s *memory) takeBack(items []*item) {
	for _, it := range items {
		if it.state == inHand {
			s.unhand(it, free)
			s.putBack(it.chunk.queue, it)
		}
	}
}

// read decodes the chunk of a row that this node has claimed. It logs if the chunk is damaged.
func (s *memory) read(r *row) *chunk {
	c, err := readChunk(r)
	if err != nil {
		c.inHand++
		s.config.Logger.Error("pgqueue: a chunk of deliveries is damaged; its unreadable deliveries stay in the table until somebody deletes the chunk",
			"chunk", c.id, "destination", c.queue.destination, "error", err)
	}
	return c
}

// install adds a claimed chunk to memory, and its free items to their queue. A free item is neither
// handed out nor done.
func (s *memory) install(c *chunk) {
	c.used = time.Now()
	s.chunks[c.id] = c
	s.bytes += c.size
	var items []*item
	for i := range c.items {
		if it := &c.items[i]; it.state == free {
			items = append(items, it)
		}
	}
	s.putBack(c.queue, items...)
}

// forget removes a chunk from memory, and ends the claims of its items.
func (s *memory) forget(c *chunk) {
	if s.chunks[c.id] == c {
		delete(s.chunks, c.id)
		s.bytes -= c.size
	}
	waits := false
	for i := range c.items {
		switch it := &c.items[i]; it.state {
		case inHand, storing:
			s.unhand(it, done)
		case free:
			it.state, waits = done, true
		}
	}
	if waits {
		s.tidy(c.queue)
	}
}

// correct marks the items of a chunk as done whose outcomes are stored according to its row.
func (s *memory) correct(c *chunk, r *row) {
	c.waiting = r.waiting
	for i := range c.items {
		it := &c.items[i]
		if !isSet(r.done, i) {
			continue
		}
		if it.state == inHand {
			s.unhand(it, done)
		}
		it.state = done
	}
	s.tidy(c.queue)
}

// Changed implements webhook.Store.
func (s *memory) Changed() <-chan struct{} { return s.changed }

func (s *memory) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// hear notes that the database may have other unclaimed chunks of these destinations. Then Fetch asks
// for the queues in memory, and Heads for all.
func (s *memory) hear(names ...string) {
	s.mu.Lock()
	for _, name := range names {
		s.news[name] = true
		for _, retries := range []bool{false, true} {
			if q := s.queues[queueKey{name, retries}]; q != nil {
				q.heard = s.event()
			}
		}
	}
	s.mu.Unlock()
	s.signal()
}

// hearAny does the same for all destinations.
func (s *memory) hearAny() {
	s.mu.Lock()
	s.allNew = true
	for _, q := range s.queues {
		q.heard = s.event()
	}
	s.mu.Unlock()
	s.signal()
}
