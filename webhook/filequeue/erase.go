package filequeue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/hookferry/analytics/webhook/store"
)

// Erase implements store.Keeper. It overwrites the bodies and the attempts of the user's
// deliveries with zeros, in all segments, even if the deliveries have left the store. It leaves
// claimed deliveries as they are, and counts them. It returns once the zeros are on the disk.
func (s *Store) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("filequeue: erasure without a user")
	}
	if err := s.gate.Enter(ctx); err != nil {
		return 0, 0, err
	}
	defer s.gate.Leave()
	e := eraser{Store: s, ctx: ctx, user: user, puts: make(map[uint64]bool)}
	select {
	case s.janitor.busy <- struct{}{}:
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	if err = e.each(e.find); err == nil {
		err = e.remove()
	}
	if err == nil {
		err = e.each(e.blank)
	}
	<-s.janitor.busy
	if err != nil {
		err = fmt.Errorf("filequeue: %w", err)
	}
	return e.erased, len(e.claimed), err
}

// An eraser erases the deliveries of one user. While an eraser works, the janitor does not, so no
// record moves to another segment.
type eraser struct {
	*Store
	ctx     context.Context
	user    string
	puts    map[uint64]bool   // the sequence numbers of the user's deliveries
	claimed map[uint64]*claim // the claimed ones among them, which are not erased
	erased  int
}

// each calls the function do once for each segment. It passes those records of the segment that
// have the user's hash.
func (e *eraser) each(do func(g *segment, rs []record) error) error {
	hash := userHash(e.user)
	e.index.mu.Lock()
	numbers := e.index.segs.numbers()
	e.index.mu.Unlock()
	for _, n := range numbers {
		if err := e.ctx.Err(); err != nil {
			return err
		}
		e.index.mu.Lock()
		g := e.index.segs[n]
		if g == nil { // its first commit has failed
			e.index.mu.Unlock()
			continue
		}
		g.pins.Add(1)
		end := g.end
		e.index.mu.Unlock()
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
		var d store.Ended
		b, err := g.bytes(int64(r.off), recordHeader+int64(r.length), nil)
		if err == nil {
			var found record
			found, err = g.decode(r.place, r.seq, b)
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
// other queues in the meantime. index.moved lists where they went, and remove looks for them there.
func (e *eraser) remove() error {
	watch := func(puts map[uint64]bool) {
		e.index.mu.Lock()
		e.index.watched, e.index.moved = puts, nil
		e.index.mu.Unlock()
	}
	watch(e.puts)
	defer watch(nil)
	var ts []transition
	var claimed map[uint64]*claim
	e.index.visit(func(w where, found entry) {
		if e.puts[found.seq] {
			ts = append(ts, leaving(w, found.point()))
		}
	})
	for more := true; more; more = len(ts) > 0 {
		for some := range slices.Chunk(ts, page) {
			n, err := e.transit(e.ctx, some)
			if e.erased += n; err != nil {
				return err
			}
		}
		ts = nil
		// The constant alone, as the size of the op, gives the op a commit of its own. So each
		// delivery is in a queue or claimed when the op looks for the claimed ones.
		err := e.writer.do(e.ctx, func(g *group) error {
			for _, s := range g.moved {
				ts = append(ts, leaving(s.where, s.point))
			}
			g.moved, claimed = nil, g.claimed()
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
		from := int64(r.off) + recordHeader
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
	if err := e.writer.do(e.ctx, func(g *group) error { g.add(&commit); return nil }, recordHeader, false); err != nil || commit.place.seg == g.number {
		return err
	}
	return g.file.Sync()
}
