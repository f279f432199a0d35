package natsqueue

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook/store"
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
	*store.Upkeep // implements store.Maintained
	room          room
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
	for {
		select {
		case <-tick.C:
		case <-s.background.Done():
			return
		}
		err := s.clean(s.background, false)
		if s.background.Err() != nil {
			return
		}
		s.Ran("clean", "the stream keeps the deliveries that have ended, and grows; see whether the server is out of reach or refuses purges", err)
		s.Ran("reserve", "a server without room will stop them all, because the stream lacks its reserve; see the error", s.refill(s.background))
	}
}

// clean cleans the logs of all partitions of this node. It moves deliveries until each log is short
// enough: with short, at most 1.25 times the bytes of its waiting deliveries.
func (s *cleaner) clean(ctx context.Context, short bool) error {
	var failed error
	for more := true; more && failed == nil; {
		more = false
		var writes []*write
		for _, p := range s.mine() {
			err := s.purgeEnded(ctx, p)
			var blocks []*block
			var w *write
			if err == nil {
				blocks = s.movable(p, short)
				w, err = s.moving(ctx, p, blocks)
			}
			if err != nil { // clean the others nevertheless
				failed = err
				continue
			}
			if w != nil {
				writes = append(writes, w)
			}
			more = more || len(blocks) > 0
		}
		failed = cmp.Or(s.write(ctx, writes...), failed)
	}
	return failed
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

// movable returns the first messages of p whose deliveries are to be moved to the end of the log. A
// delivery that is too large for the server's max_payload, which was lowered, stays. So do those
// behind it, because only the beginning of a log can be purged.
func (s *cleaner) movable(p *partition, short bool) (blocks []*block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	room := s.recordRoom()
	stays := func(e *entry) bool { return e != nil && (int(e.stored) > room || s.unfit[e] != nil) }
	bound := 4*p.alive + slack
	if short {
		bound = p.alive + p.alive/4
	}
	for _, b := range p.order {
		if b.seq >= p.purgeable() || len(blocks) == maxMoves || p.bytes <= bound && b.seq > p.erased || slices.ContainsFunc(b.entries, stays) {
			break
		}
		if b.left > 0 {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// moving returns a write that moves the waiting deliveries of blocks into records, so that the
// messages of blocks can be purged. It returns nil if there is nothing to record.
func (s *cleaner) moving(ctx context.Context, p *partition, blocks []*block) (*write, error) {
	var entries []*entry
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range blocks {
		entries = append(entries, slices.DeleteFunc(slices.Clone(b.entries), func(e *entry) bool { return e == nil })...)
	}
	ds, err := s.load(ctx, entries)
	if err != nil {
		return nil, err
	}
	w := newWrite(p)
	for i, e := range entries {
		if ds[i] != nil {
			record, _ := ds[i].AppendBinary(nil) // no error: it was read from a record
			w.endings = append(w.endings, &ending{entry: e, verdict: store.Return, record: record, from: e.block})
		}
	}
	if len(w.endings)+len(p.dropped) == 0 {
		return nil, nil
	}
	return w, nil
}

// keep copies what is to outlive blocks, before they are purged: their dedup keys, and what could not
// be read. The server deletes the messages with keys after DedupWindow. If the partition has more
// than DedupMax keys, keep purges the oldest of these messages.
func (s *cleaner) keep(ctx context.Context, p *partition, blocks []*block) error {
	var keys []byte
	var damaged []*block
	s.mu.Lock()
	for _, b := range blocks {
		for _, k := range b.keys {
			if k != (store.Key{}) {
				keys = append(keys, k[:]...)
			}
		}
		if b.damaged {
			damaged = append(damaged, b)
		}
	}
	n, below := len(keys)/16, uint64(0)
	for _, k := range slices.Backward(p.keys) {
		if n += k.n; n > s.config.DedupMax {
			below = k.seq + 1
			break
		}
	}
	s.mu.Unlock()
	var parcels []*parcel
	for some := range slices.Chunk(keys, s.blockRoom()/16*16) {
		parcels = append(parcels, one(p.prefix+kindKey, some, headerTTL, s.config.DedupWindow.String()))
	}
	messages, err := s.contents(ctx, damaged)
	if err != nil {
		return err
	}
	for _, m := range messages {
		if m == nil { // the servers have lost it
			continue
		}
		records := []stored{{data: m.Data}}
		if r, err := parseRecord(m.Data); err == nil {
			records = r.records
		}
		for _, record := range records {
			if d := new(store.Delivery); d.UnmarshalBinary(record.data) != nil || d.Destination == "" {
				parcels = append(parcels, one(p.prefix+kindDamaged, record.data))
			}
		}
	}
	for _, c := range parcels { // a purge frees more room than they take
		c.vital = true
	}
	if err = s.store(ctx, parcels...); err != nil || below == 0 {
		return err
	}
	if err = s.purge(ctx, p.prefix+kindKey, below); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.keys = slices.DeleteFunc(p.keys, func(k keyMessage) bool { return k.seq < below })
	return nil
}
