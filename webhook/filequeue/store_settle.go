package filequeue

import (
	"context"
	"fmt"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// maxSettled and maxSettledBytes bound the settlements in one op. A single larger settlement has an
// op of its own.
const (
	maxSettled      = 4096
	maxSettledBytes = 2 << 20
)

// settlement returns the transition that carries out a settlement. An error means that this
// settlement is invalid, not that the store fails.
func settlement(s *Store, by *store.Settlement) (t transition, err error) {
	if err := by.Check(); err != nil {
		return t, fmt.Errorf("filequeue: %w", err)
	}
	t.id, t.lapsed = by.Delivery.Claim, by.Reason.Lapsed()
	d := store.Record{Delivery: by.Delivery, Reason: by.Reason, At: by.At}
	k := kindDead
	switch by.Verdict {
	case store.Return:
		return t, nil
	case store.Done:
		if s.config.HistoryAge == 0 {
			t.record.kind = kindGone
			return t, nil
		}
		if k = kindDelivered; by.At.IsZero() {
			d.At = s.Now()
		}
	case store.Retry:
		k, d.Reason, d.At = waitingKind(!d.Expires.IsZero()), "", time.Time{}
	}
	d.Body = nil // transit knows its length
	t.record, err = deliveryRecord(nil, k, &d, false)
	t.rest = t.record.size
	return t, err
}

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, ss []store.Settlement) (n int, err error) {
	if err := s.gate.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.gate.Leave()
	for n < len(ss) {
		ts := make([]transition, 0, min(len(ss)-n, maxSettled))
		size := int64(0)
		var bad error
		for i := n; i < len(ss) && len(ts) < maxSettled && size < maxSettledBytes; i++ {
			ss[i].Released = time.Time{}
			var t transition
			if t, bad = settlement(s, &ss[i]); bad != nil {
				break
			}
			ts = append(ts, t)
			size += int64(len(t.record.payload))
		}
		if len(ts) > 0 {
			if _, err := s.transit(ctx, ts); err != nil {
				return n, err
			}
			for i := range ts {
				ss[n+i].Released = ts[i].released
			}
			n += len(ts)
		}
		if bad != nil {
			return n, bad
		}
	}
	return n, nil
}
