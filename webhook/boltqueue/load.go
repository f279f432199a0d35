package boltqueue

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
	"github.com/hookferry/analytics/webhook/storekit"
)

// load reads what is to be in memory of a file that was just opened: the
// blocks, which are no more than fitted into memory before, the first row of
// each lane, the keys of what was put, and what the journal says.
func (q *Queue) load(db *bolt.DB, c chain) error {
	r := q.newReplay(c)
	view := func(fn func(*bolt.Tx, *replay) error) error {
		return protect(q.path, func() error { return db.View(func(tx *bolt.Tx) error { return fn(tx, r) }) })
	}
	// The two have nothing in common, and take long where there is much.
	seen := make(chan error, 1)
	go func() { seen <- view(q.loadSeen) }()
	err := view(q.loadTable)
	return cmp.Or(err, <-seen)
}

func (q *Queue) loadTable(tx *bolt.Tx, r *replay) error {
	now := time.Now().UnixMicro()
	if err := q.loadLanes(tx, r, now); err != nil {
		return err
	}
	if err := q.loadBlocks(tx, r, now); err != nil {
		return err
	}
	return r.finish(now)
}

func (q *Queue) loadSeen(tx *bolt.Tx, r *replay) error {
	const size = len(storekit.Key{})
	b, left := tx.Bucket(bucketSeen), 0
	for _, p := range r.players {
		for _, s := range p.keys {
			left += len(s.keys)
		}
	}
	err := b.ForEach(func(k, v []byte) error {
		if len(k) != 8 || len(v) < 8 || len(v)%size != 8 {
			return fmt.Errorf("%w: of %d bytes in %q", errRow, len(v), bucketSeen)
		}
		left += len(v) / size
		return nil
	})
	if err != nil {
		return err
	}
	err = b.ForEach(func(k, v []byte) error {
		at := time.UnixMicro(int64(binary.BigEndian.Uint64(v)))
		for keys := v[8:]; len(keys) > 0; keys = keys[size:] {
			q.seen.Restore(storekit.Key(keys[:size]), at, left)
			left--
		}
		q.turned(binary.BigEndian.Uint64(k))
		return nil
	})
	if err != nil {
		return err
	}
	for _, p := range r.players {
		for _, s := range p.keys {
			for _, k := range s.keys {
				q.seen.Restore(k, s.at, left)
				left--
			}
		}
	}
	return nil
}

