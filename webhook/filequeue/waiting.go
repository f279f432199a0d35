package filequeue

import (
	"context"
	"iter"
	"slices"

	"github.com/hookferry/analytics/webhook"
)

// Waiting implements webhook.Keeper. The IDs are on the disk: what comes before the one whose
// ID is after is read, too.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[webhook.Delivery, error] {
	get := func(x *index, from point) []entry { return x.waitingAfter(destination, from) }
	return func(yield func(webhook.Delivery, error) bool) {
		from := firstPoint
		if after != "" {
			for d, err := range s.pages(ctx, firstPoint, get) {
				if err != nil {
					yield(webhook.Delivery{}, err)
					return
				}
				if d.ID == after {
					from = d.at
					break
				}
			}
		}
		for d, err := range s.pages(ctx, from, get) {
			if !yield(d.Delivery, err) {
				return
			}
		}
	}
}

// Change implements webhook.Keeper. It reads what waits for the destination, a page at a time.
func (s *Store) Change(ctx context.Context, filter webhook.WaitingFilter, to webhook.Change) (n, claimed int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	now := s.Now()
	for from, more := firstPoint, true; more && err == nil; {
		var some []found
		some, err = s.list(ctx, func(x *index) []entry {
			entries := x.waitingAfter(filter.Destination, from)
			if more = len(entries) > 0; more {
				from = entries[len(entries)-1].point()
			}
			return entries
		})
		var cs []change
		size := int64(recordHeader)
		for i := range some {
			d := &some[i].DeadLetter
			if !filter.Match(&d.Delivery) {
				continue
			}
			c := change{at: some[i].at, retry: !d.Expires.IsZero(), body: int64(len(d.Body))}
			if to == webhook.DueNow {
				if c.idle = !d.Hasten(now); err == nil {
					c.state, err = stateRecord(waitingKind(c.retry), d, d.Size())
				}
			}
			cs = append(cs, c)
			size += 16 + recordSize(len(c.state.payload))
		}
		if len(cs) > 0 && err == nil {
			err = s.do(ctx, func(g *group) error { g.change(filter.Destination, cs, to, &n, &claimed); return nil }, size)
		}
	}
	if to == webhook.DueNow {
		s.changed.give()
	}
	return n, claimed, err
}

// A change is that of a delivery which was found in a queue, or claimed.
type change struct {
	at    point
	retry bool
	body  int64
	idle  bool   // there is nothing to change
	state record // for webhook.DueNow
}

// change changes deliveries that are not claimed. n and claimed are added to once the op is done.
func (g *group) change(dest string, cs []change, to webhook.Change, n, claimed *int) {
	claims, l := g.claims.bySeq(), g.lanes[dest]
	changed, held := 0, 0
	var refs []ref
	for i := range cs {
		c := &cs[i]
		if claims[c.at.seq] != nil {
			held++
		}
		if claims[c.at.seq] != nil || c.idle || l == nil {
			continue
		}
		e, ok := g.take(l.queue(c.retry), c.at)
		if !ok {
			continue // something else happened to it since
		}
		changed++
		if to == webhook.Discarded {
			refs = append(refs, ref{e.seq, e.put.seg})
			g.then(func(*segment) {
				g.segs.count(&e, -1)
				g.dequeue(g.lane(dest))
			})
			continue
		}
		c.state.seq = e.seq
		g.add(&c.state)
		g.then(func(seg *segment) {
			g.restate(&e, seg, &c.state.summary, c.body)
			l := g.lane(dest) // it may have been removed and made anew
			l.queue(c.retry).push(e)
			g.tell(l)
		})
	}
	g.list(kindGone, refs)
	g.then(func(*segment) {
		*n += changed
		*claimed += held
	})
}

// waitingAfter returns up to a page of what waits for a destination behind a point.
func (x *index) waitingAfter(destination string, from point) []entry {
	l := x.lanes[destination]
	if l == nil {
		return nil
	}
	all := l.retries.after(from, page, l.fresh.after(from, page, nil))
	for _, c := range x.claims.byID {
		if c.lane == l && from.before(c.point()) {
			all = append(all, c.entry)
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return a.point().compare(b.point()) })
	return all[:min(len(all), page)]
}
