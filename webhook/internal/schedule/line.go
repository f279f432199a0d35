package schedule

// A line is a queue of lanes which any lane can leave. It is a doubly linked list.
type line struct {
	first, last *Lane
	n           int
}

func (q *line) push(l *Lane) {
	l.before, l.after = q.last, nil
	*q.afterOf(l.before) = l
	q.last = l
	q.n++
}

func (q *line) remove(l *Lane) {
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
func (q *line) afterOf(l *Lane) **Lane {
	if l == nil {
		return &q.first
	}
	return &l.after
}
