package analytics

import "slices"

// With SpoolDir the text of a batch is in a file, which is a segment of the spool. While
// the batch collects messages or is under way, the text is in memory, too, through a
// memory-mapped file where the system supports that. A batch is on disk alone, in
// queue.spooled, if it could not be delivered, if an earlier process left it, or if memory
// is short.

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
		i := slices.IndexFunc(q.waiting, (*batch).hasFile)
		if i < 0 {
			break
		}
		b := q.waiting[i]
		q.waiting = slices.Delete(q.waiting, i, i+1)
		q.unloading = b
		q.unlock()
		q.unload(b)
		q.lock()
		q.unloading = nil
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
