package natsqueue

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/hookferry/analytics/webhook/store"
)

// Fetch implements store.Store.
func (s *Store) Fetch(ctx context.Context, wants []store.Want, maxBytes int64, dst []store.Delivery) ([]store.Delivery, error) {
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
	ds, err := s.load(ctx, picked)
	if err == nil {
		err = s.lapsed()
	}
	for i, e := range picked {
		switch {
		case !e.waits(): // it is lost or cannot be read
		case err != nil:
			s.putBack(e)
		default:
			d := *ds[i]
			d.Claim = e.claim
			dst = append(dst, d)
		}
	}
	if err != nil {
		return dst, err
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

// waits reports whether e has not ended, and its partition is not lost. The store is locked.
func (e *entry) waits() bool { return e.block.p.state != lost && e.block.entries[e.i] == e }

// load returns the deliveries of entries, nil for an entry that no longer waits. It reads those that
// are not in memory from the stream, and keeps the other deliveries in these messages that are due
// soon. If a delivery cannot be read, load ends its entry. The store is locked; load unlocks it while
// it asks the server.
func (s *index) load(ctx context.Context, entries []*entry) ([]*store.Delivery, error) {
	ds := make([]*store.Delivery, len(entries))
	var wanted map[*entry]bool // nil until one of them has to be read
	var read []*entry
	defer func() { s.hold(read...) }()
	for {
		var missing []*block
		for i, e := range entries {
			ds[i] = nil
			if !e.waits() {
				continue
			}
			if ds[i] = e.delivery; ds[i] == nil && len(missing) < loadBlocks && !slices.Contains(missing, e.block) {
				missing = append(missing, e.block)
			}
		}
		if len(missing) == 0 {
			return ds, nil
		}
		if wanted == nil {
			wanted = make(map[*entry]bool, len(entries))
			for _, e := range entries {
				wanted[e] = true
			}
		}
		s.mu.Unlock()
		messages, err := s.contents(ctx, missing)
		s.mu.Lock()
		if err != nil {
			return nil, fmt.Errorf("natsqueue: reading waiting deliveries: %w", err)
		}
		// If the cleaner has moved an entry meanwhile, the next iteration reads it from its new message.
		for at, b := range missing {
			var records []stored
			if m := messages[at]; m != nil {
				if r, err := parseRecord(m.Data); err == nil && len(r.records) == len(b.entries) {
					records = r.records
				}
			}
			if records == nil && b.left > 0 && b.p.state != lost {
				s.config.Logger.Error("natsqueue: the servers have lost a message or damaged it; its deliveries are not attempted", "partition", b.p.n, "sequence", b.seq, "deliveries", b.left)
			}
			for i, e := range b.entries {
				if e == nil || e.delivery != nil || !e.waits() || !wanted[e] && e.due > time.Now().Add(cacheAhead).UnixMicro() {
					continue
				}
				var d *store.Delivery
				if records != nil {
					d = b.p.decode(b.seq, i, records[i].data)
				}
				if d == nil {
					b.damaged = true
					s.remove(e)
					continue
				}
				d.Destination, e.delivery = e.lane.name, d
				if x := s.unfit[e]; x != nil {
					d.Tries, d.Closed, d.Attempts, d.Due, d.Expires = x.Tries, x.Closed, x.Attempts, x.Due, x.Expires
				}
				read = append(read, e)
			}
		}
	}
}

// contents reads the messages of blocks. An element is nil if the servers have lost the message.
func (s *conn) contents(ctx context.Context, blocks []*block) ([]*jetstream.RawStreamMsg, error) {
	var seqs []uint64
	for _, b := range blocks {
		seqs = append(seqs, b.seq)
	}
	all, err := s.messages(ctx, seqs...)
	if err == nil && slices.Contains(all, nil) {
		// The leader may have been replaced by a server that it cannot reach, and not know it yet. Then
		// it does not know either that a message is lost.
		var info *jetstream.StreamInfo
		if info, err = s.info(ctx, ""); err == nil && info.State.LastSeq < slices.Max(seqs) {
			err = errBehind
		}
	}
	return all, err
}

// Heads implements store.Store.
func (s *Store) Heads(ctx context.Context, all bool) iter.Seq2[store.Head, error] {
	return page(ctx, s.conn, "listing heads", func() (heads []store.Head, _ error) {
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
