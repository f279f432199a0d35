package filequeue

import (
	"context"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// do waits until an op is durable. The op may take the reserve.
func (s *Store) do(ctx context.Context, o op, size int64) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.Done()
	return s.writer.do(ctx, o, size, false)
}

// A change is the next state of a delivery that is in a queue.
type change struct {
	record
	at          point
	retry       bool // the delivery is among the retries
	destination string
	body        int64
	idle        bool // the delivery is in this state already
}

func changeOf(f *found, k kind) (c change, err error) {
	d := &f.DeadLetter
	c = change{at: f.at, retry: k == kindRetry, destination: d.Destination, body: int64(len(d.Body))}
	c.record, err = stateRecord(k, d, d.Size())
	return c, err
}

// apply puts an entry that was taken from its queue into the queue of its new state.
func (c *change) apply(x *index, e entry, seg *segment) {
	x.restate(&e, seg, &c.record, c.body)
	l := x.lane(c.destination)
	l.queue(c.retry).push(e)
	x.announce(l)
}

// Revive implements webhook.Keeper.
func (s *Store) Revive(ctx context.Context, keys ...string) (n int, err error) {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	for chunk := range slices.Chunk(append(keys, ""), page) { // at least one, as an empty call fails after Close, too
		all, err := s.read(ctx, func(x *index) []entry { return x.dead.named(chunk...) })
		if err != nil {
			return n, err
		}
		var cs []change
		size := int64(0)
		for i := range all {
			d := &all[i].DeadLetter
			d.Due, d.Expires, d.Tries, d.Closed, d.Reason, d.Died = s.Now(), time.Time{}, 0, nil, "", time.Time{}
			c, err := changeOf(&all[i], kindFresh)
			if err != nil {
				return n, err
			}
			cs = append(cs, c)
			size += recordSize(len(c.payload))
		}
		if len(cs) == 0 {
			continue
		}
		if err := s.do(ctx, func(g *group) error { g.revive(cs, &n); return nil }, size); err != nil {
			return n, err
		}
		s.changed.give()
	}
	return n, nil
}

// revive turns dead letters into fresh deliveries. When the op is done, it adds their number to n.
func (g *group) revive(cs []change, n *int) {
	for i := range cs {
		c := &cs[i]
		e, ok := g.take(&g.dead, c.at)
		if !ok {
			continue
		}
		c.seq = e.seq
		g.add(&c.record)
		g.then(func(seg *segment) {
			c.apply(g.index, e, seg)
			g.waiting++
			*n++
		})
	}
}

// Discard implements webhook.Keeper.
func (s *Store) Discard(ctx context.Context, keys ...string) (n int, err error) {
	points := make([]point, len(keys))
	for i, key := range keys {
		points[i] = pointOf(key)
	}
	err = s.do(ctx, func(g *group) error { g.forget(kindGone, points, &n, &g.dead); return nil }, int64(recordHeader+16*len(keys)))
	return n, err
}

// forget removes the entries at points of some lists. k is kindGone or kindLost. Once the op is done, n is
// their number.
func (g *group) forget(k kind, points []point, n *int, from ...*list) {
	var refs []ref
	for _, p := range points {
		for _, l := range from {
			if e, ok := g.take(l, p); ok {
				refs = append(refs, ref{e.seq, e.put.seg})
				g.then(func(*segment) { g.segs.count(&e, -1) })
				break
			}
		}
	}
	g.gone(k, refs)
	g.then(func(*segment) { *n = len(refs) })
}

// Change implements webhook.Keeper. It reads the deliveries of the destination, a page at a time.
func (s *Store) Change(ctx context.Context, filter webhook.WaitingFilter, to webhook.Change) (n, claimed int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	now := s.Now()
	for from, more := firstPoint, true; more && err == nil; {
		var all []found
		all, err = s.read(ctx, func(x *index) []entry {
			entries := x.waitingAfter(filter.Destination, from)
			if more = len(entries) > 0; more {
				from = entries[len(entries)-1].point()
			}
			return entries
		})
		var cs []change
		size := int64(recordHeader)
		for i := range all {
			d := &all[i].Delivery
			if err != nil || !filter.Match(d) {
				continue
			}
			k := waitingKind(!d.Expires.IsZero())
			idle := to == webhook.DueNow && !d.Hasten(now)
			var c change
			c, err = changeOf(&all[i], k)
			c.idle = idle
			cs = append(cs, c)
			size += 16 + recordSize(len(c.payload))
		}
		if len(cs) > 0 && err == nil {
			err = s.do(ctx, func(g *group) error { g.change(cs, to, &n, &claimed); return nil }, size)
		}
	}
	if to == webhook.DueNow {
		s.changed.give()
	}
	return n, claimed, err
}

// change changes deliveries of one destination that are not claimed. Once the op is done, it adds to n
// and claimed.
func (g *group) change(cs []change, to webhook.Change, n, claimed *int) {
	l := g.lanes[cs[0].destination]
	if l == nil {
		return
	}
	changed, held := 0, 0
	var refs []ref
	for i := range cs {
		c := &cs[i]
		if l.claimed.at(c.at) != nil {
			held++
			continue
		}
		if c.idle {
			continue
		}
		e, ok := g.take(l.queue(c.retry), c.at)
		if !ok {
			continue // the delivery was settled since it was read
		}
		changed++
		if to == webhook.Discarded {
			refs = append(refs, ref{e.seq, e.put.seg})
			g.then(func(*segment) {
				g.segs.count(&e, -1)
				g.dequeued(c.destination)
			})
			continue
		}
		c.seq = e.seq
		g.add(&c.record)
		g.then(func(seg *segment) { c.apply(g.index, e, seg) })
	}
	g.gone(kindGone, refs)
	g.then(func(*segment) {
		*n += changed
		*claimed += held
	})
}
