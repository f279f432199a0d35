package lanes

// first returns the Order of the first delivery that waits, Last if none does.
func (l *Lane) first() Order {
	o := l.nearest()
	if l.Beyond.Before(o) {
		return l.Beyond
	}
	return o
}

// nearest returns the Order of the first delivery that waits in memory.
func (l *Lane) nearest() Order {
	o := Last
	if it := l.run.peek(); it != nil {
		o = it.Order
	}
	if len(l.rest) > 0 {
		o = minOrder(o, l.rest[0].Order)
	}
	return o
}

// pop takes out the first delivery if it is due. If the first is due but not in
// memory, it returns nil and true.
func (l *Lane) pop(now int64) (it *Item, beyond bool) {
	o := l.nearest()
	if l.Beyond.Before(o) {
		return nil, l.Beyond.At <= now
	}
	switch {
	case o.At > now || o == Last:
		return nil, false
	case len(l.rest) > 0 && l.rest[0].Order == o:
		it = l.rest[0].value
		l.removeRest(0)
	default:
		it = l.run.pop()
	}
	return it, false
}

// Empty reports whether the lane holds nothing and knows of nothing beyond.
func (l *Lane) Empty() bool { return l.held == 0 && l.Beyond == Last }

// Held returns how many deliveries of the lane are in memory.
func (l *Lane) Held() int { return l.held }

// A queue is a ring of items in their order.
type queue struct {
	buf  []*Item // its length is a power of two
	head int
	len  int
}

func (q *queue) peek() *Item {
	if q.len == 0 {
		return nil
	}
	return q.buf[q.head]
}

// precedes reports whether o stands before the last item.
func (q *queue) precedes(o Order) bool {
	return q.len > 0 && o.Before(q.buf[(q.head+q.len-1)&(len(q.buf)-1)].Order)
}

func (q *queue) push(it *Item) {
	if q.len == len(q.buf) {
		q.resize(max(4, 2*q.len))
	}
	q.buf[(q.head+q.len)&(len(q.buf)-1)] = it
	q.len++
}

func (q *queue) pop() *Item {
	it := q.buf[q.head]
	q.buf[q.head] = nil
	q.head = (q.head + 1) & (len(q.buf) - 1)
	q.len--
	if q.len == 0 && len(q.buf) > 64 {
		q.buf, q.head = nil, 0
	}
	return it
}

// filter takes out the items for which out returns true.
func (q *queue) filter(out func(*Item) bool) {
	mask, kept := len(q.buf)-1, 0
	for i := range q.len {
		it := q.buf[(q.head+i)&mask]
		if out(it) {
			continue
		}
		q.buf[(q.head+kept)&mask] = it
		kept++
	}
	for i := kept; i < q.len; i++ {
		q.buf[(q.head+i)&mask] = nil
	}
	q.len = kept
	if kept == 0 {
		q.buf, q.head = nil, 0
	}
}

func (q *queue) resize(n int) {
	buf := make([]*Item, n)
	k := copy(buf, q.buf[q.head:])
	copy(buf[k:], q.buf[:q.head])
	q.buf, q.head = buf, 0
}

// A ring is a list of lanes that take turns.
type ring struct {
	head, tail *Lane
	len        int
}

func (r *ring) push(l *Lane) {
	l.prev, l.next = r.tail, nil
	if r.tail == nil {
		r.head = l
	} else {
		r.tail.next = l
	}
	r.tail = l
	r.len++
}

func (r *ring) remove(l *Lane) {
	if l.prev == nil {
		r.head = l.next
	} else {
		l.prev.next = l.next
	}
	if l.next == nil {
		r.tail = l.prev
	} else {
		l.next.prev = l.prev
	}
	l.prev, l.next = nil, nil
	r.len--
}
