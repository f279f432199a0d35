package schedule

// A list is a doubly linked list of lanes.
type list struct {
	kind        int // byUse or byPlace: which of the two Lane.links this list uses
	first, last *Lane
	n           int
}

const (
	byUse = iota
	byPlace
)

type links struct {
	prev, next *Lane
}

func (q *list) push(l *Lane) {
	l.links[q.kind].prev = q.last
	if q.last == nil {
		q.first = l
	} else {
		q.last.links[q.kind].next = l
	}
	q.last = l
	q.n++
}

func (q *list) remove(l *Lane) {
	k := &l.links[q.kind]
	if k.prev != nil {
		k.prev.links[q.kind].next = k.next
	} else {
		q.first = k.next
	}
	if k.next != nil {
		k.next.links[q.kind].prev = k.prev
	} else {
		q.last = k.prev
	}
	*k = links{}
	q.n--
}

// A laneHeap is a container/heap of lanes. The first lane is the one whose Lane.at is the earliest.
type laneHeap []*Lane

func (h laneHeap) Len() int           { return len(h) }
func (h laneHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h laneHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

func (h *laneHeap) Push(x any) {
	l := x.(*Lane)
	l.pos = len(*h)
	*h = append(*h, l)
}

func (h *laneHeap) Pop() any {
	old := *h
	n := len(old) - 1
	l := old[n]
	old[n] = nil
	*h = old[:n]
	return l
}
