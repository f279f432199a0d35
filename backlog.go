package analytics

import (
	"slices"
	"time"

	"github.com/hookferry/analytics/internal/spool"
)

// With SpoolDir the text of a batch is in a file, which is a segment of the spool. While
// the batch collects messages or is under way, the text is in memory, too, through a
// memory-mapped file where the system supports that. A batch is on disk alone, in
// queue.spooled, if it could not be delivered, if an earlier process left it, or if memory
// is short.

// checkPause is how often the client looks whether SpoolDir still exists, while it has messages
// there.
const checkPause = time.Second

// checkOften checks SpoolDir. The timer checker calls it.
func (q *queue) checkOften() {
	q.lock()
	if q.closed { // Shutdown checks SpoolDir
		q.unlock()
		return
	}
	q.uploads.Add(1)
	q.unlock()
	defer q.uploads.Done()
	q.checkSpool(false)
	q.lock()
	defer q.unlock()
	q.watching = len(q.inFiles())+len(q.spooled) > 0 && !q.closed
	if q.watching {
		q.checker.Reset(checkPause)
	}
}

// inFiles returns the batches in memory that have a file, without the batch that is moving to the
// disk. q.mu must be held.
func (q *queue) inFiles() []*batch {
	all := slices.Concat(q.uploading, q.waiting)
	if q.collecting != nil {
		all = append(all, q.collecting)
	}
	return slices.DeleteFunc(all, func(b *batch) bool { return !b.hasFile() || b.onDisk })
}

// checkSpool looks whether somebody has deleted SpoolDir. If so, it makes the folder again, writes
// the messages in memory to new files, and drops the messages that were on disk alone. With all,
// it also looks for single deleted files of messages on disk alone.
func (q *queue) checkSpool(all bool) {
	q.lock()
	dir := q.spooler.dir
	q.unlock()
	if dir == nil {
		return
	}
	again, err := dir.Check()
	if err == spool.ErrClosed {
		return
	}
	if err != nil {
		q.report.spool(err)
	}
	q.lock()
	if err != nil {
		q.spooler.fail(err)
	}
	inMemory, onDisk := q.inFiles(), slices.Clone(q.spooled)
	q.unlock()
	if again || all {
		for _, b := range onDisk {
			q.dropDeleted(b)
		}
	}
	for _, b := range inMemory {
		q.keep(b)
	}
}

// keep writes b, which is in memory, to a new file if somebody has deleted its file. It reports
// whether b has a file then.
func (q *queue) keep(b *batch) bool {
	var err error
	if b.seg.Lost() {
		q.lock()
		if q.collecting == b && !q.closed { // messages may be appended to it
			q.seal()
			q.dispatch()
		}
		q.unlock()
		if err = b.seg.Restore(); err != nil {
			q.report.spool(err)
		}
	}
	q.lock()
	defer q.unlock()
	b.lost = err != nil
	return !b.lost
}

// dropDeleted drops the messages of b, which were on disk alone, if somebody has deleted their file.
func (q *queue) dropDeleted(b *batch) {
	if !b.seg.Lost() {
		return
	}
	q.lock()
	i := slices.Index(q.spooled, b)
	if i < 0 || q.released { // an uploader has it and cannot load it, or the next process has deleted it
		q.unlock()
		return
	}
	q.spooled = slices.Delete(q.spooled, i, i+1)
	q.uploading = append(q.uploading, b) // so that Flush waits for it
	q.count.Spooled -= b.n
	q.count.Pending += b.n
	b.outcome = outcome{reason: ReasonDamaged, err: spool.ErrLost, attempts: b.tries}
	q.unlock()
	q.settle(b)
	q.lock()
	defer q.unlock()
	q.endUpload(b)
	b.resolve(b.outcome, false)
	q.dispatch()
}

// commit returns when the first n messages of seg are as durable as SpoolSync demands. If
// the disk fails, commit reports the error. The messages are then only as durable as
// without SpoolSync. For a batch in memory, seg is nil, and commit does nothing.
func (q *queue) commit(seg *spool.Segment, n int) {
	if seg == nil {
		return
	}
	err := seg.Commit(n)
	if err == spool.ErrLost {
		q.checkSpool(false) // writes the messages to a new file
		err = seg.Commit(n)
	}
	if err != nil {
		q.report.spool(err)
	}
}

// allSpooled returns the batches that are on disk alone or are being moved there. q.mu must
// be held.
func (q *queue) allSpooled() []*batch {
	if q.unloading == nil {
		return q.spooled
	}
	return append(slices.Clip(q.spooled), q.unloading)
}

// maintain starts maintenance if memory is crowded, or if the argument low says that few
// spare segments are left. Maintenance runs in the background because calls must not wait
// for files. q.mu must be held, and the client must not be closed.
func (q *queue) maintain(low bool) {
	if (low || q.isCrowded()) && !q.maintaining {
		q.maintaining = true
		q.uploads.Go(q.maintenance)
	}
}

// isCrowded reports whether waiting batches should move to the disk. q.mu must be held.
func (q *queue) isCrowded() bool { return q.memory-q.uploadingMemory > q.conf.unloadAbove }

// maintenance prepares spare segments, and moves waiting batches to the disk while memory
// is crowded.
func (q *queue) maintenance() {
	q.spooler.prepare(spareSegments)
	q.lock()
	defer q.unlock()
	// cancelUploads has told the waiters of all spooled batches. So move no batch after it.
	for q.isCrowded() && q.ctx.Err() == nil {
		i := slices.IndexFunc(q.waiting, (*batch).isKept)
		if i < 0 {
			break
		}
		b := q.waiting[i]
		q.waiting = slices.Delete(q.waiting, i, i+1)
		q.unloading = b
		q.unlock()
		kept := q.keep(b)
		if kept {
			q.unload(b)
		}
		q.lock()
		q.unloading = nil
		if !kept {
			q.waiting = slices.Insert(q.waiting, 0, b)
			continue
		}
		q.memory -= b.footprint()
		q.markSpooled(b)
		q.spooled = append(q.spooled, b)
		q.tellRoom()
		q.dispatch()
	}
	q.maintaining = false
}

// unload frees the memory of a batch that is on disk.
func (q *queue) unload(b *batch) {
	if err := b.seg.Unload(); err != nil {
		q.report.spool(err)
	}
}

// remove deletes the file of a batch, if it has one.
func (q *queue) remove(b *batch) {
	if !b.hasFile() {
		return
	}
	if err := b.seg.Remove(); err != nil {
		q.report.spool(err)
	}
}

// markSpooled records that b is on disk alone. q.mu must be held.
func (q *queue) markSpooled(b *batch) {
	q.count.Pending -= b.n
	q.count.Spooled += b.n
	b.onDisk = true
	b.packed = nil
}
