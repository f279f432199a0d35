package filequeue

import (
	"context"
	"fmt"

	"github.com/hookferry/analytics/webhook"
)

// maxPut bounds the bytes of the records of one Put.
const maxPut = 256 << 20

// A put is a delivery that is about to be stored.
type put struct {
	record
	destination string
	keep        bool
	left        bool // left out: the dedup window has the delivery
	claim       uint64
}

// newPuts encodes deliveries. size is the length of their records, in bytes.
func newPuts(ps []webhook.Put, now int64) (puts []put, size int64, err error) {
	const envelope = 256 // about the bytes of a payload without the body
	room := 0
	for i := range ps {
		if err := ps[i].Check(); err != nil {
			return nil, 0, fmt.Errorf("filequeue: %w", err)
		}
		room += len(ps[i].Body) + envelope
	}
	puts = make([]put, len(ps))
	b := make([]byte, 0, min(room, maxPut)) // all payloads
	var d webhook.DeadLetter
	for i := range ps {
		d.Delivery = ps[i].Delivery
		r, err := deliveryRecord(b[len(b):], waitingKind(!d.Expires.IsZero()), &d, true, int64(len(d.Body)))
		if err != nil {
			return nil, 0, err
		}
		if r.key, r.stored = keyOf(&d.Delivery), now; ps[i].NoDedup {
			r.stored = noDedup
		}
		if n := len(b) + len(r.payload); n <= cap(b) {
			b = b[:n]
		}
		puts[i] = put{record: r, destination: d.Destination, keep: ps[i].Keep}
		if size += recordSize(len(r.payload)); size > maxPut {
			return nil, 0, fmt.Errorf("%w: filequeue: more than %d bytes", webhook.ErrTooLarge, maxPut)
		}
	}
	return puts, size, nil
}

// store adds puts to the group, unless the needed records would then exceed maxBytes.
func (g *group) store(puts []put, maxBytes int64) error {
	had := g.bytes
	for i := range puts {
		p := &puts[i]
		if p.left = p.stored != noDedup && !g.seen.Add(p.key, g.now); !p.left {
			g.add(&p.record)
		}
	}
	g.undo(func() {
		for i := range puts {
			if p := &puts[i]; !p.left && p.stored != noDedup {
				g.seen.Remove(p.key)
			}
		}
	})
	if bytes := g.bytes - had; maxBytes != Unlimited && bytes > 0 {
		switch _, needed := g.segs.bytes(); {
		case bytes > maxBytes:
			return webhook.ErrTooLarge
		case needed+g.bytes > maxBytes:
			return webhook.ErrQueueFull
		}
	}
	g.then(func() {
		for i := range puts {
			p := &puts[i]
			if p.left {
				continue
			}
			e, retry := entryOf(&p.record), p.kind == kindRetry
			if g.count(&e, 1); p.keep {
				p.claim = g.claim(g.lane(p.destination), e, retry).id
			} else {
				g.push(where{p.kind, p.destination}, e)
			}
		}
	})
	return nil
}

// Put implements webhook.Store.
func (s *Store) Put(ctx context.Context, ps []webhook.Put, out []webhook.Result) error {
	if err := s.gate.Enter(ctx); err != nil {
		return err
	}
	defer s.gate.Leave()
	if len(ps) == 0 {
		return nil
	}
	puts, size, err := newPuts(ps, s.Now().UnixMicro())
	if err != nil {
		return err
	}
	if err := s.writer.do(ctx, func(g *group) error { return g.store(puts, s.config.MaxBytes) }, size, true); err != nil {
		return err
	}
	for i := range puts {
		out[i] = webhook.Result{Stored: !puts[i].left, Claim: puts[i].claim}
	}
	return nil
}
