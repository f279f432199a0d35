package filequeue

import (
	"context"
	"fmt"

	"github.com/hookferry/analytics/webhook/store"
)

// maxPut bounds the bytes of the records of one Put.
const maxPut = 256 << 20

// newPuts returns the transitions that store deliveries, and the length of their records in bytes.
func newPuts(ps []store.Put, now int64) (ts []transition, size int64, err error) {
	const envelope = 256 // about the bytes of a payload without the body
	room := 0
	for i := range ps {
		if err := ps[i].Check(); err != nil {
			return nil, 0, fmt.Errorf("filequeue: %w", err)
		}
		room += len(ps[i].Body) + envelope
	}
	ts = make([]transition, len(ps))
	b := make([]byte, 0, min(room, maxPut)) // all payloads
	var d store.Record
	for i := range ps {
		d.Delivery = ps[i].Delivery
		r, err := deliveryRecord(b[len(b):], waitingKind(!d.Expires.IsZero()), &d, true)
		if err != nil {
			return nil, 0, err
		}
		if r.key, r.stored = store.KeyOf(d.Destination, d.ID), now; ps[i].NoDedup {
			r.stored = noDedup
		}
		if n := len(b) + len(r.payload); n <= cap(b) {
			b = b[:n]
		}
		ts[i] = transition{record: r, put: true, keep: ps[i].Keep, from: queueID{destination: ps[i].Destination}}
		if size += recordSize(len(r.payload)); size > maxPut {
			return nil, 0, fmt.Errorf("%w: filequeue: more than %d bytes", store.ErrTooLarge, maxPut)
		}
	}
	return ts, size, nil
}

// Put implements store.Store.
func (s *Store) Put(ctx context.Context, ps []store.Put, out []store.Result) error {
	if err := s.gate.Enter(ctx); err != nil {
		return err
	}
	defer s.gate.Leave()
	if len(ps) == 0 {
		return nil
	}
	ts, size, err := newPuts(ps, s.Now().UnixMicro())
	if err != nil {
		return err
	}
	if err := s.writer.do(ctx, func(g *group) error { return g.store(ts, s.config.MaxBytes) }, size, true); err != nil {
		return err
	}
	for i := range ts {
		out[i] = store.Result{Stored: ts[i].moved, Behind: ts[i].behind}
		if ts[i].claim != nil {
			out[i].Claim = ts[i].claim.id
		}
	}
	return nil
}
