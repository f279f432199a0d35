package analytics

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hookferry/analytics/internal/spool"
	"github.com/hookferry/analytics/internal/uuid"
)

// diskPause is how long messages go to memory alone after the disk has refused
// them, before it is tried again.
const diskPause = time.Second

// spareSegments is how many segments are kept ready for the next batches. It is
// seldom necessary to make one: those that were sent are used again.
const spareSegments = 2

// errNoSegment says that there is no segment ready for the next messages.
var errNoSegment = errors.New("analytics: no segment is ready")

// A diskError says that the open batch could not take a message, or that there is
// none, because the disk failed. The next one is in memory alone.
type diskError struct {
	err   error
	empty *spool.Segment // of the open batch, if it held no message yet; to be removed
}

func (e *diskError) Error() string { return e.err.Error() }

// report does what has to wait until the Client's mutex is free.
func (e *diskError) report(r *reporter) {
	r.spool(e.err)
	if e.empty == nil {
		return
	}
	if err := e.empty.Remove(); err != nil {
		r.spool(err)
	}
}

// A spooler is what a Client has with SpoolDir: batches whose text is in
// segments of a spool. A batch that collects messages or is under way is in memory
// as well, mapped where the system can. A batch that has to wait for longer is on
// disk alone, in kept: because it could not be delivered, because an earlier
// process left it, or because memory is short.
//
// A batch that fails in all its attempts shows that the collector is down. From
// then on one batch at a time is sent, in a single attempt, with a pause after
// each. Once one is taken, width grows again, by one with each that follows. A batch
// that cannot be read, because the process has too many open files, does the same.
//
// The Client's mutex guards all of it but dir and report.
type spooler struct {
	dir    *spool.Dir
	report *reporter
	sync   bool // each call waits for the disk
	only   bool // messages are never held in memory alone

	kept        []*batch  // on disk, oldest first
	moving      *batch    // being unloaded: no longer in Client.full, not yet in kept
	width       int       // how many batches may be under way
	down        bool      // the latest batch failed in all its attempts, or could not be read
	unreachable *fate     // of the latest attempt, if it found no collector
	flying      int       // the footprints of Client.flying
	tending     bool      // tend has a goroutine
	broken      time.Time // the disk failed: until then messages are held in memory alone
	cause       error     // why it failed
}

// openSpooler opens the folder. It fails, naming SpoolDir, if that cannot take
// a message now.
func openSpooler(conf *settings, report *reporter) (*spooler, error) {
	config := spool.Config{
		Head:        batchHead,
		MaxData:     MaxBatchSize - tailSize,
		MaxMessages: MaxBatchCalls,
		MaxBytes:    conf.spoolMax,
		SyncEach:    conf.spoolSync == SyncEachCall,
		Report:      report.spool,
		Reserve:     conf.reserve,
	}
	if !config.SyncEach {
		config.SyncInterval = conf.spoolSync
	}
	dir, segments, err := spool.Open(conf.spoolDir, config)
	if err != nil {
		return nil, &ConfigError{"SpoolDir", "cannot be used", err}
	}
	s := &spooler{dir: dir, report: report, sync: config.SyncEach, only: conf.spoolOnly, width: maxUploads}
	if err := dir.Prepare(1); err != nil && err != spool.ErrFull {
		if len(segments) == 0 {
			dir.Close()
			return nil, &ConfigError{"SpoolDir", "cannot be used", err}
		}
		// The disk may be full. To send what is there frees some of it.
		report.spool(err)
		s.fail(err)
	}
	for _, segment := range segments {
		b := &batch{seg: segment, id: segment.ID(), opened: segment.Opened(), n: segment.Len(), onDisk: true}
		b.refs.Store(1)
		s.kept = append(s.kept, b)
		report.found += b.n
	}
	return s, nil
}

// close lets the folder go. Nothing may be under way.
func (s *spooler) close() {
	if err := s.dir.Close(); err != nil {
		s.report.spool(err)
	}
}

