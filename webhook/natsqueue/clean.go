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

// clean cleans the logs of all partitions of this node. If the argument short is true, clean moves
// deliveries until each log has at most 1.25 times the bytes of its waiting deliveries.
func (s *cleaner) clean(ctx context.Context, short bool) error {
	for more := true; more; {
		var writes []*write
		more = false
		for _, p := range s.mine() {
			w, urgent, err := s.cleanOne(ctx, p, short)
			if err != nil {
				return err
			}
			if w != nil {
				writes = append(writes, w)
				more = more || urgent
			}
		}
		if err := s.write(ctx, writes...); err != nil {
			return err
		}
	}
	return nil
}

// cleanOne purges the log of p. If w is not nil, the caller must record the write w before another
// call of cleanOne can purge more. If urgent is true, the caller should then make that call at
// once.
func (s *cleaner) cleanOne(ctx context.Context, p *partition, short bool) (w *write, urgent bool, err error) {
	s.mu.Lock()
	if p.state != open {
		s.mu.Unlock()
		return nil, false, nil
	}
	// Keep the last record, because it names the owner. Keep unread messages, because they may have
	// waiting deliveries.
	below := min(p.last, p.read+1)
	n, bytes := 0, p.bytes
	for ; n < len(p.order) && p.order[n].left == 0 && p.order[n].seq < below; n++ {
		bytes -= p.order[n].size
	}
	ended, rest := slices.Clone(p.order[:n]), p.order[n:]
	bound := 4*p.alive + slack
	if short {
		bound = p.alive + p.alive/4
	}
	var moved []*block
	for _, b := range rest {
		if b.seq >= below || len(moved) == maxMoves || bytes <= bound && b.seq > p.erased {
			break
		}
		if b.left > 0 {
			moved = append(moved, b)
		}
	}
	if len(rest) > 0 {
		below = min(below, rest[0].seq)
	}
	erasing := below <= p.erased
	record := len(moved) > 0 || len(p.dropped) > 0
	s.mu.Unlock()
	if err := s.keep(ctx, p, ended); err != nil {
		return nil, false, err
	}
	if n > 0 {
		if err := s.purge(ctx, p.prefix+"log.*", below); err != nil {
			return nil, false, err
		}
		s.mu.Lock()
		purged, _ := p.search(below)
		for _, b := range p.order[:purged] {
			p.bytes -= b.size
		}
		p.order = slices.Delete(p.order, 0, purged)
		s.mu.Unlock()
	}
	if !record {
		return nil, false, nil
	}
	w, err = s.moving(ctx, p, moved)
	return w, erasing || short && len(moved) > 0, err
}

// moving returns a write that moves the waiting deliveries of blocks into records, so that the
// messages of blocks can be purged. It sets damaged deliveries aside.
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
	all, n := 0, 0
	for _, k := range p.keys {
		all += k.n
	}
	below := uint64(0)
	for ; all > s.config.DedupMax; n++ {
		all -= p.keys[n].n
		below = p.keys[n].seq + 1
	}
	s.mu.Unlock()
	for some := range slices.Chunk(keys, blockBytes/16*16) {
		c := one(p.prefix+kindKey, some, headerTTL, s.config.DedupWindow.String())
		c.vital = true
		if err := s.store(ctx, c); err != nil {
			return err
		}
	}
	if n == 0 {
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
