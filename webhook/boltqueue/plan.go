package boltqueue

import (
	"slices"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// A home is what the store knows of a lane.
type home struct {
	number   uint32      // in the file, 0 if it has none
	spans    []span      // what of waiting is not in memory, by first
	folded   int         // how many of these there were after the latest fold
	away     int         // how many rows that is, with those that cannot be read
	frontier lanes.Order // rows of waiting up to here are in memory
	loaded   int         // how many of these are
	gone     int         // rows of waiting that are settled, and in the file still
	arrived  int         // the latest transaction that put rows there
	bytes    int64       // of its items that count against CacheBytes
	pending  int         // puts of the commit going on
	retiring bool        // in Queue.retired
	moving   bool        // some of its items are being moved to waiting
}

func homeOf(l *lanes.Lane) *home {
	if l.Home == nil {
		l.Home = &home{frontier: firstOrder}
	}
	return l.Home.(*home)
}

// retire is asked whether the table may forget a lane. A lane that has a number
// is first taken out of the file.
func (q *Queue) retire(l *lanes.Lane) bool {
	h := homeOf(l)
	if h.pending > 0 {
		return false
	}
	if h.number == 0 {
		return true
	}
	if !h.retiring {
		h.retiring = true
		q.retired = append(q.retired, l)
	}
	return false
}

// gather sorts what was sealed by its lanes, and within each in its order.
func (e *edit) gather() {
	e.byLane = make(map[*lanes.Lane][]candidate)
	fresh := e.tail.fresh
	for i := 0; i < len(fresh); {
		if fresh[i].item == nil {
			i++
			continue
		}
		l, n := fresh[i].item.Lane(), i+1
		for n < len(fresh) && fresh[n].item != nil && fresh[n].item.Lane() == l {
			n++
		}
		e.byLane[l] = append(e.byLane[l], fresh[i:n]...)
		i = n
	}
	for _, cs := range e.byLane {
		sortCandidates(cs)
	}
}

func sortCandidates(cs []candidate) {
	slices.SortFunc(cs, func(a, b candidate) int { return compareOrders(a.item.Order, b.item.Order) })
}

// plan decides what the requests want to be stored. The queue is locked.
func (e *edit) plan(group []*request) {
	q := e.q
	e.segment = q.segment
	if e.segment.bytes >= segmentBytes {
		e.segment = segment{number: e.segment.number + 1}
	}
	left := q.retired[:0]
	for _, l := range q.retired {
		h := homeOf(l)
		if l.Empty() && h.away+h.gone > 0 {
			left = append(left, l) // its name goes after its rows
			continue
		}
		h.retiring = false
		if l.Empty() && h.number != 0 {
			e.unnamed = append(e.unnamed, unnamed{l, h.number})
			h.number = 0
			h.pending++
		}
	}
	q.retired = left
	var more []*lanes.Lane // have puts beside
	for _, r := range group {
		if r.err != nil {
			continue
		}
		if len(r.puts) > 0 && r.work == nil {
			n := bytesOf(r.puts)
			if e.full(n) {
				r.err = webhook.ErrQueueFull
				continue
			}
			e.used += n
		}
		for i := range r.puts {
			p := &r.puts[i]
			if !p.known {
				if p.added = q.seen.Add(p.key, e.now); !p.added {
					continue
				}
				e.keys = append(e.keys, p.key)
			}
			if r.work == nil {
				r.stored++
			}
			l := q.table.Lane(p.dest)
			homeOf(l).pending++
			e.changed.waiting++
			p.item.Seq = q.number()
			p.item.Destination, p.item.Size = l.Name, sizeOf(p.row)
			e.stored = append(e.stored, stored{p, l})
			e.byLane[l] = append(e.byLane[l], candidate{p.item, p.row, true})
			more = append(more, l)
		}
	}
	for _, l := range more {
		sortCandidates(e.byLane[l])
	}
}

// planChunk is how many deliveries are planned for while the queue is locked.
const planChunk = 256

// planLanes plans for what was sealed. The queue is locked for a few lanes at a time.
func (e *edit) planLanes() {
	q := e.q
	left := 0
	for l, cs := range e.byLane {
		if left <= 0 {
			q.mu.Lock()
			left = planChunk
		}
		e.share(l, cs)
		if left -= len(cs); left <= 0 {
			q.mu.Unlock()
		}
	}
	if left > 0 {
		q.mu.Unlock()
	}
}

// total plans what is to be counted. The queue is locked.
func (e *edit) total() {
	q := e.q
	e.rows = q.count.number + 1
	for range e.seen() {
		q.turned(q.number())
	}
	e.count = q.base
	e.count.add(e.tail.changed)
	e.count.add(e.changed)
	e.count.number, e.count.lane = q.count.number, q.count.lane
}

// share decides which deliveries of a lane stay in memory, and go into blocks:
// the first, as long as they are due and have room, and those that somebody
// holds. The others go to waiting, and out of memory. What was settled since it was
// sealed goes into blocks too: so the journal finds it there.
func (e *edit) share(l *lanes.Lane, cs []candidate) {
	cs = slices.DeleteFunc(cs, func(c candidate) bool {
		if c.direct || !c.item.Gone() {
			return false
		}
		e.kept = append(e.kept, kept{candidate: c})
		return true
	})
	if len(cs) == 0 {
		return
	}
	q, h := e.q, homeOf(l)
	var (
		ch   = changed{lane: l, beyond: l.Beyond, arrived: h.arrived, moved: cs[:0]}
		mine = h.bytes
		cut  bool
		old  bool // some of those that go are in the table
		now  = e.now.UnixMicro()
	)
	keep := func(c candidate) {
		mine += c.item.Size
		e.cached += c.item.Size
		e.kept = append(e.kept, kept{candidate: c, lane: l})
	}
	for _, c := range cs {
		it := c.item
		if !c.direct && !it.Free() || !h.frontier.Before(it.Order) {
			keep(c)
			continue
		}
		cut = cut || !it.Order.Before(ch.beyond) || it.At > now || !q.fits(mine, q.cached+e.cached, it.Size)
		if !cut {
			keep(c)
			continue
		}
		old = old || !c.direct
		ch.moved = append(ch.moved, c)
		e.segment.bytes += it.Size
	}
	if len(ch.moved) == 0 {
		return
	}
	e.name(l)
	first := ch.moved[0].item.Order
	ch.span, ch.extended = h.displace(e.segment.number)
	if now := (span{segment: e.segment.number, first: first}); !ch.extended || first.Before(ch.span.first) {
		h.place(now)
	} else {
		h.place(ch.span)
	}
	l.Beyond = h.beyond()
	h.away += len(ch.moved)
	h.arrived, h.moving = e.tx.ID(), true
	e.lanes = append(e.lanes, ch)
	if old {
		q.table.Expel(l, func(it *lanes.Item) bool {
			_, ok := slices.BinarySearchFunc(ch.moved, it.Order, func(c candidate, o lanes.Order) int { return compareOrders(c.item.Order, o) })
			return ok
		}, now)
	} else {
		q.table.Refresh(l, now)
	}
}

func compareOrders(a, b lanes.Order) int {
	switch {
	case a.Before(b):
		return -1
	case b.Before(a):
		return 1
	}
	return 0
}

func minOrder(a, b lanes.Order) lanes.Order {
	if b.Before(a) {
		return b
	}
	return a
}

// fits reports whether a delivery of n bytes stays in memory, where its lane has
// so many bytes and all have cached. A lane may fill a quarter of what the others
// leave, so that those that hang do not take the memory from those that flow; a
// few deliveries it may always have.
func (q *Queue) fits(lane, cached, n int64) bool {
	free := q.config.CacheBytes - cached
	return lane+n <= free/4 || lane == 0 && cached+n <= 2*q.config.CacheBytes
}

// name sees to it that l has a number in the file.
func (e *edit) name(l *lanes.Lane) {
	if h := homeOf(l); h.number == 0 {
		e.q.count.lane++
		h.number = e.q.count.lane
		e.named = append(e.named, l)
	}
}
