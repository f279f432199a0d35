package filequeue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// A picked is a delivery that Fetch has claimed and is about to read.
type picked struct {
	pinned
	claim *claim
	order int // the index of the delivery in the result
}

// Fetch implements webhook.Store. It reads the bodies without holding index.mu.
func (s *Store) Fetch(ctx context.Context, wants []webhook.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	for i := range wants {
		if wants[i].Max < 1 {
			return dst, fmt.Errorf("filequeue: Want.Max is %d; it must be at least 1", wants[i].Max)
		}
	}
	if err := s.gate.Enter(ctx); err != nil {
		return dst, err
	}
	defer s.gate.Leave()
	s.index.mu.Lock()
	picks, next := s.index.pick(wants, maxBytes, s.Now())
	s.index.mu.Unlock()
	had := len(dst)
	dst = slices.Grow(dst, len(picks))[:had+len(picks)]
	clear(dst[had:])
	unread, err := s.readPicks(picks, dst[had:])
	if len(unread) > 0 {
		s.index.mu.Lock()
		for _, c := range unread {
			s.index.postpone(c, s.Now().Add(readAgain))
		}
		for i := range wants {
			if l := s.index.lanes[wants[i].Destination]; l != nil {
				next[i] = dueOf(l.queue(wants[i].Retries).first())
			}
		}
		s.index.mu.Unlock()
		s.changed.give()
		if len(unread) == len(picks) {
			return dst[:had], fmt.Errorf("filequeue: %w", err)
		}
	}
	left := slices.DeleteFunc(dst[had:], func(d webhook.Delivery) bool { return d.Claim == 0 }) // without those that cannot be read
	for i := range wants {
		wants[i].Next = next[i]
	}
	return dst[:had+len(left)], nil
}

// readPicks reads deliveries into dst, and releases the picks. The claims in unread are of
// deliveries that the disk does not return now; err is the error of the last one.
func (s *Store) readPicks(picks []picked, dst []webhook.Delivery) (unread []*claim, err error) {
	slices.SortFunc(picks, func(a, b picked) int { // read in the order of the files
		return cmp.Or(cmp.Compare(a.entry.put.seg, b.entry.put.seg), cmp.Compare(a.entry.put.off, b.entry.put.off))
	})
	var buffer []byte
	if len(picks) > 1 {
		pooled := aheads.Get().(*[]byte)
		defer aheads.Put(pooled)
		buffer = *pooled
	}
	for n := 0; len(picks) > 0; picks = picks[n:] {
		var ahead []byte
		n, ahead = readAhead(picks, buffer)
		for i := range picks[:n] {
			p := &picks[i]
			var whole []byte
			if ahead != nil {
				whole = ahead[p.entry.put.off-picks[0].entry.put.off:][:recordHeader+int(p.length)]
			}
			var d webhook.DeadLetter
			_, lerr := s.load(&p.pinned, &d, whole)
			p.release()
			switch {
			case errors.Is(lerr, errDamaged): // if it cannot be removed either, it stays claimed
				s.lose(&d, p.seq, lerr, transition{id: p.claim.id})
			case lerr != nil: // the whole disk may be failing, or only this part of it
				complain(s, "a delivery cannot be read now; it is tried again every minute, and others are delivered", p.seq, &d, lerr)
				unread, err = append(unread, p.claim), lerr
			default:
				d.Claim = p.claim.id
				dst[p.order] = d.Delivery
			}
		}
	}
	return unread, err
}

// pick claims due deliveries for wants. Their bodies have at most maxBytes in all, unless the first
// one alone has more. next[i] is the due time of the next unclaimed delivery in the queue of
// wants[i].
func (x *index) pick(wants []webhook.Want, maxBytes int64, now time.Time) (picks []picked, next []time.Time) {
	next = make([]time.Time, len(wants))
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
		for n := 0; e != nil && e.due <= now.UnixMicro() && n < w.Max && !full; n++ {
			if bytes += e.bytes(); bytes > maxBytes && len(picks) > 0 {
				full = true
				break
			}
			taken, _ := q.remove(e.point())
			picks = append(picks, picked{pinned: x.segs.pin(taken), claim: x.claim(l, taken, w.Retries), order: len(picks)})
			e = q.first()
		}
		next[i] = dueOf(e)
	}
	return picks, next
}

// aheads pools the buffers of readAhead, which have maxAhead bytes.
var aheads = sync.Pool{New: func() any { b := make([]byte, maxAhead); return &b }}

// maxAhead bounds the bytes of one read of readAhead. maxApart bounds the bytes between two records
// in such a read.
const (
	maxAhead = 64 << 10
	maxApart = 4 << 10
)

// readAhead reads the put of the first pick, and the puts close behind it, into buffer with one
// read. One read takes much less processor time than a read for each put. readAhead returns the
// number of these picks, and their bytes. The bytes are nil if there is only one pick, or if the
// read fails.
func readAhead(picks []picked, buffer []byte) (n int, b []byte) {
	first := &picks[0]
	from := int64(first.entry.put.off)
	end := from
	for ; n < len(picks) && picks[n].put == first.put; n++ {
		off := int64(picks[n].entry.put.off)
		next := off + recordSize(int(picks[n].length))
		if off-end > maxApart || next-from > maxAhead {
			break
		}
		end = next
	}
	if n < 2 {
		return 1, nil
	}
	b = buffer[:end-from]
	if _, err := first.put.file.ReadAt(b, from); err != nil {
		b = nil
	}
	return n, b
}

// readAgain is how long Fetch postpones a delivery that the disk could not read.
const readAgain = time.Minute

// postpone ends the claim of a delivery that the disk could not read. until becomes the due time of
// the delivery, so that the other deliveries of its queue come first. Only the index has the new
// due time, not the disk.
func (x *index) postpone(c *claim, until time.Time) {
	x.unclaim(c)
	c.due = until.UnixMicro()
	x.push(where{waitingKind(c.retry), c.lane.name}, c.entry)
	x.announce(c.lane.name)
}

// Lost returns how many deliveries and dead letters were lost because they could not be read, since
// the folder was created. No other count includes them.
func (s *Store) Lost() int {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	return s.index.losses
}

// maxTold bounds index.told, the deliveries that complain has logged already. Once index.told is
// full, complain logs further deliveries each time they are read.
const maxTold = 1000

// complain logs that a delivery cannot be read, once for each delivery. d has the parts that could
// be read.
func complain(s *Store, what string, seq uint64, d *webhook.DeadLetter, err error) {
	s.index.mu.Lock()
	told := s.index.told[seq]
	if len(s.index.told) < maxTold {
		s.index.told[seq] = true
	}
	s.index.mu.Unlock()
	if told {
		return
	}
	args := []any{"error", err}
	if id := cmp.Or(d.MessageID, d.ID); id != "" {
		args = append(args, "messageId", id, "destination", d.Destination)
	}
	s.config.Logger.Error("filequeue: "+what, args...)
}
