package natsqueue

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// Fetch implements webhook.Store.
func (s *Store) Fetch(ctx context.Context, wants []webhook.Want, maxBytes int64, dst []webhook.Delivery) ([]webhook.Delivery, error) {
	if err := s.calls.Enter(ctx); err != nil {
		return dst, err
	}
	defer s.calls.Leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.lapsed(); err != nil {
		return dst, err
	}
	picked := s.pick(wants, maxBytes)
	err := s.load(ctx, picked)
	if err == nil {
		err = s.lapsed()
	}
	picked = slices.DeleteFunc(picked, func(e *entry) bool { return s.claims[e.claim] != e }) // lost meanwhile
	if err != nil {
		for _, e := range picked {
			s.putBack(e)
		}
		return dst, err
	}
	for _, e := range picked {
		d := *e.delivery
		d.Claim = e.claim
		dst = append(dst, d)
	}
	for i := range wants {
		w := &wants[i]
		w.Next = time.Time{}
		if l := s.lanes[w.Destination]; l != nil && l.p.state == open {
			w.Next = l.queue(w.Retries).due()
		}
	}
	return dst, nil
}

// loadBlocks is how many messages are read from the stream at a time.
const loadBlocks = 32

// load sets the field delivery of claimed entries. If a delivery is not in memory, load reads its
// message from the stream, and also keeps the other deliveries in the message that are due soon. If
// a delivery cannot be read, load removes its entry and marks its place in the message as damaged.
// The caller holds the lock of the store; load releases the lock while it asks the server.
func (s *index) load(ctx context.Context, entries []*entry) error {
	for {
		var some []*block
		for _, e := range entries {
			if e.delivery == nil && s.claims[e.claim] == e && len(some) < loadBlocks && !slices.Contains(some, e.block) {
				some = append(some, e.block)
			}
		}
		if len(some) == 0 {
			return nil
		}
		s.mu.Unlock()
		all, err := s.contents(ctx, some)
		s.mu.Lock()
		if err != nil {
			return err
		}
		// If the cleaner has moved an entry meanwhile, the next iteration reads it from its new message.
		horizon := time.Now().Add(cacheAhead).UnixMicro()
		for _, b := range all {
			if b.p.state == lost {
				continue
			}
			for i, e := range b.entries {
				if e == nil || e.delivery != nil || e.damaged || e.claim == 0 && e.due > horizon {
					continue
				}
				d := new(webhook.Delivery)
				if err := d.UnmarshalBinary(b.records[i]); err != nil {
					b.p.setAside(b.seq, i, err)
					s.remove(e)
					b.set(i, &entry{damaged: true})
					continue
				}
				d.Destination, e.delivery = e.lane.name, d
			}
			s.cache.add(b.block)
		}
	}
}

// A content is a block, which stands for a message of the stream, and the records in that message.
// The records are nil if the message cannot be read.
type content struct {
	*block
	records [][]byte
}

// contents reads the messages of blocks. The store is not locked.
func (s *index) contents(ctx context.Context, blocks []*block) ([]content, error) {
	if len(blocks) == 0 {
		return nil, nil
	}
	requests, all := make([]request, len(blocks)), make([]content, len(blocks))
	for i, b := range blocks {
		requests[i] = request{Seq: b.seq, Batch: 1}
	}
	for wait := behind; ; wait *= 2 {
		pages, err := s.read(ctx, requests...)
		if err != nil {
			return nil, fmt.Errorf("natsqueue: reading waiting deliveries: %w", err)
		}
		missing := 0
		for i, page := range pages {
			b := blocks[i]
			all[i] = content{b, make([][]byte, len(b.entries))}
			if len(page) == 0 || page[0].seq != b.seq {
				missing++ // the replica does not have the message yet
			} else if b.damaged {
				all[i].records[0] = page[0].data
			} else if r, err := parseRecord(page[0].data); err == nil && len(r.records) == len(b.entries) {
				all[i].records = r.records
			}
		}
		if missing == 0 {
			return all, nil
		}
		if wait > resend { // no server has the missing messages
			s.config.Logger.Error("natsqueue: the stream has lost messages; the deliveries in them are not attempted", "messages", missing)
			return all, nil
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// behind is the first wait before a request is repeated, for example because the replica that
// answered lags behind the leader.
const behind = 20 * time.Millisecond

// sleep waits for d. If ctx ends first, it returns the error of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Heads implements webhook.Store.
func (s *Store) Heads(ctx context.Context, all bool) iter.Seq2[webhook.Head, error] {
	return page(ctx, s.conn, func() (heads []webhook.Head, _ error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !all {
			for name := range s.news {
				heads = append(heads, s.head(name))
			}
			clear(s.news)
			return heads, nil
		}
		for name := range s.lanes {
			if h := s.head(name); !h.Earliest().IsZero() {
				heads = append(heads, h)
			}
		}
		return heads, nil
	})
}
