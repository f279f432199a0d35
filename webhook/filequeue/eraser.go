package filequeue

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/hookferry/analytics/webhook/store"
)

// An eraser erases the deliveries of one user. While an eraser works, the janitor does not, so no
// record moves to another segment.
type eraser struct {
	store   *Store
	ctx     context.Context
	user    string
	puts    map[uint64]bool   // the sequence numbers of the user's deliveries
	claimed map[uint64]*claim // the claimed ones among them, which are not erased
	erased  int
}

// each calls the function do once for each segment. It passes those records of the segment that
// have the user's hash.
func (e *eraser) each(do func(g *segment, rs []record) error) error {
	hash := textHash(e.user)
	e.store.index.mu.Lock()
	numbers := e.store.index.segs.numbers()
	e.store.index.mu.Unlock()
	for _, n := range numbers {
		if err := e.ctx.Err(); err != nil {
			return err
		}
		e.store.index.mu.Lock()
		g := e.store.index.segs[n]
		if g == nil { // its first commit has failed
			e.store.index.mu.Unlock()
			continue
		}
		g.pins.Add(1)
		end := g.end
		e.store.index.mu.Unlock()
		rs, err := g.records(end)
		if err == nil {
			err = do(g, slices.DeleteFunc(rs, func(r record) bool { return r.user != hash }))
		}
		if g.unpin(); err != nil {
			return err
		}
	}
	return nil
}

// find adds the sequence numbers of the user's deliveries to e.puts. It compares the user ids in
// the payloads, because two users can have the same hash. Of a damaged delivery it reads what it can.
func (e *eraser) find(g *segment, rs []record) error {
	for _, r := range rs {
		if !r.whole() {
			continue
		}
		var d store.Record
		b, err := g.bytes(int64(r.pos.off), recordHeader+int64(r.length), nil)
		if err == nil {
			var found record
			found, err = g.decode(r.pos, r.seq, b)
			r.payload = found.payload
		}
		if err != nil && !errors.Is(err, errDamaged) {
			return err
		}
		if r.readDelivery(&d); d.User == e.user { // even after an error of readDelivery
			e.puts[r.seq] = true
		}
	}
	return nil
}

// remove removes the user's deliveries from the index, except claimed ones, which it notes in
// e.claimed. It holds index.mu only for a few milliseconds at a time, so deliveries may move to
// other queues in the meantime. index.moved has the transitions that remove them from there.
func (e *eraser) remove() error {
	watch := func(puts map[uint64]bool) {
		e.store.index.mu.Lock()
		e.store.index.watched, e.store.index.moved = puts, nil
		e.store.index.mu.Unlock()
	}
	watch(e.puts)
	defer watch(nil)
	var ts []transition
	var claimed map[uint64]*claim
	e.store.index.visit(func(id queueID, found entry) {
		if e.puts[found.seq] {
			ts = append(ts, leaving(id, found.rank()))
		}
	})
	for more := true; more; more = len(ts) > 0 {
		for some := range slices.Chunk(ts, page) {
			n, err := e.store.transit(e.ctx, some)
			if e.erased += n; err != nil {
				return err
			}
		}
		// The constant alone, as the size of the op, gives the op a commit of its own. So each
		// delivery is in a queue or claimed when the op looks for the claimed ones.
		err := e.store.writer.do(e.ctx, func(g *group) error {
			ts, g.index.moved = g.index.moved, nil
			claimed = g.index.claimed()
			return nil
		}, alone, false)
		if err != nil {
			return err
		}
	}
	maps.DeleteFunc(claimed, func(seq uint64, _ *claim) bool { return !e.puts[seq] })
	e.claimed = claimed
	return nil
}

// blank overwrites the payloads of the user's records with zeros. A later Open does not report these
// records as damaged, because their deliveries have left the store.
func (e *eraser) blank(g *segment, rs []record) error {
	some := false
	for _, r := range rs {
		if !e.puts[r.seq] || e.claimed[r.seq] != nil {
			continue
		}
		from := int64(r.pos.off) + recordHeader
		if err := zero(g.file, from, from+int64(r.length)); err != nil {
			return err
		}
		some = true
	}
	if !some {
		return nil
	}
	// Only the writer syncs the active segment. If another sync failed, the writer's next sync could
	// succeed although the disk has lost the records of a commit.
	commit := listing(kindGone, nil)
	if err := e.store.writer.do(e.ctx, func(g *group) error { g.add(&commit); return nil }, recordHeader, false); err != nil || commit.pos.seg == g.id.number {
		return err
	}
	return g.file.Sync()
}
