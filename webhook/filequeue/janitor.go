package filequeue

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"
)

// A janitor works in the background. It writes hints, removes segments without needed records,
// merges segments with few needed records, and expires the history.
type janitor struct {
	*Store
	wake   signal          // there may be work
	ctx    context.Context // ends with the store
	cancel context.CancelFunc
	ended  chan struct{}
	// busy has a value while the janitor or an Erase works. Only the goroutine that has put the
	// value there removes segments, or moves records between segments.
	busy chan struct{}
	// leftovers are the files of segments that the store no longer needs. The janitor removes them
	// before it retires another segment. That segment may have the only record which says that a
	// leftover, or a delivery in it, is gone.
	leftovers []string
}

func newJanitor(s *Store, leftovers []string) *janitor {
	j := &janitor{Store: s, wake: make(signal, 1), busy: make(chan struct{}, 1), ended: make(chan struct{}), leftovers: leftovers}
	j.ctx, j.cancel = context.WithCancel(context.Background())
	return j
}

// again is how long the janitor waits after an error.
const again = time.Second

// run tidies until the store closes.
func (j *janitor) run() {
	defer close(j.ended)
	j.busy <- struct{}{}
	for j.ctx.Err() == nil {
		next, err := j.tidy()
		wake := j.wake
		if err != nil {
			next, wake = time.Now().Add(again), nil
		}
		j.sleep(next, wake)
	}
}

// sleep waits until a time, or without end if the time is zero. It returns early if wake has a
// value, or when the store closes. While it waits, the janitor is not busy.
func (j *janitor) sleep(until time.Time, wake signal) {
	<-j.busy
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	if until.IsZero() {
		timer.Stop()
	}
	select {
	case <-wake:
	case <-timer.C:
	case <-j.ctx.Done():
	}
	j.busy <- struct{}{}
}

// tidy does all work that is due. next is when the next work is due, or zero if that time is not
// known.
func (j *janitor) tidy() (next time.Time, err error) {
	j.index.mu.Lock()
	j.index.forgetKeys(&j.config, j.Now())
	unhinted := j.index.segs.unhinted()
	j.index.mu.Unlock()
	// The segment that was sealed last gets no hint until another segment is sealed. By then most
	// segments have no needed record any more, and so need no hint at all.
	for _, g := range unhinted[:max(len(unhinted)-1, 0)] {
		err = cmp.Or(j.writeHint(g), err) // an error stops only this step
	}
	if j.config.HistoryAge != 0 {
		var herr error
		next, herr = j.expire()
		err = cmp.Or(herr, err)
	}
	if err := j.removeLeftovers(); err != nil {
		return next, err
	}
	for j.ctx.Err() == nil {
		g := j.choose()
		if g == nil {
			break
		}
		if err := j.retire(g); err != nil {
			return next, err
		}
	}
	return next, err
}

// expire removes expired deliveries from the history, the oldest first, a page at a time. It returns
// when the next one expires, or zero.
func (j *janitor) expire() (next time.Time, err error) {
	for {
		var expired []transition
		j.index.mu.Lock()
		bytes := j.index.history.bytes
		for _, e := range j.index.history.after(firstPoint, page, nil) {
			if j.config.HistoryAge != Unlimited {
				next = e.dueAt().Add(j.config.HistoryAge)
			}
			if (next.IsZero() || next.After(j.Now())) && (j.config.HistoryBytes == Unlimited || bytes <= j.config.HistoryBytes) {
				break
			}
			expired = append(expired, leaving(kindGone, where{kind: kindDelivered}, e.point()))
			bytes -= e.bytes()
		}
		j.index.mu.Unlock()
		if len(expired) == 0 {
			return next, nil
		}
		if _, err := j.transit(j.ctx, expired); err != nil {
			return time.Time{}, err
		}
		next = time.Time{}
	}
}

// forgetKeys drops records of kindKeys, the oldest first. It drops a record whose keys are older
// than the dedup window. It also drops a record if the other records have at least DedupMax keys.
func (x *index) forgetKeys(c *Config, now time.Time) {
	for e := x.keys.first(); e != nil; e = x.keys.first() {
		if e.dueAt().Add(c.DedupWindow).After(now) && x.keys.bytes-e.bytes() < 16*int64(c.DedupMax) {
			return
		}
		x.unnote(&x.keys, e.point())
	}
}

