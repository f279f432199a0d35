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
	s.load(pins, func(p *pinned, _ *header, d *store.Ended, lerr error) {
		switch c := claims[p.i]; {
		case errors.Is(lerr, errDamaged): // if it cannot be removed either, it stays claimed
			s.lose(d, p.seq, lerr, transition{id: c.id})
		case lerr != nil: // the whole disk may be failing, or only this part of it
			s.complain("a delivery cannot be read now; it is tried again every minute, and others are delivered", p.seq, d, lerr)
			unread, err = append(unread, c), lerr
		default:
			d.Claim = c.id
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
		w.Next = s.index.queue(where{waitingKind(w.Retries), w.Destination}).first().dueAt()
	}
	read := slices.DeleteFunc(dst[had:], func(d store.Delivery) bool { return d.Claim == 0 })
	return dst[:had+len(read)], nil
}

// pick claims and pins due deliveries for wants. Their bodies have at most maxBytes in all, unless the
// first one alone has more.
func (x *index) pick(wants []store.Want, maxBytes int64, now time.Time) (claims []*claim, pins []pinned) {
	var bytes int64
	for i := range wants {
		w := &wants[i]
		l := x.lanes[w.Destination]
		if l == nil {
			continue
		}
		q := l.queue(w.Retries)
		e := q.first()
		for n := 0; n < w.Max && e != nil && e.due <= now.UnixMicro(); n++ {
			if bytes += e.bytes(); bytes > maxBytes && len(claims) > 0 {
				maxBytes = 0 // nothing fits any more
				break
			}
			taken, _ := q.remove(e.point())
			pins = append(pins, x.segs.pin(taken, len(claims)))
			claims = append(claims, x.claim(l, taken, w.Retries))
			e = q.first()
		}
	}
	return claims, pins
}

// readAgain is how long Fetch and the janitor leave alone what the disk could not read.
const readAgain = time.Minute

// postpone ends the claim of a delivery that the disk could not read. In the index, but not on the
// disk, it becomes due at until, so that the other deliveries of its queue come first.
func (x *index) postpone(c *claim, until time.Time) {
	x.unclaim(c)
	c.due = until.UnixMicro()
	x.push(where{waitingKind(c.retry), c.lane.name}, c.entry)
	x.announce(c.lane.name)
}
