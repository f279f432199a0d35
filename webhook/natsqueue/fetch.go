package natsqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

const (
	// fetchMax and fetchBytes are what is read of a subject at a time, at most.
	fetchMax   = 256
	fetchBytes = 1 << 20
	// behind is how long a shelf is left alone whose messages a replica does not
	// have yet.
	behind = 20 * time.Millisecond
	// blanks is after how many readings that find nothing it is told, and from when
	// on no more is waited in between.
	blanks = 50
)

// fetch reads the first deliveries of the lanes that take wants into memory. The
// queue is locked, but not while it asks the server.
func (q *Queue) fetch(ctx context.Context, take *lanes.Take, now time.Time) error {
	var shelves []*shelf
	var requests []request
	for _, l := range take.Wants {
		h := l.Home.(*home)
		var s *shelf
		for _, x := range h.shelves {
			if s == nil || x.first.Before(s.first) {
				s = x
			}
		}
		n := min(fetchMax, max(take.Want(l), 1, int((q.config.CacheBytes-q.cached)/itemBytes/4/int64(len(take.Wants)))))
		shelves = append(shelves, s)
		requests = append(requests, request{Batch: n, MaxBytes: fetchBytes, Seq: s.cursor, Next: s.subject})
	}
	q.mu.Unlock()
	pages, err := q.reader.read(ctx, q.config.Stream, requests...)
	q.mu.Lock()
	if err != nil {
		return fmt.Errorf("natsqueue: reading what waits: %w", err)
	}
	for i, s := range shelves {
		// If something before came to be known meanwhile, it is read first.
		if !s.p.lost && s.cursor == requests[i].Seq {
			q.shelve(s, pages[i], now)
		}
	}
	return nil
}

// shelve takes a page of a shelf into memory. The queue is locked.
func (q *Queue) shelve(s *shelf, page []stored, now time.Time) {
	p, from, found := s.p, s.cursor, 0
	for _, m := range page {
		if _, early := p.early[m.seq]; m.seq > p.seen && !early {
			break // it is not known of yet
		}
		s.cursor = m.seq + 1
		_, over := s.done[m.seq]
		if _, damaged := s.damaged[m.seq]; damaged || over || p.held[m.seq] != nil {
			continue
		}
		s.away--
		found++
		var d webhook.Delivery
		if err := d.UnmarshalBinary(m.data); err != nil {
			q.damaged(s, m.seq, err)
			continue
		}
		q.hold(s, m.seq, &d, int64(len(m.data))+itemBytes)
		// As what is left was stored later, it is taken to be due later.
		s.first = lanes.Order{At: d.Due.UnixMicro(), Seq: m.seq + 1}
	}
	switch {
	case found > 0:
		s.blank = 0
	case s.cursor == from:
		// It stays on the account: not even an error of ours is to have it erased.
		if s.blank++; s.blank == blanks {
			q.config.Logger.Error("natsqueue: the server does not have deliveries that it had", "partition", p.n, "deliveries", s.away)
		}
		s.first.At = now.Add(behind * time.Duration(min(s.blank, blanks))).UnixMicro()
	}
	s.fetched()
	q.table.Refresh(s.lane, now.UnixMicro())
}
