package filequeue

import (
	"context"
	"fmt"

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

// A settleOp ends claims. What is done is one record for all.
type settleOp struct {
	settlements []settlement
	gone        record
	kind        kind // of gone
}

func (o *settleOp) plan(g *group) error {
	var refs []ref
	for i := range o.settlements {
		t := &o.settlements[i]
		t.claim = g.claims.get(t.id)
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
	if len(refs) > 0 {
		o.gone = listRecord(o.kind, refs)
		g.add(&o.gone)
	}
	return nil
}

func (o *settleOp) undo(*index) {
	for i := range o.settlements {
		if c := o.settlements[i].claim; c != nil {
			c.busy = false
		}
	}
}

func (o *settleOp) apply(x *index, seg *segment) {
	for i := range o.settlements {
		t := &o.settlements[i]
		c := t.claim
		if c == nil {
			continue
		}
		x.claims.end(c)
		x.segs.count(&c.entry, -1)
		e := c.entry
		if t.payload != nil {
			e.setState(seg.number, &t.summary)
		}
		switch {
		case t.verdict == webhook.Return:
			x.segs.count(&e, 1)
			c.lane.queue(c.retry).push(e)
			continue
		case t.payload == nil: // done, and not to be kept
		case t.kind == kindFresh || t.kind == kindRetry:
			e.setBytes(c.body)
			x.segs.count(&e, 1)
			c.lane.queue(t.kind == kindRetry).push(e)
			continue
		case t.kind == kindDead:
			e.setBytes(t.bytes)
			x.segs.count(&e, 1)
			x.dead.push(e)
		default:
			e.setBytes(t.bytes)
			x.segs.count(&e, 1)
			x.history.push(e)
		}
		x.dequeue(c.lane)
	}
	if o.kind == kindLost {
		x.addLost(&o.gone, seg)
	}
}

// settlement prepares one for an op. The error is about it alone.
func (s *Store) settlement(by *webhook.Settlement) (t settlement, err error) {
	t = settlement{verdict: by.Verdict, id: by.Delivery.Claim}
	d := webhook.DeadLetter{Delivery: by.Delivery, Reason: by.Reason, Died: by.At}
	k := kindDead
	switch by.Verdict {
	case webhook.Return:
		return t, nil
	case webhook.Done:
		if s.config.HistoryAge == 0 {
			return t, nil
		}
		if k = kindDelivered; by.At.IsZero() {
			d.Died = s.Now()
		}
	case webhook.Retry:
		if k = kindRetry; d.Expires.IsZero() {
			k = kindFresh
		}
	case webhook.Bury:
	default:
		return t, fmt.Errorf("filequeue: settlement with verdict %d", by.Verdict)
	}
	if k != kindDelivered {
		if err := by.Delivery.Check(); err != nil {
			return t, fmt.Errorf("filequeue: %w", err)
		}
	}
	s.mu.Lock()
	c := s.index.claims.get(t.id)
	var held claim
	var p pinned
	if c != nil {
		if held = *c; k == kindDelivered {
			p = s.segs.pin(held.entry)
		}
	}
	s.mu.Unlock()
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
	payload, err := statePayload(nil, &d, size)
	if err != nil {
		return t, fmt.Errorf("filequeue: %w", err)
	}
	t.record = newRecord(k, payload)
	t.user = userHash(by.Delivery.User)
	t.summarizeState(&d, size)
	return t, nil
}

// Settle implements webhook.Store.
func (s *Store) Settle(ctx context.Context, ss []webhook.Settlement) (n int, err error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Done()
	for n < len(ss) {
		o := &settleOp{kind: kindGone}
		size := int64(0)
		var bad error
		for i := n; i < len(ss) && len(o.settlements) < maxSettled && size < maxSettledBytes; i++ {
			var t settlement
			if t, bad = s.settlement(&ss[i]); bad != nil {
				break
			}
			o.settlements = append(o.settlements, t)
			size += recordSize(len(t.payload))
		}
		if len(o.settlements) > 0 {
			if err := s.writer.do(ctx, o, size, false); err != nil {
				return n, err
			}
			n += len(o.settlements)
		}
		if bad != nil {
			return n, bad
		}
	}
	return n, nil
}
