package feed

// A fifo is a queue. Its buffer grows to the most that it has held.
type fifo[T any] struct {
	buf   []T // a ring
	first int
	n     int
}

func (q *fifo[T]) len() int { return q.n }

// at returns the element at i, of which 0 is the oldest.
func (q *fifo[T]) at(i int) T { return q.buf[(q.first+i)%len(q.buf)] }

func (q *fifo[T]) push(v T) {
	if q.n == len(q.buf) {
		buf := make([]T, max(2*len(q.buf), 64))
		for i := range q.n {
			buf[i] = q.at(i)
		}
		q.buf, q.first = buf, 0
	}
	q.buf[(q.first+q.n)%len(q.buf)] = v
	q.n++
}

func (q *fifo[T]) pop() T {
	var none T
	v := q.buf[q.first]
	q.buf[q.first] = none
	q.first = (q.first + 1) % len(q.buf)
	q.n--
	return v
}

// appendTo appends the elements from i on to dst.
func (q *fifo[T]) appendTo(dst []T, i int) []T {
	for ; i < q.n; i++ {
		dst = append(dst, q.at(i))
	}
	return dst
}
