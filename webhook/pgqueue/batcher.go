package pgqueue

import "sync"

// maxBatch is how many bytes of requests one transaction takes, about.
const maxBatch = 4 << 20

// A batcher gathers what concurrent calls want stored while others are being
// stored, so that under load one transaction stores it for many of them.
type batcher[T any] struct {
	limit int
	work  func([]*T)

	mu      sync.Mutex
	arrived sync.Cond
	waiting []*T
	sizes   []int
	closed  bool
	running sync.WaitGroup
}

// newBatcher starts n goroutines that call work with the requests that wait,
// of up to limit bytes, at least one.
func newBatcher[T any](n, limit int, work func([]*T)) *batcher[T] {
	b := &batcher[T]{limit: limit, work: work}
	b.arrived.L = &b.mu
	for range n {
		b.running.Go(b.run)
	}
	return b
}

// add hands over a request of size bytes.
func (b *batcher[T]) add(r *T, size int) {
	b.mu.Lock()
	b.waiting = append(b.waiting, r)
	b.sizes = append(b.sizes, size)
	b.mu.Unlock()
	b.arrived.Signal()
}

func (b *batcher[T]) run() {
	for {
		b.mu.Lock()
		for len(b.waiting) == 0 && !b.closed {
			b.arrived.Wait()
		}
		n, size := 0, 0
		for n < len(b.waiting) && (n == 0 || size+b.sizes[n] <= b.limit) {
			size += b.sizes[n]
			n++
		}
		batch := b.waiting[:n:n]
		b.waiting, b.sizes = b.waiting[n:], b.sizes[n:]
		b.mu.Unlock()
		if n == 0 {
			return
		}
		b.work(batch)
	}
}

// close returns when all that was added has been worked on.
func (b *batcher[T]) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.arrived.Broadcast()
	b.running.Wait()
}
