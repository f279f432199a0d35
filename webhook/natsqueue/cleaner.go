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
func (cl *cleaner) runCleaner() {
	tick := time.NewTicker(cleanEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-cl.life.ctx.Done():
			return
		}
		err := cl.clean(cl.life.ctx, false)
		if cl.life.ctx.Err() != nil {
			return
		}
		cl.upkeep.Ran("clean", "the stream keeps the deliveries that have ended, and grows; see whether the server is out of reach or refuses purges", err)
		cl.upkeep.Ran("reserve", "a server without room will stop them all, because the stream lacks its reserve; see the error", cl.conn.refill(cl.life.ctx))
	}
}

// clean cleans the logs of all partitions of this node. It moves deliveries until each log is short
// enough: with short, at most 1.25 times the bytes of its waiting deliveries.
func (cl *cleaner) clean(ctx context.Context, short bool) error {
	var failed error
	for more := true; more && failed == nil; {
		more = false
		var writes []*write
		for _, p := range cl.partitions.mine() {
			err := cl.purgeEnded(ctx, p)
			var blocks []*block
			var w *write
			if err == nil {
				blocks = cl.movable(p, short)
				w, err = cl.moving(ctx, p, blocks)
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
		failed = cmp.Or(cl.recorder.write(ctx, writes...), failed)
	}
	return failed
}

// purgeEnded purges the messages of p before the first one that has a waiting delivery.
func (cl *cleaner) purgeEnded(ctx context.Context, p *partition) error {
	cl.index.mu.Lock()
	below := p.purgeable()
	n, _ := p.search(below)
	if i := slices.IndexFunc(p.order[:n], func(b *block) bool { return b.left > 0 }); i >= 0 {
		n, below = i, p.order[i].seq
	}
	ended := slices.Clone(p.order[:n])
	cl.index.mu.Unlock()
	if n == 0 {
		return nil
	}
	if err := cl.keep(ctx, p, ended); err != nil {
		return err
	}
	if err := cl.conn.purge(ctx, p.prefix+"log.*", below); err != nil {
		return err
	}
	cl.index.mu.Lock()
	defer cl.index.mu.Unlock()
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
func (cl *cleaner) movable(p *partition, short bool) (blocks []*block) {
	cl.index.mu.Lock()
	defer cl.index.mu.Unlock()
	room := cl.conn.recordRoom()
	stays := func(e *entry) bool { return e != nil && (int(e.stored) > room || cl.index.unfit[e] != nil) }
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
func (cl *cleaner) moving(ctx context.Context, p *partition, blocks []*block) (*write, error) {
	var endings []*ending
	var entries []*entry
	cl.index.mu.Lock()
	for _, b := range blocks {
		for _, e := range b.entries {
			if e != nil {
				entries = append(entries, e)
				endings = append(endings, &ending{entry: e, verdict: store.Return, from: b})
			}
		}
	}
	cl.index.mu.Unlock()
	w := newWrite(p)
	err := cl.loader.load(ctx, entries, func(ds []*store.Delivery) error {
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
func (cl *cleaner) keep(ctx context.Context, p *partition, blocks []*block) error {
	var keys []byte
	var damaged []*block
	cl.index.mu.Lock()
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
		if n += k.n; n > cl.conn.config.DedupMax {
			below = k.seq + 1
			break
		}
	}
	cl.index.mu.Unlock()
	var parcels []*parcel
	for some := range slices.Chunk(keys, cl.conn.blockRoom()/16*16) {
		parcels = append(parcels, one(p.prefix+kindKey, some, headerTTL, cl.conn.config.DedupWindow.String()))
	}
	messages, err := cl.loader.contents(ctx, damaged)
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
	if err = cl.conn.store(ctx, parcels...); err != nil || below == 0 {
		return err
	}
	if err = cl.conn.purge(ctx, p.prefix+kindKey, below); err != nil {
		return err
	}
	cl.index.mu.Lock()
	defer cl.index.mu.Unlock()
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
func (cl *cleaner) takeRoom(ctx context.Context, size int64) error {
	r, most := &cl.room, cl.conn.config.MaxBytes
	if most == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// The server knows what other nodes have put, so ask it from time to time.
	if r.used+size > most || time.Since(r.asked) > cl.conn.config.Claim {
		if err := cl.clean(ctx, true); err != nil {
			return err
		}
		info, err := cl.conn.info(ctx, "")
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
