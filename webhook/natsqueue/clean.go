package natsqueue

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

const (
	// cleanEvery is how often the logs are cleaned.
	cleanEvery = time.Second
	// slack is how many bytes of garbage a log may have, however few deliveries wait, before the
	// cleaner moves deliveries.
	slack = 1 << 20
	// maxMoves bounds one step of the cleaner: it moves the waiting deliveries out of at most this
	// many messages of a partition. These messages can then be purged.
	maxMoves = 16
)

// A cleaner bounds the size of the stream. It purges messages whose deliveries have all ended, and
// it refuses puts for which there is no room.
type cleaner struct {
	*recorder
	room room
}

// A keyMessage is a message with n dedup keys of purged deliveries.
type keyMessage struct {
	seq uint64
	n   int
}

// runCleaner purges messages whose deliveries have all ended, until the Store is closed. The
// package comment says when it moves deliveries to the end of a log. Records are purged together
// with the other messages, because a record matters only as long as the messages before it exist.
func (s *cleaner) runCleaner() {
	tick := time.NewTicker(cleanEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-tick.C:
		case <-s.background.Done():
			return
		}
		err := cmp.Or(s.clean(s.background, false), s.refill(s.background))
		if err != nil && !failing && s.background.Err() == nil {
			s.config.Logger.Warn("natsqueue: could not purge finished deliveries; the stream grows until a later attempt succeeds", "error", err)
		}
		failing = err != nil
		s.mu.Lock()
		for serial, x := range s.parts {
			if time.Since(x.sent) > 2*callTimeout { // no owner will answer
				delete(s.parts, serial)
			}
		}
		s.mu.Unlock()
	}
}

// clean cleans the logs of all partitions of this node. It moves deliveries until each log is short
// enough. If the argument short is true, a log may have only 1.25 times the bytes of its waiting
// deliveries.
func (s *cleaner) clean(ctx context.Context, short bool) error {
	for more := true; more; {
		more = false
		var writes []*write
		for _, p := range s.mine() {
			if err := s.purgeEnded(ctx, p); err != nil {
				return err
			}
			blocks := s.movable(p, short)
			w, err := s.moving(ctx, p, blocks)
			if err != nil {
				return err
			}
			if w != nil {
				writes = append(writes, w)
			}
			more = more || len(blocks) > 0
		}
		if err := s.write(ctx, writes...); err != nil {
			return err
		}
	}
	return nil
}

// purgeable returns the sequence below which messages may be purged. The last record names the
// owner, and unread messages may have waiting deliveries. The store is locked.
func (p *partition) purgeable() uint64 {
	if p.state != open {
		return 0
	}
	return min(p.last, p.read+1)
}

// purgeEnded purges the messages of p before the first one that has a waiting delivery.
func (s *cleaner) purgeEnded(ctx context.Context, p *partition) error {
	s.mu.Lock()
	below := p.purgeable()
	n, _ := p.search(below)
	if i := slices.IndexFunc(p.order[:n], func(b *block) bool { return b.left > 0 }); i >= 0 {
		n, below = i, p.order[i].seq
	}
	ended := slices.Clone(p.order[:n])
	s.mu.Unlock()
	if n == 0 {
		return nil
	}
	if err := s.keep(ctx, p, ended); err != nil {
		return err
	}
	if err := s.purge(ctx, p.prefix+"log.*", below); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n, _ = p.search(below)
	for _, b := range p.order[:n] {
		p.bytes -= b.size
	}
	p.order = slices.Delete(p.order, 0, n)
	return nil
}

// movable returns the first messages of p whose deliveries are to be moved to the end of the log.
func (s *cleaner) movable(p *partition, short bool) (blocks []*block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bound := 4*p.alive + slack
	if short {
		bound = p.alive + p.alive/4
	}
	for _, b := range p.order {
		if b.seq >= p.purgeable() || len(blocks) == maxMoves || p.bytes <= bound && b.seq > p.erased {
			break
		}
		if b.left > 0 {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// moving returns a write that moves the waiting deliveries of blocks into records, so that the
// messages of blocks can be purged. It sets damaged deliveries aside. It returns nil if there is
// nothing to record.
func (s *cleaner) moving(ctx context.Context, p *partition, blocks []*block) (*write, error) {
	all, err := s.contents(ctx, blocks)
	s.mu.Lock()
	defer s.mu.Unlock()
	w := newWrite(p)
	for _, b := range all {
		for i, e := range b.entries {
			if e == nil {
				continue
			}
			end := &ending{entry: e, verdict: webhook.Return, record: b.records[i], from: b.block}
			if e.damaged {
				end.verdict, end.subject = webhook.Bury, p.prefix+kindDamaged
			}
			w.endings = append(w.endings, end)
		}
	}
	if len(w.endings)+len(p.dropped) == 0 {
		return nil, err
	}
	return w, err
}

// keep copies the dedup keys of blocks into messages of their own, before the blocks are purged.
// The server deletes these messages after DedupWindow. If the partition has more than DedupMax
// keys, keep purges the oldest of these messages.
func (s *cleaner) keep(ctx context.Context, p *partition, blocks []*block) error {
	var keys []byte
	s.mu.Lock()
	for _, b := range blocks {
		for _, k := range b.keys {
			if k != (storekit.Key{}) {
				keys = append(keys, k[:]...)
			}
		}
	}
	n, below := 0, uint64(0)
	for _, k := range slices.Backward(p.keys) {
		if n += k.n; n > s.config.DedupMax {
			below = k.seq + 1
			break
		}
	}
	s.mu.Unlock()
	for some := range slices.Chunk(keys, blockBytes/16*16) {
		c := one(p.prefix+kindKey, some, headerTTL, s.config.DedupWindow.String())
		c.vital = true
		if err := s.store(ctx, c); err != nil {
			return err
		}
	}
	if below == 0 {
		return nil
	}
	if err := s.purge(ctx, p.prefix+kindKey, below); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.keys = slices.DeleteFunc(p.keys, func(k keyMessage) bool { return k.seq < below })
	return nil
}
