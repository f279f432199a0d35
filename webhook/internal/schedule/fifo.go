package schedule

// A fifo is a queue. Its array grows, but does not shrink.
type fifo[T any] struct {
	items []T // items[:head] are zero
	head  int
}

func (q *fifo[T]) len() int { return len(q.items) - q.head }

func (q *fifo[T]) push(v T) {
	if len(q.items) == cap(q.items) && 2*q.head > len(q.items) { // move the items rather than grow
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, v)
}

// first returns the item that pop takes out next.
func (q *fifo[T]) first() *T { return q.at(0) }

// at returns the item that is taken out after i others.
func (q *fifo[T]) at(i int) *T { return &q.items[q.head+i] }

func (q *fifo[T]) pop() T {
	var zero T
	v := *q.first()
	*q.first() = zero
	q.head++
	return v
}
