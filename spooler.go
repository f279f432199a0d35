package analytics

import (
	"errors"
	"fmt"
	"time"

	"github.com/hookferry/analytics/internal/spool"
	"github.com/hookferry/analytics/internal/uuid"
)

// diskPause is how long the client holds new messages in memory alone after the disk
// has failed. After that it tries the disk again.
const diskPause = time.Second

// spareSegments is how many empty segments are kept ready for the next batches. The
// client rarely has to make new segments, because it reuses the segments of delivered
// batches.
const spareSegments = 2

// errNoSegment says that no empty segment is ready for the next messages.
var errNoSegment = errors.New("analytics: no segment is ready")

// A diskError says that the disk failed when a message was added to the collecting batch,
// or when a batch was made. The next batch is in memory alone.
type diskError struct{ error }

// A spooler makes batches whose text is in files of SpoolDir. The zero spooler has no
// folder and makes batches in memory. The rest of the client treats both kinds of batches
// alike. Where it has to tell them apart, it calls hasFile.
//
// The queue's mutex guards failedUntil and cause. The other fields do not change.
type spooler struct {
	dir    *spool.Dir // nil without SpoolDir
	report *reporter
	only   bool // SpoolOnly: never make a batch in memory

	failedUntil time.Time // after a failure of the disk, batches are made in memory until then
	cause       error     // the error of that failure
}

// openSpooler opens the folder and returns the batches that an earlier process left in it,
// oldest first. If the folder holds no batches and cannot take a message now, it returns a
// *ConfigError that names SpoolDir.
func openSpooler(conf *settings, report *reporter) (spooler, []*batch, error) {
	config := conf.spool
	config.Report = report.spool
	dir, segments, err := spool.Open(conf.spoolDir, config)
	if err != nil {
		return spooler{}, nil, &ConfigError{"SpoolDir", "cannot be used", err}
	}
	s := spooler{dir: dir, report: report, only: conf.spoolOnly}
	if err := dir.Prepare(1); err != nil && err != spool.ErrFull {
		if len(segments) == 0 {
			dir.Close()
			return spooler{}, nil, &ConfigError{"SpoolDir", "cannot be used", err}
		}
		// Use the folder all the same. If the disk is full, sending the batches in the
		// folder frees space on it.
		report.spool(err)
		s.fail(err)
	}
	var spooled []*batch
	for _, segment := range segments {
		b := &batch{seg: segment, id: segment.ID(), opened: segment.Opened(), n: segment.Len(), onDisk: true}
		b.refs.Store(1)
		spooled = append(spooled, b)
		report.found += b.n
	}
	return s, spooled, nil
}

// close releases the folder. No batch may be under way.
func (s *spooler) close() {
	if s.dir == nil {
		return
	}
	if err := s.dir.Close(); err != nil {
		s.report.spool(err)
	}
}

// checksum returns the checksum of a message for batch.append, or 0 without SpoolDir.
func (s *spooler) checksum(message []byte) uint32 {
	if s.dir == nil {
		return 0
	}
	return spool.Checksum(message)
}

// newBatch returns an empty batch. For diskPause after a failure of the disk, the batch is
// in memory. The result low reports whether fewer than spareSegments spare segments are
// left. The error is errNoSegment, a diskError or, with SpoolOnly, one that wraps
// ErrNotSpooled and its cause. The queue's mutex must be held.
func (s *spooler) newBatch(now time.Time) (b *batch, low bool, err error) {
	if s.dir == nil {
		return newBatch(now), false, nil
	}
	if now.Before(s.failedUntil) {
		if s.only {
			return nil, false, fmt.Errorf("%w: %w", ErrNotSpooled, s.cause)
		}
		b = newBatch(now)
		b.unspooled = true
		return b, false, nil
	}
	b = &batch{opened: now, size: len(batchHead)}
	uuid.Append(b.id[:0])
	b.refs.Store(1)
	var left int
	b.seg, left, err = s.dir.Take(b.id, now)
	switch {
	case err != nil:
		s.fail(err)
		err = diskError{err}
	case b.seg == nil:
		err = errNoSegment
	}
	return b, left < spareSegments, err
}

// fail records the disk error err: for diskPause, new batches live in memory alone. The
// queue's mutex must be held.
func (s *spooler) fail(err error) { s.failedUntil, s.cause = time.Now().Add(diskPause), err }

// prepare makes segments until n are ready. It returns ErrQueueFull if SpoolMax leaves no
// room. If the disk fails, prepare reports the error and returns it.
func (s *spooler) prepare(n int) error {
	switch err := s.dir.Prepare(n); err {
	case nil, spool.ErrClosed:
		return nil
	case spool.ErrFull:
		return ErrQueueFull
	default:
		s.report.spool(err)
		return err
	}
}

// copy copies a batch in memory to a new segment. It returns nil if that fails.
func (s *spooler) copy(b *batch) *spool.Segment {
	if s.dir == nil {
		return nil
	}
	seg, err := s.dir.New(b.id, b.opened)
	if err != nil {
		if err != spool.ErrFull && err != spool.ErrClosed {
			s.report.spool(err)
		}
		return nil
	}
	for i := range b.n {
		message := b.message(b.buf, i)
		if err := seg.Append(message, spool.Checksum(message)); err != nil {
			s.report.spool(err)
			seg.Remove()
			return nil
		}
	}
	return seg
}
