package filequeue

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"slices"
	"time"
)

// A janitor gives the disk's space back, in the background: it writes the hints of sealed
// segments, removes segments in which nothing is needed, merges those with little, and
// expires the history.
type janitor struct {
	*Store
	wake   signal          // there may be work
	ctx    context.Context // ends with the store
	cancel context.CancelFunc
	ended  chan struct{}
	// leftovers are files that are to be removed. While one is there, no segment is removed or
	// merged: it may have the record that says so, or say that deliveries in it are gone.
	leftovers []string
}

func newJanitor(s *Store, leftovers []string) *janitor {
	j := &janitor{Store: s, wake: make(signal, 1), ended: make(chan struct{}), leftovers: leftovers}
	j.ctx, j.cancel = context.WithCancel(context.Background())
	return j
}

func (j *janitor) close() {
	j.cancel()
	<-j.ended
}

// again is when the janitor tries what failed once more.
const again = time.Second

// run works until close.
func (j *janitor) run() {
	defer close(j.ended)
	for j.ctx.Err() == nil {
		next, err := j.tidy(j.ctx)
		wake := j.wake
		if err != nil {
			next, wake = time.Now().Add(again), nil
		}
		timer := time.NewTimer(time.Until(next))
		if next.IsZero() {
			timer.Stop()
		}
		select {
		case <-wake:
		case <-timer.C:
		case <-j.ctx.Done():
		}
		timer.Stop()
	}
}

// tidy does what there is to do, and returns when there will be more, zero if that is not known.
func (j *janitor) tidy(ctx context.Context) (next time.Time, err error) {
	next = j.requeue()
	j.index.mu.Lock()
	var unhinted []*segment
	for _, g := range j.index.segs {
		if g.sealed && g.hint != nil && g.live > 0 {
			unhinted = append(unhinted, g)
		}
	}
	j.index.forgetKeys()
	j.index.mu.Unlock()
	for _, g := range unhinted {
		if herr := j.hint(g); herr != nil {
			err = herr // the rest may work
		}
	}
	if j.config.HistoryAge != 0 {
		at, herr := j.expire(ctx)
		if next.IsZero() || !at.IsZero() && at.Before(next) {
			next = at
		}
		if herr != nil {
			err = herr
		}
	}
	if err := j.removeLeftovers(); err != nil {
		return next, err
	}
	for ctx.Err() == nil {
		var gerr error
		if g := j.unneeded(); g != nil {
			gerr = j.drop(ctx, g)
		} else if g := j.wasteful(); g != nil {
			gerr = j.merge(ctx, g)
		} else {
			break
		}
		if gerr != nil {
			return next, gerr
		}
	}
	return next, err
}

// requeue ends the claims that were postponed long enough. It returns when the next ones will have
// been, zero if there are none.
func (j *janitor) requeue() time.Time {
	j.index.mu.Lock()
	defer j.index.mu.Unlock()
	x := j.index
	now := time.Now()
	for len(x.unread) > 0 && !now.Before(x.unread[0].at) {
		c := x.unread[0].claim
		x.unread = x.unread[1:]
		x.claims.end(c)
		c.lane.queue(c.retry).push(c.entry)
		x.tell(c.lane)
		j.changed.give()
	}
	if len(x.unread) == 0 {
		return time.Time{}
	}
	return x.unread[0].at
}

// forgetKeys forgets the records of keys that the dedup window does not have any more.
func (x *index) forgetKeys() {
	x.keys = slices.DeleteFunc(x.keys, func(k remembered) bool {
		if x.seen.Turns() < k.turn+2 {
			return false
		}
		x.segs.count(&k.entry, -1)
		return true
	})
}

// hint writes the hint file of a segment to which nothing is written any more.
func (j *janitor) hint(g *segment) error {
	if g == nil || g.hint == nil {
		return nil
	}
	if err := writeHint(j.disk, g.number, g.hint.finish(g.salt, g.end)); err != nil {
		return err
	}
	j.index.mu.Lock()
	g.hint = nil
	j.index.mu.Unlock()
	return nil
}

// expire removes what the history may not keep any more.
func (j *janitor) expire(ctx context.Context) (next time.Time, err error) {
	for {
		j.index.mu.Lock()
		points, next := j.index.expired(&j.config, time.Now())
		j.index.mu.Unlock()
		if len(points) == 0 {
			return next, nil
		}
		var n int
		if err := j.writer.do(ctx, func(g *group) error { g.forget(kindGone, points, &n, &g.history); return nil }, recordHeader+16*page, false); err != nil {
			return next, err
		}
	}
}

// unneeded returns a segment that may be removed, nil if there is none.
func (j *janitor) unneeded() *segment {
	j.index.mu.Lock()
	defer j.index.mu.Unlock()
	if j.index.segs.sealed() { // nothing was stored since Open, and for this alone nothing is
		return nil
	}
	for _, n := range j.index.segs.numbers() {
		if g := j.index.segs[n]; !j.index.segs.needed(g) {
			return g
		}
	}
	return nil
}

