package filequeue

import (
	"context"
	"fmt"

	"github.com/hookferry/analytics/webhook"
)

// A settlement is about to be stored.
type settlement struct {
	record  // the record of the new state, if that has a payload
	verdict webhook.Verdict
	id      uint64 // of the claim
	claim   *claim // nil if it no longer holds; settle sets it
	entry   entry
}

// The bounds of the settlements in one op. One larger settlement is allowed.
const (
	maxSettled      = 4096
	maxSettledBytes = 2 << 20
)

// settlementOf prepares a settlement. The error is about the settlement alone.
func settlementOf(s *Store, by *webhook.Settlement) (t settlement, err error) {
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
		k = waitingKind(!d.Expires.IsZero())
	case webhook.Bury:
	default:
		return t, fmt.Errorf("filequeue: settlement with verdict %d", by.Verdict)
	}
	if err := by.Delivery.Check(); err != nil {
		return t, fmt.Errorf("filequeue: %w", err)
	}
	s.index.mu.Lock()
	c := s.index.claims[t.id]
	s.index.mu.Unlock()
	if c == nil {
		return t, nil // settles nothing
	}
	t.record, err = stateRecord(k, &d, d.Size()-int64(len(d.Body))+c.body)
	return t, err
}

// settle ends claims. One record of kind k lists all deliveries that are done.
func (g *group) settle(ts []settlement, k kind) {
	var refs []ref
	for i := range ts {
		t := &ts[i]
		if t.claim = g.claims[t.id]; t.claim == nil {
			continue
		}
		t.entry = g.unclaim(t.claim)
		switch {
		case t.payload != nil:
			t.seq = t.entry.seq
			g.add(&t.record)
		case t.verdict == webhook.Done:
			refs = append(refs, ref{t.entry.seq, t.entry.put.seg})
		}
	}
	g.undo(func() {
		for _, t := range ts {
			if t.claim != nil {
				g.claims[t.id] = t.claim
				t.claim.lane.claimed.push(t.entry)
			}
		}
	})
	g.gone(k, refs)
	g.then(func(seg *segment) {
		for i := range ts {
			if ts[i].claim != nil {
				ts[i].apply(g.index, seg)
			}
		}
	})
}

// apply moves a claimed delivery to the queue of its new state.
func (t *settlement) apply(x *index, seg *segment) {
	c, e := t.claim, t.entry
	switch {
	case t.verdict == webhook.Return:
		x.lane(c.lane.name).queue(c.retry).push(e)
	case t.payload == nil: // done, and not kept in the history
		x.segs.count(&e, -1)
		x.dequeued(c.lane.name)
	case t.kind == kindDead || t.kind == kindDelivered:
		x.restate(&e, seg, &t.record, int64(t.size))
		x.list(t.kind).push(e)
		x.dequeued(c.lane.name)
	default:
		x.restate(&e, seg, &t.record, c.body)
		x.lane(c.lane.name).queue(t.kind == kindRetry).push(e)
	}
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
			if t, bad = settlementOf(s, &ss[i]); bad != nil {
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
