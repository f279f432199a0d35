package filequeue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// Fetch implements store.Store. It reads the bodies without holding index.mu.
func (s *Store) Fetch(ctx context.Context, wants []store.Want, maxBytes int64, dst []store.Delivery) ([]store.Delivery, error) {
	for i := range wants {
		if wants[i].Max < 1 {
			return dst, fmt.Errorf("filequeue: Want.Max is %d; it must be at least 1", wants[i].Max)
		}
	}
	if err := s.gate.Enter(ctx); err != nil {
		return dst, err
	}
	defer s.gate.Leave()
	now := s.Now()
	s.index.mu.Lock()
	claims, pins := s.index.pick(wants, maxBytes, now)
	s.index.mu.Unlock()
	had := len(dst)
	dst = slices.Grow(dst, len(claims))[:had+len(claims)]
	clear(dst[had:])
	var unread []*claim
	var err error
	s.reader.load(pins, func(p *pinned, _ *record, d *store.Record, lerr error) {
		switch c := claims[p.i]; {
		case errors.Is(lerr, errDamaged): // if it cannot be removed either, it stays claimed
			s.lose(d, p.entry.seq, lerr, transition{id: c.id})
		case lerr != nil: // the whole disk may be failing, or only this part of it
			s.reader.complain("a delivery cannot be read now; it is tried again every minute, and others are delivered", p.entry.seq, d, lerr)
			unread, err = append(unread, c), lerr
		default:
			d.Claim, d.Due = c.id, p.entry.dueAt() // it was due otherwise when it was put behind another one
			dst[had+p.i] = d.Delivery
		}
	})
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	for _, c := range unread {
		s.index.postpone(c, now.Add(readAgain))
	}
	if err != nil && len(unread) == len(claims) {
		return dst[:had], fmt.Errorf("filequeue: %w", err)
	}
	for i := range wants {
		w := &wants[i]
		w.Next = s.index.queue(queueID{waitingKind(w.Retries), w.Destination}).first().dueAt()
	}
	read := slices.DeleteFunc(dst[had:], func(d store.Delivery) bool { return d.Claim == 0 })
	return dst[:had+len(read)], nil
}

// readAgain is how long Fetch and the janitor leave alone what the disk could not read.
const readAgain = time.Minute
