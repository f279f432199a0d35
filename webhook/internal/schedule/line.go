package schedule

// A line is a queue of lanes which any lane can leave. It is a doubly linked list.
type line[S, V any] struct {
	first, last *Lane[S, V]
	n           int
}

func (q *line[S, V]) push(l *Lane[S, V]) {
	l.before, l.after = q.last, nil
	*q.afterOf(l.before) = l
	q.last = l
	q.n++
}

func (q *line[S, V]) remove(l *Lane[S, V]) {
	*q.afterOf(l.before) = l.after
	if l.after == nil {
		q.last = l.before
	} else {
		l.after.before = l.before
	}
	l.before, l.after = nil, nil
	q.n--
}

// afterOf returns the pointer to the lane after l. The first lane comes after nil.
func (q *line[S, V]) afterOf(l *Lane[S, V]) **Lane[S, V] {
	if l == nil {
		return &q.first
	}
	return &l.after
}