// choose returns the next segment to retire, or nil. It prefers, in this order:
//   - a segment that a merge has copied records out of
//   - a segment without needed records
//   - the segment with the smallest share of needed bytes, if that share is less than a quarter; or
//     less than three quarters, if all segments take more than twice the needed bytes in them plus
//     the size of a segment
func (j *janitor) choose() (best *segment) {
	j.index.mu.Lock()
	defer j.index.mu.Unlock()
	segs := j.index.segs
	for _, g := range segs {
		if g.copied && g.sealed { // it must be removed before any other segment
			return g
		}
	}
	for _, n := range segs.numbers() {
		g := segs[n]
		if !g.sealed {
			continue
		}
		if g.live == 0 {
			return g
		}
		if best == nil || cmp.Or(cmp.Compare(g.live*best.end, best.live*g.end), cmp.Compare(g.end, best.end)) < 0 {
			best = g
		}
	}
	total, live := segs.bytes()
	if best != nil && (best.live < best.end/4 || best.live < best.end*3/4 && total > 2*live+j.writer.log.segmentBytes) {
		return best
	}
	return nil
}

// errBusy says that a segment cannot be retired yet: settlements of its deliveries are being
// stored.
var errBusy = errors.New("a segment is needed at the moment")

// retire moves the needed records of a segment to the active one, and removes the segment. Before
// that it stores the facts that no other segment has: the dedup keys of its puts, and which records
// of other segments are gone.
func (j *janitor) retire(g *segment) error {
	if err := j.merge(g); err != nil {
		return err
	}
	rs, err := g.records(g.end)
	if err != nil {
		return err
	}
	var refs []ref
	var keys []byte
	last := int64(0)
	j.index.mu.Lock()
	busy := g.live > 0
	since := j.Now().Add(-j.config.DedupWindow).UnixMicro()
	for i := range rs {
		r := &rs[i]
		if r.kind == kindPut && r.put != noDedup && r.put > since {
			keys = append(keys, r.key[:]...)
			last = max(last, r.put)
		}
		if r.kind == kindSegments {
			continue
		}
		for _, ref := range r.refs() {
			if ref.seg != g.number && j.index.segs[ref.seg] != nil {
				refs = append(refs, ref)
			}
		}
	}
	j.index.mu.Unlock()
	if busy {
		return errBusy
	}
	note := func(keys []byte) error {
		return j.writer.do(j.ctx, func(group *group) error { group.drop(g, refs, keys, last); return nil }, recordSize(len(keys)+8*len(refs)), false)
	}
	if err = note(keys); full(err) && len(keys) > 0 {
		err = note(nil) // to store a repeated put twice is better than a disk that stays full
	}
	if err != nil {
		return err
	}
	g.unpin()
	j.leftovers = append(j.leftovers, g.name())
	if err := j.removeLeftovers(); err != nil {
		j.config.Logger.Warn("filequeue: could not remove a segment that is no longer needed; the store tries again every second, and its disk space is not free until then; check the disk", "segment", g.name(), "error", err)
		return err
	}
	return nil
}

// drop removes a segment from the index, and from the list of needed segments. The segment was the
// only one that had refs and keys, so drop stores them again.
func (g *group) drop(seg *segment, refs []ref, keys []byte, last int64) {
	g.remember(keys, last)
	g.gone(kindGone, refs)
	segments := g.segs.record(seg.number)
	g.add(&segments)
	g.then(func(*segment) { delete(g.segs, seg.number) })
}

// remember stores keys of the dedup window, 16 bytes each, in records of kindKeys. last is the time
// of the latest put, in microseconds.
func (g *group) remember(keys []byte, last int64) {
	const most = 16 << 12 // bytes in one record
	for chunk := range slices.Chunk(keys, most) {
		r := tagged(kindKeys, chunk)
		r.due, r.size = last, uint32(len(chunk))
		g.add(&r)
		g.then(func(seg *segment) { g.note(&g.keys, entryOf(&r, seg.number)) })
	}
}

// removeLeftovers removes the leftovers. Once it returns nil, the files stay removed, even after a
// loss of power.
func (j *janitor) removeLeftovers() error {
	if len(j.leftovers) == 0 {
		return nil
	}
	for _, name := range j.leftovers {
		if err := j.disk.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := j.disk.SyncNames(); err != nil {
		return err
	}
	j.leftovers = nil
	return nil
}
