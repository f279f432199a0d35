package filequeue

import (
	"context"
	"fmt"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// maxPut is how many bytes the records of one Put have at most.
const maxPut = 256 << 20

// A put is a delivery about to be stored.
type put struct {
	record
	keep  bool
	known bool // is kept out of the dedup window
	left  bool // was put before
	claim uint64
}

// noDedup is the time of a put that the dedup window does not remember.
const noDedup = 0

// newPut encodes a delivery, behind what is in b where there is room.
func newPut(b []byte, now int64, p *webhook.Put) (put, error) {
	d := &p.Delivery
	if p.NoDedup {
		now = noDedup
	}
	if err := d.Check(); err != nil {
		return put{}, fmt.Errorf("filequeue: %w", err)
	}
	payload, err := putPayload(b, now, d)
	if err != nil {
		return put{}, fmt.Errorf("filequeue: %w", err)
	}
	r := newRecord(kindPut, payload)
	r.at = now
	r.summarizePut(d)
	return put{record: r, keep: p.Keep, known: p.NoDedup}, nil
}

// newPuts encodes ds, and returns how long their records are.
func newPuts(ps []webhook.Put, now int64) (puts []put, size int64, err error) {
	const envelope = 256 // about what a record has beside the body, in bytes
	puts = make([]put, len(ps))
	var rest []byte
	for i := range ps {
		if room := len(ps[i].Body) + envelope; cap(rest) < room {
			rest = make([]byte, 0, max(room, min((len(ps)-i)*room, 64<<10)))
		}
		if puts[i], err = newPut(rest, now, &ps[i]); err != nil {
			return nil, 0, err
		}
		if n := len(puts[i].payload); n <= cap(rest) {
			rest = rest[n:n:cap(rest)]
		}
		if size += recordSize(len(puts[i].payload)); size > maxPut {
			return nil, 0, fmt.Errorf("%w: filequeue: more than %d bytes", webhook.ErrTooLarge, maxPut)
		}
	}
	return puts, size, nil
}

// store stores puts, unless what is needed would have more than maxBytes then.
func (g *group) store(puts []put, maxBytes int64) error {
	had := g.bytes
	for i := range puts {
		p := &puts[i]
		if p.left = !p.known && !g.seen.Add(p.key, g.now); !p.left {
			g.add(&p.record)
		} else if g.has(p.key) {
			g.request.depends = true
		}
	}
	g.undo(func() {
		for i := range puts {
			if p := &puts[i]; !p.left && !p.known {
				g.seen.Remove(p.key)
			}
		}
	})
	bytes := g.bytes - had
	switch {
	case maxBytes == Unlimited || bytes == 0 || g.stored()+g.bytes <= maxBytes:
	case bytes > maxBytes:
		return webhook.ErrTooLarge
	default:
		return webhook.ErrQueueFull
	}
	g.then(func(seg *segment) {
		for i := range puts {
			if p := &puts[i]; !p.left {
				p.apply(g.index, seg)
			}
		}
	})
	return nil
}

// apply adds to the index what is durable in a segment.
func (p *put) apply(x *index, seg *segment) {
	l := x.lane(p.dest)
	e := p.entry(seg.number)
	x.segs.count(&e, 1)
	if p.keep {
		p.claim = x.claims.add(e, l, p.retry, int64(p.body)).id
		x.waiting++
	} else {
		x.enqueue(l, e, p.retry)
	}
}

// has reports whether the group puts a delivery with this key.
func (g *group) has(key [16]byte) bool {
	for _, r := range g.records {
		if r.kind == kindPut && r.key == key {
			return true
		}
	}
	return false
}

// entry returns the entry of a put.
func (s *summary) entry(seg uint32) entry {
	e := entry{due: s.due, seq: s.seq, put: place{seg, s.off}, size: s.size}
	e.setBytes(int64(s.body))
	return e
}

// Put implements webhook.Store.
func (s *Store) Put(ctx context.Context, ps []webhook.Put, out []webhook.Result) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.Done()
	if len(ps) == 0 {
		return nil
	}
	puts, size, err := newPuts(ps, time.Now().UnixMicro())
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
