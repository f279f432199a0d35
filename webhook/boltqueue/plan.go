package boltqueue

import (
	"maps"
	"slices"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// A home is what the store knows of a lane.
type home struct {
	number   uint32      // in the file, 0 if it has none
	spans    []span      // what of waiting is not in memory, by first
	away     int         // how many rows that is
	frontier lanes.Order // rows of waiting up to here are in memory
	loaded   int         // how many of these are
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

// plan decides where everything goes. The queue is locked.
func (e *edit) plan(group []*request) {
	q := e.q
	e.segment = q.segment
	if e.segment.bytes >= segmentBytes {
		e.segment = segment{number: e.segment.number + 1}
	}
	for _, l := range q.retired {
		h := homeOf(l)
		h.retiring = false
		if l.Empty() && h.number != 0 {
			e.unnamed = append(e.unnamed, unnamed{l, h.number})
			h.number = 0
		}
	}
	q.retired = q.retired[:0]
	byLane := make(map[*lanes.Lane][]candidate)
	for _, it := range q.tail.fresh {
		if it != nil {
			byLane[it.Lane()] = append(byLane[it.Lane()], candidate{item: it})
		}
	}
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
				if !q.seen.Add(p.key, e.now) {
					continue
				}
				e.keys = append(e.keys, p.key)
			}
			if r.work == nil {
				r.stored++
			}
			l := q.table.Lane(p.dest)
			homeOf(l).pending++
			e.count.waiting++
			p.item.Seq = e.number()
			p.item.Destination, p.item.Size = l.Name, sizeOf(p.row)
			e.stored = append(e.stored, stored{*p, l})
			byLane[l] = append(byLane[l], candidate{p.item, p.row})
		}
	}
	cached := q.cached
	for l, cs := range byLane {
		e.share(l, cs, &cached)
	}
	e.blocks = slices.Collect(maps.Keys(q.tail.blocks))
}

// share decides which deliveries of a lane stay in memory, and go into blocks:
// the first, as long as they are due and have room, and those that somebody
// holds. The others go to waiting, and out of memory.
func (e *edit) share(l *lanes.Lane, cs []candidate, cached *int64) {
	q, h := e.q, homeOf(l)
	slices.SortFunc(cs, func(a, b candidate) int { return compareOrders(a.item.Order, b.item.Order) })
	var (
		ch   = changed{lane: l, beyond: l.Beyond, arrived: h.arrived}
		mine = h.bytes
		cut  bool
		now  = e.now.UnixMicro()
	)
	keep := func(c candidate) {
		mine += c.item.Size
		*cached += c.item.Size
		e.kept = append(e.kept, kept{candidate: c, lane: l})
	}
	for _, c := range cs {
		it := c.item
		isNew := c.row != nil
		if !isNew && !it.Free() || !h.frontier.Before(it.Order) {
			keep(c)
			continue
		}
		cut = cut || !it.Order.Before(ch.beyond) || it.At > now || !q.fits(mine, *cached, it.Size)
		if !cut {
			keep(c)
			continue
		}
		if !isNew {
			ch.old = append(ch.old, it)
		}
		e.moved = append(e.moved, it)
		e.segment.bytes += it.Size
		ch.rows = append(ch.rows, c.row)
	}
	if len(ch.rows) == 0 {
		return
	}
	e.name(l)
	first := e.moved[len(e.moved)-len(ch.rows)].Order
	ch.span, ch.extended = h.displace(e.segment.number)
	if now := (span{segment: e.segment.number, first: first}); !ch.extended || first.Before(ch.span.first) {
		h.place(now)
	} else {
		h.place(ch.span)
	}
	l.Beyond = h.beyond()
	h.away += len(ch.rows)
	h.arrived, h.moving = e.tx.ID(), true
	e.lanes = append(e.lanes, ch)
	if len(ch.old) > 0 {
		out := make(map[*lanes.Item]bool, len(ch.old))
		for _, it := range ch.old {
			out[it] = true
		}
		q.table.Expel(l, func(it *lanes.Item) bool { return out[it] }, now)
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

func (e *edit) number() uint64 {
	e.count.number++
	return e.count.number
}

// name sees to it that l has a number in the file.
func (e *edit) name(l *lanes.Lane) {
	if h := homeOf(l); h.number == 0 {
		e.count.lane++
		h.number = e.count.lane
		e.named = append(e.named, l)
	}
}
