package pgqueue

import (
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A memory is what this node knows of the store: the chunks that it has claimed, and the due times of
// the first unclaimed chunks. Its methods want the lock of mu to be held, unless they say that they lock it.
type memory struct {
	logger  *slog.Logger
	changed store.Signal // of Changed

	// mu guards all below. So the id of this node does not change while chunks that were claimed with it
	// are added.
	mu     sync.Mutex
	node   int64 // the id of this node
	queues map[queueKey]*queue
	chunks map[int64]*chunk // the chunks that this node has claimed, by id
	bytes  int64            // of the chunks
	claims map[uint64]*item
	events uint64          // the number of the latest event; see event
	heard  uint64          // the latest event heard of a queue that is not in queues
	news   map[string]bool // up to maxNews destinations that others have changed; nil: any
	looked time.Duration   // how long it took to read all heads last time
}

func newMemory(logger *slog.Logger) *memory {
	return &memory{
		logger: logger, changed: store.NewSignal(),
		queues: make(map[queueKey]*queue), chunks: make(map[int64]*chunk), claims: make(map[uint64]*item),
	}
}

// nodeNow returns the id of this node. It locks mu.
func (m *memory) nodeNow() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node
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
func (m *memory) event() uint64 {
	m.events++
	return m.events
}

// queueOf returns the queue with this key. A new queue is stale.
func (m *memory) queueOf(key queueKey) *queue {
	q := m.queues[key]
	if q == nil {
		q = &queue{beyond: never, per: chunkItems, heard: m.heard}
		m.queues[key] = q
	}
	return q
}

// report notes that there may be these drafts as unclaimed chunks, because this node has stored them,
// or the answer was lost.
func (m *memory) report(drafts ...*draft) {
	for _, d := range drafts {
		m.reportOne(d.queue, d.due, len(d.entries))
	}
}

// reportOne notes that there may be an unclaimed chunk, of so many deliveries.
func (m *memory) reportOne(key queueKey, due int64, deliveries int) {
	q := m.queueOf(key)
	q.reported = m.event()
	if due < q.beyond {
		q.beyond, q.per = due, deliveries
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
func (m *memory) learn(h head, asked uint64) *queue {
	q := m.queueOf(h.queue)
	if asked > max(q.reported, q.asked) || h.due < q.beyond {
		q.beyond, q.per = h.due, h.waiting
	}
	q.asked = max(q.asked, asked)
	return q
}

// takeNews returns the destinations that others have changed, and from then on has none of them. It
// returns nil if any destination may have changed, or with all. The event asked is that of the query
// which the caller begins then. It locks mu.
func (m *memory) takeNews(all bool) (names map[string]bool, asked uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !all {
		names = m.news
	}
	m.news = make(map[string]bool)
	return names, m.event()
}

// learnHeads stores the heads of the destinations names, or of all if names is nil, which a query
// has returned. It returns what memory has of these destinations afterwards. The query began with
// the event asked and took this long. learnHeads locks mu.
func (m *memory) learnHeads(found []head, names map[string]bool, asked uint64, took time.Duration) (heads []store.Head) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range found {
		if h.due != never || m.queues[h.queue] != nil { // otherwise the name may be made up
			m.learn(h, asked)
		}
	}
	if names == nil {
		m.looked, names = took, make(map[string]bool)
		for key, q := range m.queues {
			names[key.destination] = true
			if q.asked < asked { // the database has no unclaimed chunk
				m.learn(head{key, never, chunkItems}, asked)
			}
		}
	}
	for name := range names {
		keys := queuesOf(name)
		if fresh, retry := m.queues[keys[0]], m.queues[keys[1]]; fresh != nil || retry != nil {
			heads = append(heads, store.Head{Destination: name, Fresh: fresh.next(), Retry: retry.next()})
		}
	}
	return heads
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
func (m *memory) enqueue(it *item) {
	q := m.queueOf(it.chunk.queue)
	i, _ := slices.BinarySearchFunc(q.free, it, itemOrder)
	q.free = slices.Insert(q.free, i, it)
}

// dequeue removes an item from its queue, if it is there.
func (m *memory) dequeue(it *item) {
	q := m.queueOf(it.chunk.queue)
	if q.first() == it { // usually; no other item is moved
		q.free[0] = nil // so that the array does not keep the item in memory
		q.free = q.free[1:]
	} else if i, found := slices.BinarySearchFunc(q.free, it, itemOrder); found {
		q.free = slices.Delete(q.free, i, i+1)
	}
}

// hand claims an item.
func (m *memory) hand(it *item) uint64 {
	m.dequeue(it)
	it.state, it.d.Claim = inHand, m.event()
	m.claims[it.d.Claim] = it
	it.chunk.inHand++
	it.chunk.used = time.Now()
	return it.d.Claim
}

// unhand ends the claim of an item, if there is one, and sets its new state.
func (m *memory) unhand(it *item, state itemState) {
	if it.d.Claim != 0 {
		delete(m.claims, it.d.Claim)
		it.chunk.inHand--
		it.chunk.used = time.Now()
	}
	it.d.Claim, it.state = 0, state
}

// takeBack puts those items that are still handed out back into their queues.
func (m *memory) takeBack(items ...*item) {
	for _, it := range items {
		if it.state == inHand {
			m.unhand(it, free)
			m.enqueue(it)
		}
	}
}

// install adds a claimed chunk to memory, and its free items to their queue.
func (m *memory) install(c *chunk) {
	if c.damaged != nil {
		c.inHand++
		m.logger.Error("pgqueue: a chunk of deliveries is damaged; its unreadable deliveries stay in the table until somebody deletes the chunk",
			"chunk", c.id, "destination", c.queue.destination, "error", c.damaged)
	}
	c.used = time.Now()
	m.chunks[c.id] = c
	m.bytes += c.size
	for i := range c.items {
		if it := &c.items[i]; it.state == free {
			m.enqueue(it)
		}
	}
}

// forget removes chunks from memory, and ends the claims of their items.
func (m *memory) forget(cs ...*chunk) {
	changed := make(map[*queue]bool)
	for _, c := range cs {
		if m.chunks[c.id] != c {
			continue
		}
		delete(m.chunks, c.id)
		m.bytes -= c.size
		for i := range c.items {
			it := &c.items[i]
			if it.state == free {
				changed[m.queueOf(c.queue)] = true
			}
			m.unhand(it, settled)
		}
	}
	for q := range changed { // once, not for each item
		q.free = slices.DeleteFunc(q.free, func(it *item) bool { return it.state != free })
	}
}

// hear notes that the database may have other unclaimed chunks of these destinations. Then Fetch and
// Heads ask for them. The names may be made up, so it adds no queues. It locks mu.
func (m *memory) hear(names ...string) {
	m.mu.Lock()
	for _, name := range names {
		if m.news != nil {
			m.news[name] = true
		}
		if len(m.news) > maxNews {
			m.news = nil
		}
		for _, key := range queuesOf(name) {
			at := &m.heard
			if q := m.queues[key]; q != nil {
				at = &q.heard
			}
			*at = m.event()
		}
	}
	m.mu.Unlock()
	m.changed.Set()
}

// hearAny does the same for all destinations, and removes empty queues. It locks mu.
func (m *memory) hearAny() {
	m.mu.Lock()
	m.news, m.heard = nil, m.event()
	for key, q := range m.queues {
		q.heard = m.event()
		if len(q.free) == 0 && q.beyond == never {
			delete(m.queues, key)
		}
	}
	m.mu.Unlock()
	m.changed.Set()
}