// wasteful returns the segment to be merged next, nil if there is none. That is one with little that is
// needed, or one of many small ones. With that the files take at most about twice what is needed.
func (j *janitor) wasteful() *segment {
	j.index.mu.Lock()
	defer j.index.mu.Unlock()
	if j.index.segs.sealed() {
		return nil
	}
	var best *segment
	small := 0
	var sources []uint32
	total, live := j.index.segs.bytes()
	for _, g := range j.index.segs {
		for n := range g.sources {
			sources = append(sources, n)
		}
		if !g.sealed || g.live == 0 {
			continue
		}
		if g.end < j.writer.log.segmentBytes/4 {
			small++
		}
		if best == nil || cmp.Or(cmp.Compare(g.live*best.end, best.live*g.end), cmp.Compare(g.end, best.end)) < 0 {
			best = g
		}
	}
	for _, n := range sources { // was begun, and is in others' way
		if g := j.index.segs[n]; g != nil && g.sealed && g.live > 0 {
			return g
		}
	}
	const fewSmall = 8
	if best != nil && small > fewSmall {
		for _, g := range j.index.segs {
			if g.sealed && g.live > 0 && g.end < best.end {
				best = g
			}
		}
		return best
	}
	if best != nil && (best.live < best.end/4 || best.live < best.end*3/4 && total > 2*live+2*j.writer.log.segmentBytes) {
		return best
	}
	return nil
}

// drop removes a segment in which nothing is needed.
func (j *janitor) drop(ctx context.Context, g *segment) error {
	sums, err := j.index.summaries(j.disk, g)
	if err != nil {
		return err
	}
	var refs []ref
	var keys []byte
	last := int64(0)
	j.index.mu.Lock()
	remembered := j.index.seen.Turns() < g.turn+2
	for i := range sums {
		s := &sums[i]
		if s.kind == kindPut && !s.damaged && s.at != noDedup && remembered {
			keys = append(keys, s.key[:]...)
			last = max(last, s.at)
		}
		if s.kind == kindGone || s.kind == kindLost { // a kindLost itself is moved by merge
			for _, r := range s.refs {
				if r.seg != g.number && r.seq != 0 && j.index.segs[r.seg] != nil {
					refs = append(refs, r)
				}
			}
		}
	}
	j.index.mu.Unlock()
	note := func(keys []byte) error {
		return j.writer.do(ctx, func(group *group) error { group.drop(g, refs, keys, last); return nil }, recordSize(len(keys)+8*len(refs)), false)
	}
	if err = note(keys); full(err) && len(keys) > 0 {
		err = note(nil) // rather forget what was put before than stay full
	}
	if err != nil {
		return err
	}
	g.unpin()
	j.leftovers = append(j.leftovers, hintName(g.number), segmentName(g.number))
	if err := j.removeLeftovers(); err != nil {
		j.config.Logger.Warn("filequeue: a segment that is not needed could not be removed; the disk's space comes back once it can be", "segment", segmentName(g.number), "error", err)
		return err
	}
	j.writer.log.roomier.Store(true)
	return nil
}

// removeLeftovers removes the leftovers. It returns once they would not come back after a loss
// of power.
func (j *janitor) removeLeftovers() error {
	if len(j.leftovers) == 0 {
		return nil
	}
	for _, name := range j.leftovers {
		if err := j.disk.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) { // it may have no hint
			return err
		}
	}
	if err := j.disk.SyncNames(); err != nil {
		return err
	}
	j.leftovers = nil
	return nil
}

// drop notes that a segment is about to be removed, and keeps what is needed of it: keys of the
// dedup window, and that records of other segments are gone.
func (g *group) drop(seg *segment, refs []ref, keys []byte, last int64) {
	g.remember(keys, last, seg.turn)
	g.list(kindGone, refs)
	dropped := newRecord(kindDropped, binary.AppendUvarint(nil, uint64(seg.number)))
	dropped.refs = []ref{{0, seg.number}}
	g.add(&dropped)
	g.then(func(*segment) { delete(g.segs, seg.number) })
}

// remember stores keys of the dedup window, 16 bytes each. last is when the latest was put, turn
// that of the window.
func (g *group) remember(keys []byte, last int64, turn uint64) {
	const each = 16 << 12 // in one record
	for chunk := range slices.Chunk(keys, each) {
		r := newRecord(kindKeys, append(binary.LittleEndian.AppendUint64(nil, uint64(last)), chunk...))
		r.at = last
		g.add(&r)
		g.then(func(seg *segment) {
			e := r.entryOf(seg.number)
			g.segs.count(&e, 1)
			g.keys = append(g.keys, remembered{e, turn})
		})
	}
}