func (q *Queue) loadLanes(tx *bolt.Tx, r *replay, now int64) (err error) {
	if q.segment.number, err = nextSegment(tx); err != nil {
		return err
	}
	var named []*lanes.Lane
	err = tx.Bucket(bucketLanes).ForEach(func(name, v []byte) error {
		if len(v) != 4 {
			return fmt.Errorf("%w: of %d bytes in %q", errRow, len(v), bucketLanes)
		}
		l := q.table.Lane(string(name))
		h := homeOf(l)
		h.number = binary.BigEndian.Uint32(v)
		r.homes[h.number] = h
		named = append(named, l)
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(named, func(a, b *lanes.Lane) int { return cmp.Compare(homeOf(a).number, homeOf(b).number) })
	if err := q.loadSpans(tx, named); err != nil {
		return err
	}
	skip, skipped := q.skip(), make(map[uint32]bool)
	for _, p := range r.players {
		for key := range p.gone {
			_, lane, _ := readWaitingKey([]byte(key))
			if h := r.homes[lane]; h != nil {
				h.away--
				skipped[lane] = true
			}
		}
	}
	c := tx.Bucket(bucketWaiting).Cursor()
	for _, l := range named {
		h := homeOf(l)
		var empty uint32
		if h.spans, empty = sharpen(h.spans, c, h.number, skip); empty != 0 && !skipped[h.number] {
			return fmt.Errorf("%w: segment %d has no row of lane %d", errRow, empty, h.number)
		}
		l.Beyond = h.beyond()
		q.table.Refresh(l, now)
	}
	return nil
}

// A sum is what the directories come to for a lane. There are many parts, of many lanes
// in turn: it takes less memory, in one place, than what it is added to.
type sum struct {
	number uint32
	rough  uint32      // the span for the window of the latest segments
	first  lanes.Order // if there is one
	near   lanes.Order // what comes before this has a span of its own
	away   int
}

// loadSpans reads the directories into the homes of lanes, which are sorted by number.
func (q *Queue) loadSpans(tx *bolt.Tx, named []*lanes.Lane) error {
	sums := make([]sum, len(named))
	for i, l := range named {
		sums[i] = sum{number: homeOf(l).number, near: lanes.Last}
	}
	window := uint32(0)
	endWindow := func() {
		for i := range sums {
			if s := &sums[i]; s.rough != 0 {
				homeOf(named[i]).place(span{window, s.rough, s.first})
				s.rough = 0
			}
		}
	}
	var d directory
	err := tx.Bucket(bucketSegments).ForEach(func(k, v []byte) error {
		if err := unseal(v, &d); err != nil || len(k) != 4 {
			return fmt.Errorf("%w: segment %x", errRow, k)
		}
		segment := binary.BigEndian.Uint32(k)
		if now := segment / windowSize * windowSize; now != window {
			endWindow()
			window = now
		}
		i := 0
		for _, p := range d {
			for i < len(sums) && sums[i].number < p.lane {
				i++
			}
			if i == len(sums) || sums[i].number != p.lane {
				return fmt.Errorf("%w: segment %x has rows of lane %d, which has no name", errRow, k, p.lane)
			}
			s, one := &sums[i], roughSpan(segment, p.first)
			s.away += int(p.rows)
			switch {
			case p.first.Before(s.near):
				h := homeOf(named[i])
				h.place(one)
				h.fold(q.segment.number)
				if len(h.spans) >= nearSpans {
					s.near = h.spans[nearSpans-1].first
				}
			case s.rough == 0:
				s.rough, s.first = one.rough, one.first
			default:
				s.rough |= one.rough
				s.first = minOrder(s.first, one.first)
			}
		}
		return nil
	})
	endWindow()
	for i, l := range named {
		homeOf(l).away += sums[i].away
	}
	return err
}

// Lease implements webhook.Queue. Room is called with the queue locked; again after each
// wait for a checkpoint, when nothing else was to be had, as by a new call.
func (q *Queue) Lease(ctx context.Context, req webhook.LeaseRequest, dst []webhook.Delivery) ([]webhook.Delivery, time.Time, error) {
	if err := q.enter(ctx); err != nil {
		return dst, time.Time{}, err
	}
	defer q.calls.Done()
	if req.Max < 1 {
		return dst, time.Time{}, errors.New("boltqueue: lease of less than one delivery")
	}
	select {
	case q.leasing <- struct{}{}:
		defer func() { <-q.leasing }()
	case <-ctx.Done():
		return dst, time.Time{}, ctx.Err()
	}
	take := &lanes.Take{Max: req.Max, Until: req.Until.UnixMicro(), Room: req.Room, Out: dst}
	next, err := q.lease(ctx, take)
	if err != nil && len(take.Out) == len(dst) {
		return dst, time.Time{}, err
	}
	return take.Out, next, nil
}

// lease hands out what take asks for, and brings into memory what it needs for
// that, without the lock.
func (q *Queue) lease(ctx context.Context, take *lanes.Take) (next time.Time, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now().UnixMicro()
	had := len(take.Out)
	q.table.Begin(take, now)
	defer q.table.End()
	skipped := false
	for {
		for !q.table.Serve(take, now) {
			loads := make([]load, 0, len(take.Wants))
			for _, l := range take.Wants {
				if homeOf(l).moving {
					// A checkpoint is about to write what comes next.
					q.table.Skip(l)
					skipped = true
					continue
				}
				loads = append(loads, q.newLoad(l, take.Want(l)))
			}
			if err = q.bring(loads, now); err != nil {
				// It is still due, and the caller may try again at any time.
				return time.UnixMicro(now).UTC(), err
			}
		}
		if !skipped {
			return q.table.Next(now), nil
		}
		if len(take.Out) > had {
			return time.UnixMicro(now).UTC(), nil
		}
		if q.file == nil {
			return time.UnixMicro(now).UTC(), q.failure
		}
		// Others do not wait for a lane that is being moved.
		if err := q.awaitLanding(ctx, q.table.Next(now)); err != nil {
			return time.Time{}, err
		}
		q.table.End()
		now = time.Now().UnixMicro() // others may be due by now
		q.table.Begin(take, now)
		skipped = false
	}
}

// awaitLanding waits until a transaction has ended, or there may be more to hand out:
// something was put or settled, or is due at next. The queue is locked, but not meanwhile.
func (q *Queue) awaitLanding(ctx context.Context, next time.Time) error {
	wake := func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.landed.Broadcast()
	}
	defer context.AfterFunc(ctx, wake)()
	if !next.IsZero() {
		defer time.AfterFunc(time.Until(next), wake).Stop()
	}
	q.awaited = true
	q.landed.Wait()
	q.awaited = false
	return ctx.Err()
}

// A load is a part of a lane to be read.
type load struct {
	lane   *lanes.Lane
	number uint32
	max    int         // rows that are wanted
	ahead  int64       // bytes that may be read beyond these
	spans  []span      // the first of the lane's; what is left of them
	taken  int         // how many they were
	limit  lanes.Order // where the others begin
	skip   skip

	items []*lanes.Item
	sizes []int
	last  lanes.Order // rows up to here were read
	bad   [][]byte    // keys of rows that cannot be read
}

// maxSpans is how many spans are read at most in one go.
const maxSpans = 4

// newLoad returns what is to be read of l next, of which so many rows are wanted. The
// queue is locked.
func (q *Queue) newLoad(l *lanes.Lane, want int) load {
	h := homeOf(l)
	n := min(len(h.spans), maxSpans)
	for n < len(h.spans) && h.spans[n].rough != 0 {
		n++ // so that the one the lane goes on with is not
	}
	ld := load{lane: l, number: h.number, max: want, ahead: q.ahead(l), taken: n, limit: lanes.Last, skip: q.skip(), last: h.frontier}
	ld.spans = append(make([]span, 0, n), h.spans[:n]...)
	if n < len(h.spans) {
		ld.limit = h.spans[n].first
	}
	return ld
}

// readAhead is how much of a lane is read at most in one go beyond what is
// wanted.
const readAhead = 64 << 10

// ahead returns how many bytes of l may be read before they are wanted.
func (q *Queue) ahead(l *lanes.Lane) int64 {
	free := q.config.CacheBytes - q.cached
	return max(0, min(readAhead, free/4-homeOf(l).bytes))
}

// bring reads loads. The queue is locked, but not while it reads.
func (q *Queue) bring(loads []load, now int64) error {
	if len(loads) == 0 {
		return nil
	}
	tx, err := q.snapshot()
	if err != nil {
		return err
	}
	id := tx.ID()
	q.mu.Unlock()
	err = protect(q.path, func() error {
		defer tx.Rollback()
		c := tx.Bucket(bucketWaiting).Cursor()
		for i := range loads {
			loads[i].read(c, now)
		}
		return nil
	})
	q.mu.Lock()
	if err != nil {
		return err
	}
	q.install(loads, id, now)
	return nil
}

// install puts into memory what was read of the state after transaction id. The
// queue is locked.
func (q *Queue) install(loads []load, id int, now int64) {
	for i := range loads {
		ld := &loads[i]
		h := homeOf(ld.lane)
		if h.arrived > id || h.number != ld.number {
			continue // a row may have come that was not read; again
		}
		h.spans = slices.Delete(h.spans, 0, ld.taken)
		for _, s := range ld.spans {
			h.place(s)
		}
		h.away -= len(ld.items)
		h.frontier = ld.last
		h.loaded += len(ld.items)
		ld.lane.Beyond = h.beyond()
		for j, it := range ld.items {
			it.Destination = ld.lane.Name
			q.keep(ld.lane, it, ld.sizes[j])
		}
		q.table.Refresh(ld.lane, now)
		if len(ld.bad) > 0 {
			q.errands.send(&request{done: make(chan struct{}), work: setAside(h, ld.bad)})
		}
	}
}

// keep adds an item that has a row of n bytes in waiting.
func (q *Queue) keep(l *lanes.Lane, it *lanes.Item, n int) {
	it.Size = int64(n) + itemBytes
	homeOf(l).bytes += it.Size
	q.cached += it.Size
	q.table.Add(l, it, time.Now().UnixMicro())
}

// release gives back the memory that an item counts for.
func (q *Queue) release(it *lanes.Item) {
	h := homeOf(it.Lane())
	switch it.Home.(type) {
	case *tail:
		return
	case nil:
		h.loaded--
	}
	h.bytes -= it.Size
	q.cached -= it.Size
}

// snapshot begins to read the state that memory shows. The queue is locked.
func (q *Queue) snapshot() (*bolt.Tx, error) {
	for {
		if q.file == nil {
			return nil, q.failure
		}
		tx, err := q.file.Begin(false)
		if err != nil {
			return nil, fmt.Errorf("boltqueue: reading %s: %w", q.path, err)
		}
		if tx.ID() == q.applied {
			return tx, nil
		}
		// A commit is in the file, and about to be in memory.
		tx.Rollback()
		q.landed.Wait()
	}
}

// read reads the rows, in their order, whatever span they are in.
func (ld *load) read(c *bolt.Cursor, now int64) {
	full := false
	for !full && len(ld.items) < ld.max && len(ld.spans) > 0 && ld.spans[0].first.Before(ld.limit) {
		bound := ld.limit
		if len(ld.spans) > 1 {
			bound = minOrder(bound, ld.spans[1].first)
		}
		var left bool
		if left, full = ld.readSpan(c, &ld.spans[0], bound, now); !left {
			ld.spans = ld.spans[1:]
		}
		slices.SortFunc(ld.spans, compareSpans)
		// Where the lane goes on is known exactly.
		ld.spans, _ = sharpen(ld.spans, c, ld.number, ld.skip)
	}
}

// readSpan reads the rows of s before bound, and reports whether s has others: then s
// is what is left of it. It ends before that if a row is not due, or ld has room for no
// more; then it reports full.
func (ld *load) readSpan(c *bolt.Cursor, s *span, bound lanes.Order, now int64) (left, full bool) {
	prefix := waitingPrefix(s.segment, ld.number)
	for k, v := c.Seek(orderKey(prefix, s.first)); len(k) == waitingKeyLen && bytes.HasPrefix(k, prefix); k, v = c.Next() {
		_, _, s.first = readWaitingKey(k)
		if !s.first.Before(bound) {
			return true, false
		}
		if s.first.At > now || len(ld.items) >= ld.max && ld.ahead < sizeOf(v) {
			return true, true
		}
		ld.last = s.first
		if ld.skip.has(k) {
			continue
		}
		it := &lanes.Item{Order: s.first, Index: int(s.segment)}
		if err := unseal(v, &it.Delivery); err != nil {
			ld.bad = append(ld.bad, slices.Clone(k))
			continue
		}
		if len(ld.items) >= ld.max {
			ld.ahead -= sizeOf(v)
		}
		ld.items = append(ld.items, it)
		ld.sizes = append(ld.sizes, len(v))
	}
	return false, false
}

// setAside moves rows of waiting that cannot be read to where they are in
// nobody's way. They may have been read more than once before, and count until then.
func setAside(h *home, keys [][]byte) func(*edit, *request) error {
	return func(e *edit, _ *request) error {
		waiting, damaged := e.bucket(bucketWaiting), e.bucket(bucketDamaged)
		for _, k := range keys {
			v := waiting.Get(k)
			if v == nil {
				continue
			}
			if err := damaged.Put(k, slices.Clone(v)); err != nil {
				return err
			}
			if err := waiting.Delete(k); err != nil {
				return err
			}
			e.changes = append(e.changes, goneFrom(k))
			e.aside = append(e.aside, h)
			e.changed.waiting--
			e.q.config.Logger.Error("boltqueue: a delivery cannot be read and is set aside", "file", e.q.path, "row", fmt.Sprintf("%x", k))
		}
		return nil
	}
}
