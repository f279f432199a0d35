package analytics

import (
	"errors"
	"slices"

	"github.com/hookferry/analytics/internal/spool"
)

// A batch with a segment that collects messages or is under way is in memory as well,
// mapped where the system can. A batch that has to wait for longer is on disk alone, in
// Client.spooled: because it could not be delivered, because an earlier process left it,
// or because memory is short.

// allSpooled returns the batches that are on disk alone, or are being moved there.
// c.mu is held.
func (c *Client) allSpooled() []*batch {
	if c.unloading == nil {
		return c.spooled
	}
	return append(slices.Clip(c.spooled), c.unloading)
}

// maintain has maintenance run in the background, since calls must not wait for files,
// if segments are running low or memory is crowded. c.mu is held and the client is not
// closed.
func (c *Client) maintain(low bool) {
	if (low || c.isCrowded()) && !c.maintaining {
		c.maintaining = true
		c.uploads.Go(c.maintenance)
	}
}

// isCrowded reports whether batches that wait should move to the disk. c.mu is held.
func (c *Client) isCrowded() bool { return c.memory-c.uploadingMemory > c.conf.unloadAbove }

// maintenance makes spare segments, and moves waiting batches to the disk while memory
// is crowded.
func (c *Client) maintenance() {
	c.spooler.prepare(spareSegments)
	c.lock()
	defer c.unlock()
	for c.isCrowded() && c.ctx.Err() == nil { // not after cancelUploads, which resolves what is in c.spooled
		i := slices.IndexFunc(c.waiting, func(b *batch) bool { return b.seg != nil })
		if i < 0 {
			break
		}
		b := c.waiting[i]
		c.waiting = slices.Delete(c.waiting, i, i+1)
		c.unloading = b
		c.unlock()
		c.unload(b)
		c.lock()
		c.unloading = nil
		c.memory -= b.footprint()
		c.markSpooled(b)
		c.spooled = append(c.spooled, b)
		c.tellRoom()
		c.dispatch()
	}
	c.maintaining = false
}

// unload gives back the memory of a batch on disk.
func (c *Client) unload(b *batch) {
	if err := b.seg.Unload(); err != nil {
		c.report.spool(err)
	}
}

// remove deletes what of a batch is on disk.
func (c *Client) remove(b *batch) {
	if b.seg == nil {
		return
	}
	if err := b.seg.Remove(); err != nil {
		c.report.spool(err)
	}
}

// markSpooled notes that b is on disk alone from now on. c.mu is held.
func (c *Client) markSpooled(b *batch) {
	c.count.Pending -= b.n
	c.count.Spooled += b.n
	b.onDisk = true
	b.packed = nil
}

// load reads the text of a batch under way from the disk. It reports whether there
// is anything to send; if not, it has set b.outcome: damaged, or exhausted if the batch
// can be read at another time.
func (c *Client) load(b *batch) bool {
	lost, err := b.seg.Load()
	c.lock()
	c.count.Spooled -= b.n
	if err != nil {
		c.count.Pending += b.n // until it is settled
		c.unlock()
		b.outcome = outcome{reason: ReasonDamaged, err: err, attempts: b.tries}
		if damage := (*spool.DamageError)(nil); !errors.As(err, &damage) {
			b.outcome.reason = ReasonExhausted
			c.report.spool(err)
		}
		return false
	}
	b.n, b.size = b.seg.Len(), len(b.seg.Bytes())
	b.onDisk = false
	b.outcome = outcome{attempts: b.tries}
	c.count.Pending += b.n
	c.count.drop(ReasonDamaged, lost)
	c.memory += b.footprint()
	c.uploadingMemory += b.footprint()
	c.unlock()
	if lost > 0 {
		c.tell(Delivery{Count: lost, Attempts: b.tries, Reason: ReasonDamaged, Err: errDamaged})
	}
	return b.n > 0
}

var errDamaged = errors.New("analytics: the message in SpoolDir does not match its checksum")

// persist reports whether b is on disk and can stay there. A batch in memory alone,
// from a time when the disk failed, is copied to the disk if that works again.
func (c *Client) persist(b *batch) bool {
	if b.seg != nil {
		return true
	}
	seg := c.spooler.copy(b)
	if seg == nil {
		return false
	}
	c.lock()
	defer c.unlock()
	b.seg, b.buf = seg, nil
	return true
}

// putBack puts a batch that did not get through, or could not be read now, back on disk.
// It reports whether its uploader has another one.
func (c *Client) putBack(u *uploader) bool {
	b := u.batch
	c.unload(b)
	c.lock()
	defer c.unlock()
	c.endUpload(b)
	c.markSpooled(b)
	b.tries = b.outcome.attempts
	c.spooled = slices.Insert(c.spooled, 0, b)
	b.resolve(b.outcome, true)
	if b.outcome.reason == ReasonExhausted {
		c.noteDown(b.outcome)
	}
	return c.advance(u)
}
