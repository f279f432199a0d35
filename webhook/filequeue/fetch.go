package filequeue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// A picked is a delivery that Fetch has claimed and is about to read.
type picked struct {
	pinned
	claim *claim
	index int // in the order of wants
}

// Fetch implements webhook.Store. It reads the bodies without a lock.
func (s *Store) Fetch(ctx context.Context, wants []webhook.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	for i := range wants {
		if wants[i].Max < 1 {
			return dst, fmt.Errorf("filequeue: fetch of %d deliveries", wants[i].Max)
		}
	}
	if err := s.enter(ctx); err != nil {
		return dst, err
	}
	defer s.calls.Done()
	s.index.mu.Lock()
	picks, next := s.index.pick(wants, maxBytes)
	s.index.mu.Unlock()
	defer func() {
		for i := range picks {
			picks[i].release()
		}
	}()
	if len(picks) > 1 { // in the order of the files
		slices.SortFunc(picks, func(a, b picked) int {
			return cmp.Or(cmp.Compare(a.entry.put.seg, b.entry.put.seg), cmp.Compare(a.entry.put.off, b.entry.put.off))
		})
	}
	had := len(dst)
	dst = slices.Grow(dst, len(picks))[:had+len(picks)]
	clear(dst[had:])
	var lost []settlement
	var unread []postponed
	var failure error
	for i := range picks {
		p := &picks[i]
		var d webhook.DeadLetter
		err := p.load(&d)
		switch {
		case errors.Is(err, errState):
			// Its window is taken to be over: it is attempted at most once more.
			s.complaints.add("a delivery is handed out without its attempts", p.seq, &d, err)
			if d.Due = p.dueAt(); p.claim.retry && d.Expires.IsZero() {
				d.Expires = d.Due
			}
		case errors.Is(err, errDamaged):
			s.complaints.add("a delivery cannot be read, and is set aside", p.seq, &d, err)
			lost = append(lost, settlement{verdict: webhook.Done, id: p.claim.id})
			continue
		case err != nil:
			// The disk may fail, or only this place of it.
			s.complaints.add("a delivery cannot be read now; it is tried again every minute, and others are delivered", p.seq, &d, err)
			unread, failure = append(unread, postponed{p.claim, time.Now().Add(readAgain)}), err
			continue
		}
		d.Claim = p.claim.id
		dst[had+p.index] = d.Delivery
	}
	if len(unread) > 0 {
		s.index.mu.Lock()
		s.index.unread = append(s.index.unread, unread...)
		s.index.mu.Unlock()
		s.janitor.wake.give()
		if len(unread) == len(picks) {
			return dst[:had], fmt.Errorf("filequeue: %w", failure)
		}
	}
	if len(lost) > 0 {
		// While that cannot be stored, they stay claimed.
		s.writer.do(context.Background(), func(g *group) error { g.settle(lost, kindLost); return nil }, recordHeader, false)
	}
	if len(lost)+len(unread) > 0 {
		dst = dst[:had+len(slices.DeleteFunc(dst[had:], func(d webhook.Delivery) bool { return d.Claim == 0 }))]
	}
	for i := range wants {
		wants[i].Next = next[i]
	}
	return dst, nil
}

// pick claims what wants ask for.
func (x *index) pick(wants []webhook.Want, maxBytes int64) (picks []picked, next []time.Time) {
	next = make([]time.Time, len(wants))
	now := time.Now().UnixMicro()
	var bytes int64
	full := false
	for i := range wants {
		w := &wants[i]
		l := x.lanes[w.Destination]
		if l == nil {
			continue
		}
		q := l.queue(w.Retries)
		e := q.first()
		for n := 0; e != nil && e.due <= now && n < w.Max && !full; n++ {
			if bytes += e.bytes(); bytes > maxBytes && len(picks) > 0 {
				full = true
				break
			}
			taken, _ := q.remove(e.point())
			c := x.claims.add(taken, l, w.Retries, taken.bytes())
			picks = append(picks, picked{pinned: x.segs.pin(taken), claim: c, index: len(picks)})
			e = q.first()
		}
		next[i] = dueOf(e)
	}
	return picks, next
}

// readAgain is when a delivery is tried again that the disk could not read.
const readAgain = time.Minute

// A postponed is the claim of a delivery that the disk could not read, until it is tried again: so
// it hides no others.
type postponed struct {
	claim *claim
	at    time.Time
}
