package natsqueue

import (
	"cmp"
	"context"
	"slices"
	"sync"
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
	conn       *conn
	life       *lifetime
	index      *index
	partitions *partitions
	loader     *loader
	recorder   *recorder
	upkeep     *store.Upkeep
	room       room
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
		case <-s.life.ctx.Done():
			return
		}
		err := s.clean(s.life.ctx, false)
		if s.life.ctx.Err() != nil {
			return
		}
		s.upkeep.Ran("clean", "the stream keeps the deliveries that have ended, and grows; see whether the server is out of reach or refuses purges", err)
		s.upkeep.Ran("reserve", "a server without room will stop them all, because the stream lacks its reserve; see the error", s.conn.refill(s.life.ctx))
	}
}

// clean cleans the logs of all partitions of this node. It moves deliveries until each log is short
// enough: with short, at most 1.25 times the bytes of its waiting deliveries.
func (s *cleaner) clean(ctx context.Context, short bool) error {
	var failed error
	for more := true; more && failed == nil; {
		more = false
		var writes []*write
		for _, p := range s.partitions.mine() {
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
		failed = cmp.Or(s.recorder.write(ctx, writes...), failed)
	}
	return failed
}

// purgeEnded purges the messages of p before the first one that has a waiting delivery.
func (s *cleaner) purgeEnded(ctx context.Context, p *partition) error {
	s.index.mu.Lock()
	below := p.purgeable()
	n, _ := p.search(below)
	if i := slices.IndexFunc(p.order[:n], func(b *block) bool { return b.left > 0 }); i >= 0 {
		n, below = i, p.order[i].seq
	}
	ended := slices.Clone(p.order[:n])
	s.index.mu.Unlock()
	if n == 0 {
		return nil
	}
	if err := s.keep(ctx, p, ended); err != nil {
		return err
	}
	if err := s.conn.purge(ctx, p.prefix+"log.*", below); err != nil {
		return err
	}
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
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
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	room := s.conn.recordRoom()
	stays := func(e *entry) bool { return e != nil && (int(e.stored) > room || s.index.unfit[e] != nil) }
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
	var endings []*ending
	var entries []*entry
	s.index.mu.Lock()
	for _, b := range blocks {
		for _, e := range b.entries {
			if e != nil {
				entries = append(entries, e)
				endings = append(endings, &ending{entry: e, verdict: store.Return, from: b})
			}
		}
	}
	s.index.mu.Unlock()
	w := newWrite(p)
	err := s.loader.load(ctx, entries, func(ds []*store.Delivery) error {
		for i, end := range endings {
			if ds[i] != nil && end.entry.block == end.from { // otherwise it has been moved or retried meanwhile
				end.record, _ = ds[i].AppendBinary(nil) // no error: it was read from a record
				w.endings = append(w.endings, end)
			}
		}
		if len(w.endings)+len(p.dropped) == 0 {
			w = nil
		}
		return nil
	})
	return w, err
}

// keep copies what is to outlive blocks, before they are purged: their dedup keys, and what could not
// be read. The server deletes the messages with keys after DedupWindow. If the partition has more
// than DedupMax keys, keep purges the oldest of these messages.
func (s *cleaner) keep(ctx context.Context, p *partition, blocks []*block) error {
	var keys []byte
	var damaged []*block
	s.index.mu.Lock()
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
		if n += k.n; n > s.conn.config.DedupMax {
			below = k.seq + 1
			break
		}
	}
	s.index.mu.Unlock()
	var parcels []*parcel
	for some := range slices.Chunk(keys, s.conn.blockRoom()/16*16) {
		parcels = append(parcels, one(p.prefix+kindKey, some, headerTTL, s.conn.config.DedupWindow.String()))
	}
	messages, err := s.loader.contents(ctx, damaged)
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
	if err = s.conn.store(ctx, parcels...); err != nil || below == 0 {
		return err
	}
	if err = s.conn.purge(ctx, p.prefix+kindKey, below); err != nil {
		return err
	}
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	p.keys = slices.DeleteFunc(p.keys, func(k keyMessage) bool { return k.seq < below })
	return nil
}

// A room enforces Config.MaxBytes by counting the bytes that are put. The server does not: records
// must be stored beyond the bound, so that deliveries can be settled and messages purged.
type room struct {
	mu    sync.Mutex // held while the server is asked
	used  int64      // bytes of the stream when the server was last asked, plus bytes put since
	asked time.Time
}

// takeRoom counts size bytes as used, or returns store.ErrQueueFull.
func (s *cleaner) takeRoom(ctx context.Context, size int64) error {
	r, most := &s.room, s.conn.config.MaxBytes
	if most == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// The server knows what other nodes have put, so ask it from time to time.
	if r.used+size > most || time.Since(r.asked) > s.conn.config.Claim {
		if err := s.clean(ctx, true); err != nil {
			return err
		}
		info, err := s.conn.info(ctx, "")
		if err != nil {
			return err
		}
		r.used, r.asked = int64(info.State.Bytes), time.Now()
	}
	if r.used+size > most {
		return store.ErrQueueFull
	}
	r.used += size
	return nil
}