// newBatch returns an empty batch, in memory alone while the disk fails. The error
// is errNoSegment, a *diskError or, with SpoolOnly, ErrNotSpooled with its cause. low reports whether fewer than spareSegments are
// left. The Client's mutex is held.
func (s *spooler) newBatch(now time.Time) (b *batch, low bool, err error) {
	if now.Before(s.broken) {
		if s.only {
			return nil, false, fmt.Errorf("%w: %w", ErrNotSpooled, s.cause)
		}
		return newBatch(now), false, nil
	}
	b = &batch{opened: now, size: len(batchHead)}
	uuid.Append(b.id[:0])
	b.refs.Store(1)
	var left int
	b.seg, left, err = s.dir.Take(b.id, now)
	switch {
	case err != nil:
		s.fail(err)
		err = &diskError{err: err}
	case b.seg == nil:
		err = errNoSegment
	}
	return b, left < spareSegments, err
}

// write adds a message with that checksum to a batch in a segment.
func (b *batch) write(message []byte, sum uint32) error {
	if err := b.seg.Append(message, sum); err != nil {
		return err
	}
	b.size += len(message)
	if b.n > 0 {
		b.size += len(",")
	}
	b.n++
	return nil
}

// fail makes the next batches live in memory alone for a while, because of err. The
// Client's mutex is held.
func (s *spooler) fail(err error) { s.broken, s.cause = time.Now().Add(diskPause), err }

// waiting returns the batches that are on disk alone, or are being moved there.
// The Client's mutex is held.
func (s *spooler) waiting() []*batch {
	if s.moving == nil {
		return s.kept
	}
	return append(slices.Clip(s.kept), s.moving)
}

// prepare makes a segment for the next messages. If the disk fails, they are held
// in memory alone. The error is ErrQueueFull if SpoolMax leaves no room.
func (c *Client) prepare() error {
	s := c.spooler
	switch err := s.dir.Prepare(1); err {
	case nil, spool.ErrClosed:
		return nil
	case spool.ErrFull:
		return ErrQueueFull
	default:
		s.report.spool(err)
		c.lock()
		defer c.unlock()
		s.fail(err)
		return nil
	}
}

// commit returns when the first n messages of seg are as safe as SpoolSync asks.
// Should the disk fail in this, they are still as safe as without SpoolSync. Nil
// is the segment of a batch in memory alone.
func (c *Client) commit(seg *spool.Segment, n int) {
	if seg == nil || !c.spooler.sync {
		return
	}
	if err := seg.Commit(n); err != nil {
		c.report.spool(err)
	}
}

// tend has tidy run in the background, since calls must not wait for files, if
// segments are running low or memory is crowded. c.mu is held and the client is not
// closed.
func (c *Client) tend(low bool) {
	if (low || c.crowded()) && !c.spooler.tending {
		c.spooler.tending = true
		c.uploads.Go(c.tidy)
	}
}

// crowded reports whether waiting batches take more than half of conf.maxQueue.
// c.mu is held.
func (c *Client) crowded() bool { return c.waitingMemory() > c.conf.maxQueue/2 }

// tidy makes spare segments, and moves waiting batches to the disk while memory is
// crowded.
func (c *Client) tidy() {
	s := c.spooler
	err := s.dir.Prepare(spareSegments)
	if err != nil && err != spool.ErrFull && err != spool.ErrClosed {
		s.report.spool(err)
	}
	c.lock()
	defer c.unlock()
	for c.crowded() && c.ctx.Err() == nil { // not after abandon, which answers for what is in kept
		i := slices.IndexFunc(c.full, func(b *batch) bool { return b.seg != nil })
		if i < 0 {
			break
		}
		b := c.full[i]
		c.full = slices.Delete(c.full, i, i+1)
		s.moving = b
		c.unlock()
		err := b.seg.Unload()
		if err != nil {
			s.report.spool(err)
		}
		c.lock()
		s.moving = nil
		c.memory -= b.footprint()
		c.rest(b)
		s.kept = append(s.kept, b)
		c.tellRoom()
		c.dispatch()
	}
	s.tending = false
}

// rest notes that b is on disk alone from now on. c.mu is held.
func (c *Client) rest(b *batch) {
	c.count.pending -= b.n
	c.count.spooled += b.n
	b.onDisk = true
	b.ends, b.packed = nil, nil
}

