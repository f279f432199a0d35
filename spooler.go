package analytics

import (
	"errors"
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

// A spooler is what a Client has with SpoolDir: batches whose text is in
// segments of a spool. One that collects messages or is under way is in memory
// as well, by a mapping where the system can. One that has to wait for longer is
// on disk alone, among kept: because it did not get through, because it was
// there at the start, or because memory is short.
//
// A batch that does not get through although it was retried shows that the
// collector is down. From then on one batch at a time is sent, once, with
// a pause after each; when one is taken, the width grows again by one batch
// with each that follows.
//
// The Client's mutex guards it, dir and report aside.
type spooler struct {
	dir    *spool.Dir
	report *reporter
	sync   bool // each call waits for the disk

	kept    []*batch  // on disk, oldest first
	moving  *batch    // on its way from Client.full to kept
	width   int       // how many batches may be under way
	down    bool      // the latest one did not get through
	flying  int       // the footprints of Client.flying
	tending bool      // tend has a goroutine
	broken  time.Time // until when no segment is to be used
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
	}
	if !config.SyncEach {
		config.SyncInterval = conf.spoolSync
	}
	dir, segments, err := spool.Open(conf.spoolDir, config)
	if err != nil {
		return nil, &ConfigError{"SpoolDir", "cannot be used", err}
	}
	if err := dir.Prepare(1); err != nil && err != spool.ErrFull {
		dir.Close()
		return nil, &ConfigError{"SpoolDir", "cannot be used", err}
	}
	s := &spooler{dir: dir, report: report, sync: config.SyncEach, width: maxUploads}
	found := 0
	for _, segment := range segments {
		b := &batch{seg: segment, id: segment.ID(), opened: segment.Opened(), n: segment.Len(), onDisk: true}
		b.refs.Store(1)
		s.kept = append(s.kept, b)
		found += b.n
	}
	if found > 0 {
		report.log.Info("analytics: messages of an earlier process found in SpoolDir", "messages", found)
	}
	return s, nil
}

// close lets the folder go. Nothing may be under way.
func (s *spooler) close() {
	if err := s.dir.Close(); err != nil {
		s.report.spool(err)
	}
}

// newBatch returns an empty batch, in memory alone while the disk fails; nil if
// there is no segment for it. low says that there are not enough for the next
// ones. The Client's mutex is held.
func (s *spooler) newBatch(now time.Time) (b *batch, low bool) {
	if now.Before(s.broken) {
		return newBatch(now), false
	}
	b = &batch{opened: now, size: len(batchHead)}
	uuid.Append(b.id[:0])
	b.refs.Store(1)
	var left int
	if b.seg, left = s.dir.Take(b.id, now); b.seg == nil {
		b = nil
	}
	return b, left < spareSegments
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

// fail makes the next batches live in memory alone for a while. The Client's
// mutex is held.
func (s *spooler) fail() { s.broken = time.Now().Add(diskPause) }

// waiting returns the batches that are on disk or on their way there. The
// Client's mutex is held.
func (s *spooler) waiting() []*batch {
	if s.moving == nil {
		return s.kept
	}
	return append(slices.Clip(s.kept), s.moving)
}

// prepare makes a segment for the next messages, or finds that the disk does
// not let it. The error is ErrQueueFull.
func (c *Client) prepare() error {
	s := c.spooler
	err := s.dir.Prepare(1)
	if err == nil || err == spool.ErrClosed {
		return nil
	}
	c.lock()
	defer c.unlock()
	if err == spool.ErrFull {
		return ErrQueueFull
	}
	s.fail()
	s.report.spool(err)
	return nil
}

// commit returns when the first n messages of b are as safe as SpoolSync asks.
// Should the disk fail in this, they are still as safe as without SpoolSync.
func (c *Client) commit(b *batch, n int) {
	if c.spooler == nil || !c.spooler.sync || b.seg == nil {
		return
	}
	if err := b.seg.Commit(n); err != nil {
		c.report.spool(err)
	}
}

// tend sees to it that segments are ready, of which there may be too few, and
// that there is room in memory: in the background, for calls must not wait for
// files. c.mu is held and the client is not closed.
func (c *Client) tend(low bool) {
	if (low || c.crowded()) && !c.spooler.tending {
		c.spooler.tending = true
		c.uploads.Go(c.tidy)
	}
}

// crowded reports whether waiting batches take more than half the memory that
// is theirs. c.mu is held.
func (c *Client) crowded() bool { return c.waitingMemory() > c.conf.maxQueue/2 }

// tidy makes segments unless they are ready, and puts waiting batches on disk
// while memory is crowded.
func (c *Client) tidy() {
	s := c.spooler
	err := s.dir.Prepare(spareSegments)
	if err != nil && err != spool.ErrFull && err != spool.ErrClosed {
		s.report.spool(err)
	}
	c.lock()
	defer c.unlock()
	for c.crowded() {
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

// rest accounts for b being on disk alone from now on. c.mu is held.
func (c *Client) rest(b *batch) {
	c.count.pending -= b.n
	c.count.spooled += b.n
	b.onDisk = true
	b.ends, b.packed = nil, nil
}

// load brings a batch under way back into memory. It reports whether there is
// anything to send; if not, b has its fate.
func (c *Client) load(b *batch) bool {
	lost, err := b.seg.Load()
	c.lock()
	c.count.spooled -= b.n
	if err != nil {
		c.count.pending += b.n // until it is settled
		b.fate = fate{reason: ReasonDamaged, err: err, attempts: b.tries}
		c.unlock()
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

// save reports whether b can be kept on disk. A batch from a time when the disk
// failed is copied there, if that is over.
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

// keep puts a batch that did not get through back on disk, and returns the next
// one for its uploader.
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
		for _, other := range append(slices.Concat(s.waiting(), c.full), c.open) {
			if other != nil && other.seg != nil {
				other.answer(b.fate, true)
			}
		}
		c.hold(maxBackoff/6 + rand.N(maxBackoff/6))
	}
	return c.another(u)
}

// isDown reports whether the collector is known not to take batches, so that
// one attempt is enough.
func (c *Client) isDown() bool {
	if c.spooler == nil {
		return false
	}
	c.lock()
	defer c.unlock()
	return c.spooler.down
}

// widen lets one more batch be under way than before one was taken. c.mu is held.
func (c *Client) widen() {
	s := c.spooler
	s.down = false
	if s.width < maxUploads {
		s.width++
		c.dispatch()
	}
}
