package filequeue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/webhook/store"
)

// A janitor works in the background. It writes hints, flushes the memtable, removes segments without needed records,
// merges segments with few needed records, and moves the history to tables, which it removes when they
// are old.
type janitor struct {
	store  *Store
	ctx    context.Context // ends with the store
	cancel context.CancelFunc
	// busy has a value while the janitor, an Erase or a Revive works. Only the goroutine that has put the
	// value there removes segments, or moves records between segments.
	busy chan struct{}
	// leftovers are the files of segments and tables that the store no longer needs. The janitor removes them
	// before it retires another segment. That segment may have the only record which says that a
	// leftover, or a delivery in it, is gone.
	leftovers []string
	// doubtful are the tables of commits that have failed: after a crash, Open may find the record that
	// lists one of them. Once a later record is durable, they are leftovers.
	doubtful []string
	failure  keepFailure
	given    surrender
}

// again is how long the janitor waits after an error.
const again = time.Second

// run tidies until the store closes.
func (j *janitor) run() {
	for j.ctx.Err() == nil {
		j.sleep(j.work())
	}
}

// work tidies once, while nothing else is busy. It returns the time at which there is work again,
// or zero, and a signal for work that comes earlier.
func (j *janitor) work() (next time.Time, wake store.Signal) {
	j.busy <- struct{}{}
	defer j.resume()
	next, err := j.tidy()
	if err != nil || !j.postponed() {
		j.ran(err)
	}
	if err != nil {
		return time.Now().Add(again), nil
	}
	return next, j.store.index.tidy
}

// hold waits until nothing else is busy. Then the janitor does nothing until resume.
func (j *janitor) hold(ctx context.Context) error {
	select {
	case j.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (j *janitor) resume() { <-j.busy }

// ran takes the result of the janitor's work. The work is one maintenance step, because all of it
// fails for the same reason.
func (j *janitor) ran(err error) {
	if j.ctx.Err() == nil { // otherwise the close of the store has ended the work
		j.store.upkeep.Ran("janitor", "the disk space of ended deliveries is not freed; check the disk", err)
	}
}

// postponed reports whether the janitor leaves a segment alone for now.
func (j *janitor) postponed() bool {
	j.store.index.mu.Lock()
	defer j.store.index.mu.Unlock()
	for _, g := range j.store.index.segs {
		if time.Now().Before(g.later) {
			return true
		}
	}
	return false
}

// sleep waits until a time, or without end if the time is zero. It returns early if wake has a
// value, or when the store closes.
func (j *janitor) sleep(until time.Time, wake store.Signal) {
	var due <-chan time.Time
	if !until.IsZero() {
		due = time.After(time.Until(until))
	}
	select {
	case <-wake:
	case <-due:
	case <-j.ctx.Done():
	}
}

// tidy does all work that is due. next is when the next work is due, or zero if that time is not
// known.
func (j *janitor) tidy() (next time.Time, err error) {
	// The segment that was sealed last gets no hint until another segment is sealed. By then most
	// segments have no needed record any more, and so need no hint at all.
	var unhinted []*segment
	j.store.index.mu.Lock()
	for _, n := range j.store.index.segs.numbers() {
		if g := j.store.index.segs[n]; g.sealed && !g.hinted && g.live > 0 {
			unhinted = append(unhinted, g)
		}
	}
	j.store.index.mu.Unlock()
	for _, g := range unhinted[:max(len(unhinted)-1, 0)] {
		if !time.Now().Before(g.later) {
			err = cmp.Or(j.leave(g, j.writeHint(g)), err) // an error stops only this step
		}
	}
	err = cmp.Or(j.flushFull(), err)
	next, herr := j.expire()
	err = cmp.Or(herr, err)
	if err := j.removeLeftovers(); err != nil {
		return next, err
	}
	for j.ctx.Err() == nil {
		g := j.choose()
		if g == nil {
			break
		}
		if err := j.leave(g, j.retire(g)); err != nil {
			return next, err
		}
	}
	return next, err
}

// flushFull flushes the memtable if it is full.
func (j *janitor) flushFull() error {
	j.store.index.mu.Lock()
	full := j.store.index.documents.bytes >= j.store.index.memtableBytes
	j.store.index.mu.Unlock()
	if !full {
		return nil
	}
	return j.flush()
}

// leave makes the janitor leave a segment alone for a while, if err is errBusy or errUnread. It
// returns any other error.
func (j *janitor) leave(g *segment, err error) error {
	pause := readAgain
	switch {
	case errors.Is(err, errBusy):
		pause = again
	case errors.Is(err, errUnread):
		j.ran(err)
	default:
		return err
	}
	g.later = time.Now().Add(pause)
	time.AfterFunc(pause, j.store.index.tidy.Set)
	return nil
}

// choose returns the next segment to retire, or nil. The first choice is a copied segment; see
// retire. Otherwise it is the one with the smallest share of needed bytes, if that is at most a
// quarter, or if all segments take more than twice the needed bytes in them plus half the size of a
// segment. The other half is for the copies of a merge, before the segment is removed.
func (j *janitor) choose() (best *segment) {
	j.store.index.mu.Lock()
	defer j.store.index.mu.Unlock()
	segs := j.store.index.segs
	total, needed := int64(0), int64(0)
	for _, n := range segs.numbers() {
		g := segs[n]
		if time.Now().Before(g.later) {
			continue
		}
		total, needed = total+g.end, needed+g.needed()
		switch {
		case !g.sealed:
		case g.copied:
			return g
		case best == nil || g.needed()*best.end < best.needed()*g.end:
			best = g
		}
	}
	if best != nil && (best.needed() <= best.end/4 || total > 2*needed+j.store.writer.segmentBytes/2) {
		return best
	}
	return nil
}

// errBusy says that a segment cannot be retired yet: one of its deliveries changed during the merge.
// errUnread says that the disk cannot read a part of a segment.
var (
	errBusy   = errors.New("a segment is needed at the moment")
	errUnread = errors.New("a segment cannot be read")
)

// retire moves the needed records of a segment to the active one, and removes the segment. Before
// that it stores the facts that no other segment has: the dedup keys of its puts, and which records
// of other segments are gone. While a copied segment exists, it may have an old copy of any record.
// So a fact about a record in a removed segment then counts for the copied one.
func (j *janitor) retire(g *segment) error {
	if err := j.merge(g); err != nil {
		return err
	}
	rs, err := g.records(g.end)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnread, err)
	}
	var refs []ref
	var keys []record
	var latest []byte // the keys of the puts
	last := int64(0)  // the time of the last put
	for i := range rs {
		switch r := &rs[i]; {
		case r.whole() && r.stored != noDedup:
			latest, last = append(latest, r.key[:]...), max(last, r.stored)
		case r.kind == kindKeys && !r.damaged:
			keys = append(keys, j.store.index.remembered(r.payload, r.due)...)
		case r.kind == kindGone && !r.damaged:
			refs = append(refs, r.refs()...)
		}
	}
	keys = append(keys, j.store.index.remembered(latest, last)...)
	j.store.index.mu.Lock()
	busy, copied := g.live > 0, uint32(0)
	for n, other := range j.store.index.segs {
		if other.copied && other != g {
			copied = max(copied, n)
		}
	}
	for i := range refs {
		if r := &refs[i]; r.seg == g.id.number || j.store.index.segs[r.seg] == nil {
			r.seg = copied
		}
	}
	refs = slices.DeleteFunc(refs, func(r ref) bool { return r.seg == 0 })
	j.store.index.mu.Unlock()
	if busy {
		return errBusy
	}
	if err = j.drop(g, refs, keys); full(err) && len(keys) > 0 {
		err = j.drop(g, refs, nil) // to store a repeated put twice is better than a disk that stays full
	}
	if err != nil {
		return err
	}
	j.release(g.file, g.end, &g.pins, g.unpin)
	j.leftovers = append(j.leftovers, g.id.name())
	return j.removeLeftovers()
}

