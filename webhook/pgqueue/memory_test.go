package pgqueue

import (
	"slices"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A query learns the head of a queue. What happens during the query may not be in its answer. After
// a notification the queue stays stale, so that the next Fetch asks again. A chunk that this node has
// stored, or that a later query has returned, is not forgotten.
func TestAnswerOfQueryMayBeOld(t *testing.T) {
	key := queueKey{destination: "crm"}
	for _, tt := range []struct {
		name   string
		during func(s *memory)
		due    int64 // of the head that the query returns
		stale  bool
		beyond int64
	}{
		{"nothing happens, no head", func(s *memory) {}, never, false, never},
		{"nothing happens", func(s *memory) {}, 7, false, 7},
		{"notification", func(s *memory) { s.hear("crm") }, 7, true, 7},
		{"notification about another destination", func(s *memory) { s.hear("mail") }, 7, false, 7},
		{"notifications may be lost", func(s *memory) { s.hearAny() }, 7, true, 7},
		{"own chunk, due earlier", func(s *memory) { s.report(&draft{queue: key, due: 5}) }, 7, false, 5},
		{"own chunk, due later", func(s *memory) { s.report(&draft{queue: key, due: 9}) }, 7, false, 7},
		{"own chunk, and no head", func(s *memory) { s.report(&draft{queue: key, due: 9}) }, never, false, 8},
		{"later query", func(s *memory) { s.learn(head{key, 5, 1}, s.event()) }, 7, false, 5},
		{"later query without a head", func(s *memory) { s.learn(head{key, never, 1}, s.event()) }, 7, false, 7},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &memory{changed: store.NewSignal(), queues: make(map[queueKey]*queue), news: make(map[string]bool)}
			if !s.queueOf(key).stale() {
				t.Error("a new queue is not stale, want stale")
			}
			s.learn(head{key, 8, 1}, s.event())
			asked := s.event()
			tt.during(s)
			s.learn(head{key, tt.due, 1}, asked)
			if q := s.queueOf(key); q.stale() != tt.stale || q.beyond != tt.beyond {
				t.Errorf("after the query: stale %v, beyond %d; want %v, %d", q.stale(), q.beyond, tt.stale, tt.beyond)
			}
		})
	}
}

// A node that only puts never asks for heads. It does not remember each destination that it hears of.
func TestNodeThatOnlyPutsForgetsNews(t *testing.T) {
	s := &memory{changed: store.NewSignal(), queues: make(map[queueKey]*queue)}
	for range 3 {
		s.hear("crm", "mail")
		s.hearAny()
		if len(s.news) != 0 || len(s.queues) != 0 {
			t.Fatalf("memory has %d destinations with news and %d queues, want none", len(s.news), len(s.queues))
		}
	}
}

// BenchmarkBacklogInMemory reports what it costs, while the lock of memory is held, to store a delivery
// and to settle the first one, with 20,000 chunks of one delivery each in memory.
func BenchmarkBacklogInMemory(b *testing.B) {
	s := &memory{
		queues: make(map[queueKey]*queue),
		chunks: make(map[int64]*chunk), claims: make(map[uint64]*item),
	}
	key := queueKey{destination: "crm"}
	var stored int64
	queue := func() {
		stored++
		c := &chunk{id: stored, queue: key, items: make([]item, 1)}
		c.items[0] = item{chunk: c, d: store.Delivery{Due: time.UnixMicro(stored)}}
		s.install(c)
	}
	for range 20_000 {
		queue()
	}
	for b.Loop() {
		queue()
		it := s.queueOf(key).first()
		s.hand(it)
		s.unhand(it, settled)
		s.forget(it.chunk)
	}
}

// Memory has exactly the free deliveries in its queues. Otherwise a sweep through a large backlog, whose
// chunks it claims and gives back page by page, would keep all bodies in memory.
func TestQueuesHaveOnlyFreeItems(t *testing.T) {
	s := &memory{
		queues: make(map[queueKey]*queue),
		chunks: make(map[int64]*chunk), claims: make(map[uint64]*item),
	}
	key := queueKey{destination: "crm"}
	var chunks []*chunk
	for id := range int64(4) {
		c := &chunk{id: id, queue: key, items: make([]item, 3)}
		for i := range c.items {
			c.items[i] = item{chunk: c, index: i, d: store.Delivery{Due: time.UnixMicro(id % 2)}} // the chunks overlap
		}
		s.install(c)
		chunks = append(chunks, c)
	}
	check := func(what string, want ...*item) {
		t.Helper()
		if got := s.queueOf(key).free; !slices.Equal(got, want) {
			t.Errorf("after %s the queue has %d items, want %d, in order", what, len(got), len(want))
		}
	}
	a, b, c, d := chunks[0].items, chunks[1].items, chunks[2].items, chunks[3].items
	check("claims of chunks", &a[0], &a[1], &a[2], &c[0], &c[1], &c[2], &b[0], &b[1], &b[2], &d[0], &d[1], &d[2])
	for _, it := range []*item{&a[0], &a[2], &b[1]} {
		s.hand(it)
	}
	check("claims of deliveries", &a[1], &c[0], &c[1], &c[2], &b[0], &b[2], &d[0], &d[1], &d[2])
	s.takeBack(&a[2], &a[0])
	s.unhand(&b[1], settled)
	check("the end of claims", &a[0], &a[1], &a[2], &c[0], &c[1], &c[2], &b[0], &b[2], &d[0], &d[1], &d[2])
	s.hand(&d[0])
	s.forget(chunks[0], chunks[3])
	check("the end of chunks", &c[0], &c[1], &c[2], &b[0], &b[2])
	if len(s.claims) != 0 || len(s.chunks) != 2 {
		t.Errorf("memory has %d claims and %d chunks, want 0 and 2", len(s.claims), len(s.chunks))
	}
}
