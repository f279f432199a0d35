package filequeue

import (
	"context"
	"fmt"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// A settlement is one about to be stored.
type settlement struct {
	record  // of the state that it leads to, if it has a payload
	verdict webhook.Verdict
	id      uint64 // of the claim
	claim   *claim // set by plan, nil if it does not hold
}

// maxSettled is how many settlements, and bytes of them, are in one op; beside one that is longer.
const (
	maxSettled      = 4096
	maxSettledBytes = 2 << 20
)

// settle ends claims. What is done is one record for all, of kind k.
func (g *group) settle(ts []settlement, k kind) {
	var refs []ref
	for i := range ts {
		t := &ts[i]
		t.claim = g.claims.byID[t.id]
		if t.claim == nil || t.claim.busy {
			t.claim = nil
			continue
		}
		t.claim.busy = true
		switch {
		case t.payload != nil:
			t.seq = t.claim.seq
			g.add(&t.record)
		case t.verdict == webhook.Done:
			refs = append(refs, ref{t.claim.seq, t.claim.put.seg})
		}
	}
	gone := g.list(k, refs)
	g.undo(func() {
		for i := range ts {
			if c := ts[i].claim; c != nil {
				c.busy = false
			}
		}
	})
	g.then(func(seg *segment) {
		for i := range ts {
			if ts[i].claim != nil {
				ts[i].apply(g.index, seg)
			}
		}
		g.addLost(gone, seg)
	})
}

// apply moves what was claimed to where it belongs now.
func (t *settlement) apply(x *index, seg *segment) {
	c := t.claim
	x.claims.end(c)
	if t.verdict == webhook.Return {
		c.lane.queue(c.retry).push(c.entry)
		return
	}
	e := c.entry
	switch {
	case t.payload == nil: // done, and not to be kept
		x.segs.count(&e, -1)
		x.dequeue(c.lane)
	case t.kind == kindFresh || t.kind == kindRetry:
		x.restate(&e, seg, &t.summary, c.body)
		c.lane.queue(t.kind == kindRetry).push(e)
	default:
		x.restate(&e, seg, &t.summary, t.bytes)
		x.list(t.kind).push(e)
		x.dequeue(c.lane)
	}
}

// settlement prepares one for an op. keep is set if what is done goes into the history. The error is
// about it alone. It takes the lock itself.
func (x *index) settlement(by *webhook.Settlement, keep bool) (t settlement, err error) {
	t = settlement{verdict: by.Verdict, id: by.Delivery.Claim}
	d := webhook.DeadLetter{Delivery: by.Delivery, Reason: by.Reason, Died: by.At}
	k := kindDead
	switch by.Verdict {
	case webhook.Return:
		return t, nil
	case webhook.Done:
		if !keep {
			return t, nil
		}
		if k = kindDelivered; by.At.IsZero() {
			d.Died = time.Now()
		}
	case webhook.Retry:
		k = waitingKind(!d.Expires.IsZero())
	case webhook.Bury:
	default:
		return t, fmt.Errorf("filequeue: settlement with verdict %d", by.Verdict)
	}
	if k != kindDelivered {
		if err := by.Delivery.Check(); err != nil {
			return t, fmt.Errorf("filequeue: %w", err)
		}
	}
	x.mu.Lock()
	c := x.claims.byID[t.id]
	var held claim
	var p pinned
	if c != nil {
		if held = *c; k == kindDelivered {
			p = x.segs.pin(held.entry)
		}
	}
	x.mu.Unlock()
	if c == nil {
		return t, nil // changes nothing
	}
	if k == kindDelivered { // is kept as it was claimed
		was := webhook.DeadLetter{Delivery: by.Delivery}
		p.load(&was) // what cannot be read is as the caller has it
		p.release()
		d.Delivery = was.Delivery
		d.Body = nil
	}
	size := d.Size() - int64(len(d.Body)) + held.body
	t.record, err = stateRecord(k, &d, size)
	return t, err
}

// Settle implements webhook.Store.
func (s *Store) Settle(ctx context.Context, ss []webhook.Settlement) (n int, err error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Done()
	for n < len(ss) {
		var ts []settlement
		size := int64(0)
		var bad error
		for i := n; i < len(ss) && len(ts) < maxSettled && size < maxSettledBytes; i++ {
			var t settlement
			if t, bad = s.index.settlement(&ss[i], s.config.HistoryAge != 0); bad != nil {
				break
			}
			ts = append(ts, t)
			size += recordSize(len(t.payload))
		}
		if len(ts) > 0 {
			if err := s.writer.do(ctx, func(g *group) error { g.settle(ts, kindGone); return nil }, size, false); err != nil {
				return n, err
			}
			n += len(ts)
		}
		if bad != nil {
			return n, bad
		}
	}
	return n, nil
}