// load reads the text of a batch under way from the disk. It reports whether there
// is anything to send; if not, it has set b.fate: damaged, or exhausted if the batch
// can be read at another time.
func (c *Client) load(b *batch) bool {
	lost, err := b.seg.Load()
	c.lock()
	c.count.spooled -= b.n
	if err != nil {
		c.count.pending += b.n // until it is settled
		c.unlock()
		b.fate = fate{reason: ReasonDamaged, err: err, attempts: b.tries}
		if damage := (*spool.DamageError)(nil); !errors.As(err, &damage) {
			b.fate.reason = ReasonExhausted
			c.report.spool(err)
		}
		return false
	}
	b.n, b.size, b.ends = b.seg.Len(), len(b.seg.Bytes()), b.seg.Ends()
	b.onDisk = false
	b.fate = fate{attempts: b.tries}
	c.count.pending += b.n
	c.count.drop(ReasonDamaged, lost)
	c.memory += b.footprint()
	c.spooler.flying += b.footprint()
	c.unlock()
	if lost > 0 {
		c.tell(Delivery{Count: lost, Attempts: b.tries, Reason: ReasonDamaged, Err: errDamaged})
	}
	return b.n > 0
}

var errDamaged = errors.New("analytics: the message in SpoolDir does not match its checksum")

// save reports whether b is on disk and can be kept there. A batch in memory alone,
// from a time when the disk failed, is copied to the disk if that works again.
func (c *Client) save(b *batch) bool {
	if c.spooler == nil || b.seg != nil {
		return b.seg != nil
	}
	seg, err := c.spooler.dir.New(b.id, b.opened)
	if err != nil {
		if err != spool.ErrFull && err != spool.ErrClosed {
			c.report.spool(err)
		}
		return false
	}
	for i := range b.n {
		message := b.message(b.buf, i)
		if err := seg.Append(message, spool.Checksum(message)); err != nil {
			c.report.spool(err)
			seg.Remove()
			return false
		}
	}
	c.lock()
	defer c.unlock()
	b.seg, b.buf = seg, nil
	return true
}

// keep puts a batch that did not get through, or could not be read now, back on disk,
// and returns the next one for its uploader.
func (c *Client) keep(u *uploader, b *batch) *batch {
	if err := b.seg.Unload(); err != nil {
		c.report.spool(err)
	}
	c.lock()
	defer c.unlock()
	s := c.spooler
	c.land(b)
	c.rest(b)
	b.tries = b.fate.attempts
	s.kept = slices.Insert(s.kept, 0, b)
	b.answer(b.fate, true)
	if b.fate.reason == ReasonExhausted {
		s.width, s.down = 1, true
		c.answerSpooled(b.fate, nil)
		c.hold(maxBackoff/6 + rand.N(maxBackoff/6))
	}
	return c.another(u)
}

// reached notes whether an attempt found the collector. If not, who waits for messages
// that are in SpoolDir waits no longer: they are safe there, and the outage may take
// hours. f says what the attempt met.
func (c *Client) reached(found bool, f fate) {
	if c.spooler == nil {
		return
	}
	c.lock()
	defer c.unlock()
	c.spooler.unreachable = nil
	if !found {
		c.spooler.unreachable = &f
		c.answerSpooled(f, c.flying)
	}
}

// answerSpooled tells everybody who waits for a batch in SpoolDir that it stays there,
// because of f: for one that waits to be sent, and for those of flying. c.mu is held.
func (c *Client) answerSpooled(f fate, flying []*batch) {
	for _, b := range append(slices.Concat(flying, c.spooler.waiting(), c.full), c.open) {
		if b != nil && b.seg != nil {
			b.answer(f, true)
		}
	}
}

// isDown reports whether the collector is down, as far as is known, so that a
// single attempt tells whether it still is.
func (c *Client) isDown() bool {
	if c.spooler == nil {
		return false
	}
	c.lock()
	defer c.unlock()
	return c.spooler.down
}

// widen lets one more batch be under way, now that the collector has taken one.
// c.mu is held.
func (c *Client) widen() {
	s := c.spooler
	s.down = false
	if s.width < maxUploads {
		s.width++
		c.dispatch()
	}
}