// release unpins a segment or table that the store no longer needs, not even after a crash. Before that
// it frees the file bit by bit, unless somebody still reads it. A file system that tells its disk which
// blocks are free (the mount option discard) holds up all syncs meanwhile: for 14 ms if a file of 44 MB
// is removed at once, for 3 ms if 4 MB are freed.
func (j *janitor) release(f disk.File, size int64, pins *atomic.Int32, unpin func()) {
	step := j.store.writer.segmentBytes / 8
	for size -= step; size > 0 && pins.Load() == 1 && j.ctx.Err() == nil; size -= step {
		if f.Truncate(size) != nil || f.Sync() != nil {
			break // to remove the name frees the rest
		}
	}
	unpin()
}

// maxKeys bounds the keys in a record of kindKeys.
const maxKeys = 4096

// drop removes a segment from the index, and from the list of needed segments. Only this segment had
// refs and keys, so drop stores them again.
func (j *janitor) drop(seg *segment, refs []ref, keys []record) error {
	return j.store.writer.do(j.ctx, func(g *group) error {
		g.gone(refs, 0)
		g.remember(keys)
		segments := g.index.segs.record(seg.id.number)
		g.add(&segments)
		g.then(func() { delete(g.index.segs, seg.id.number) })
		return nil
	}, alone, false)
}

// removeLeftovers removes the leftovers. Once it returns nil, the files stay removed, even after a
// loss of power.
func (j *janitor) removeLeftovers() error {
	if len(j.leftovers) == 0 {
		return nil
	}
	for _, name := range j.leftovers {
		if err := j.store.disk.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := j.store.disk.SyncNames(); err != nil {
		return err
	}
	j.leftovers = nil
	return nil
}

// writeHint writes the hint of a sealed segment. It writes none if a part of the segment is damaged,
// so that each Open reads the segment and reports that part. The error is errUnread if the disk
// cannot read a part.
func (j *janitor) writeHint(g *segment) error {
	c, err := scan(g.file, g.id, g.end, g.end)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnread, err)
	}
	if c.intact() {
		if err = g.file.Truncate(g.end); err == nil {
			_, err = g.file.WriteAt(appendHint(nil, c.records, g.id.salt), g.end)
		}
		if err == nil {
			err = g.file.Sync()
		}
		if err != nil {
			return err
		}
	}
	j.store.index.mu.Lock()
	g.hinted = true
	j.store.index.mu.Unlock()
	return nil
}
