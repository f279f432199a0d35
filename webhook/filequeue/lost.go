package filequeue

import (
	"context"

	"github.com/hookferry/analytics/webhook"
)

// Lost returns how many deliveries and dead letters could not be read, were set aside and
// are counted nowhere else, since the folder was made.
func (s *Store) Lost() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index.losses
}

// maxTold is how many deliveries are complained of once.
const maxTold = 1000

// complain tells the log, once, of a delivery that cannot be read. d has what is known of it.
func (s *Store) complain(what string, seq uint64, d *webhook.DeadLetter, err error) {
	s.mu.Lock()
	_, told := s.index.told[seq]
	if len(s.index.told) < maxTold {
		s.index.told[seq] = struct{}{}
	}
	s.mu.Unlock()
	if told {
		return
	}
	args := []any{"error", err}
	if d.ID != "" {
		id := d.MessageID
		if id == "" {
			id = d.ID
		}
		args = append(args, "messageId", id, "destination", d.Destination)
	}
	s.config.Logger.Error("filequeue: "+what, args...)
}

// setAside removes claimed deliveries that cannot be read. While that cannot be stored, they
// stay claimed.
func (s *Store) setAside(lost []*claim) {
	var ts []settlement
	for _, c := range lost {
		ts = append(ts, settlement{verdict: webhook.Done, id: c.id})
	}
	s.writer.do(context.Background(), func(g *group) error { g.settle(ts, kindLost); return nil }, recordHeader, false)
}

// addLost counts what a record lists if it is a kindLost.
func (x *index) addLost(r *record, seg *segment) {
	if r.kind != kindLost || seg == nil || len(r.refs) == 0 {
		return
	}
	e := r.entryOf(seg.number)
	x.segs.count(&e, 1)
	x.lost = append(x.lost, e)
	x.losses += len(r.refs)
}
