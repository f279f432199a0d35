package analytics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hookferry/analytics/internal/spool"
)

// A scratch is the buffer into which a call encodes its message, before it copies the
// message into the batch. Calls do not encode with the mutex held: they would wait for each
// other, and a MarshalJSON of the caller that uses the client would deadlock.
type scratch struct {
	text []byte
	err  error // the error of encoding
}

var scratches = sync.Pool{New: func() any { return &scratch{text: make([]byte, 0, 1<<10)} }}

func newScratch() *scratch {
	s := scratches.Get().(*scratch)
	s.text = s.text[:0]
	return s
}

// A queue holds the messages of a client from the call to their outcome. A batch goes from
// collecting to waiting to uploading. With SpoolDir it may also move from uploading or
// waiting to spooled, and from there back to uploading.
type queue struct {
	// These fields are set before the first message arrives and do not change later.
	conf    *settings
	report  *reporter
	ctx     context.Context // the context of all uploads
	cancel  context.CancelCauseFunc
	uploads sync.WaitGroup // counts running uploaders and background work

	// mu guards the fields below; see lock. It is never held during a callback, a log line
	// or a wait. With mu held, only spool.Dir.Take and Segment.Append do I/O.
	mu       sync.Mutex
	closed   bool
	released bool // SpoolDir is no longer this client's

	collecting *batch   // the batch that takes messages, or nil
	waiting    []*batch // batches that take no more messages and wait for an uploader, oldest first
	uploading  []*batch // batches that an uploader has
	spooled    []*batch // batches on disk alone, oldest first; those that failed come last
	unloading  *batch   // the batch that is moving from waiting to spooled, and is in neither; or nil

	memory          int           // sum of the footprints of all batches
	uploadingMemory int           // sum of the footprints of the batches in uploading
	room            chan struct{} // closed when there is more room; nil if no call waits
	count           Stats         // the running totals, without Memory; its map has only reasons that occurred
	timer           *time.Timer   // calls makeDue when the collecting batch becomes due; nil before the first call
	idle            []*uploader   // uploaders without a batch
	starts          []*uploader   // uploaders that unlock has to start
	maintaining     bool          // maintenance is running
	checker         *time.Timer   // calls checkOften while watching is set; nil before the first call
	watching        bool          // there may be messages in SpoolDir

	spooler  spooler
	outage   outage
	throttle throttle // closed during a pause that the collector has asked for
}

// lock locks q.mu, which is held for a fraction of a microsecond. If other goroutines are
// ready to run, a sync.Mutex parks this goroutine at once. It then continues only after
// they have all run, which may take milliseconds. Trying for about a microsecond first
// avoids that wait.
func (q *queue) lock() {
	for range 300 {
		if q.mu.TryLock() {
			return
		}
	}
	q.mu.Lock()
}

// unlock unlocks q.mu and then starts the uploaders that dispatch has chosen. It starts
// them after unlocking, because starting a goroutine takes longer than all work under the
// mutex.
func (q *queue) unlock() {
	if len(q.starts) == 0 {
		q.mu.Unlock()
		return
	}
	var starts [maxUploads]*uploader
	n := copy(starts[:], q.starts)
	q.starts = q.starts[:0]
	q.mu.Unlock()
	for _, u := range starts[:n] {
		go func() { // dispatch has added this goroutine to q.uploads
			defer q.uploads.Done()
			u.run()
		}()
	}
}

// accept completes a call that does not wait for room.
func (c *Client) accept(s *scratch) error {
	var none context.Context
	return c.acceptWithin(none, s)
}

// acceptWithin completes a call: it queues the encoded message, unless encoding failed. If
// ctx is not nil, it waits for room until ctx ends.
func (c *Client) acceptWithin(ctx context.Context, s *scratch) error {
	err := c.begin()
	if err == nil {
		err = s.err
	}
	if err == nil {
		err = c.queue.add(ctx, s.text)
	}
	const keep = 2 * MaxCallSize // in bytes; a message that was too large leaves a larger buffer
	if cap(s.text) <= keep {
		scratches.Put(s)
	}
	if err != nil && errors.Is(err, ErrQueueFull) {
		c.queue.report.refused()
	}
	return err
}

// add copies a message into the collecting batch. If ctx is nil, it does not wait for room.
func (q *queue) add(ctx context.Context, message []byte) error {
	sum := q.spooler.checksum(message)
	var room <-chan struct{}
	for {
		seg, n, err := q.put(message, sum)
		if failed, ok := err.(diskError); ok {
			q.report.spool(failed.error)
			continue
		}
		if err == errNoSegment {
			if err = q.makeSegment(); err == nil {
				continue
			}
		}
		switch {
		case err == nil:
			q.commit(seg, n)
			return nil
		case errors.Is(err, ErrNotSpooled), err == ErrQueueFull && ctx == nil:
			return q.refuse(err)
		case err != ErrQueueFull:
			return err
		}
		if room != nil {
			select {
			case <-room:
			case <-ctx.Done():
				return q.refuse(fmt.Errorf("%w: %w", ErrQueueFull, context.Cause(ctx)))
			}
		}
		room = q.nextRoom()
	}
}

// refuse counts a refused call and returns err, which wraps ErrQueueFull or ErrNotSpooled.
func (q *queue) refuse(err error) error {
	q.lock()
	defer q.unlock()
	q.count.Refused++
	return err
}

// nextRoom returns a channel that is closed when there may be more room for messages. Room
// may also have appeared after the queue refused a message and before this call. So the
// caller tries once more before it waits on the channel.
func (q *queue) nextRoom() <-chan struct{} {
	q.lock()
	defer q.unlock()
	if q.collecting != nil { // otherwise this batch would make room only after FlushAfter
		q.collecting.due = true
		q.dispatch()
	}
	if q.room == nil {
		q.room = make(chan struct{})
	}
	return q.room
}

// tellRoom tells the calls that wait for room to try again. q.mu is held.
func (q *queue) tellRoom() {
	if q.room != nil {
		close(q.room)
		q.room = nil
	}
}

// put copies a message into the collecting batch, or a new one, without waiting. It returns
// the segment that has the message, or nil for a batch in memory, and the number of
// messages that the batch now has. The error is ErrClosed, ErrQueueFull, or one that wraps
// ErrNotSpooled. Two other errors ask the caller to call put again: errNoSegment after
// making a segment, and a diskError at once.
func (q *queue) put(message []byte, sum uint32) (*spool.Segment, int, error) {
	q.lock()
	defer q.unlock()
	if q.closed {
		return nil, 0, ErrClosed
	}
	size := footprint(len(message))
	// conf.uploadMemory bytes of maxMemory are reserved for batches under way. So the
	// unused part of this reserve counts as used here.
	if q.memory+max(0, q.conf.uploadMemory-q.uploadingMemory)+size > q.conf.maxMemory {
		return nil, 0, ErrQueueFull
	}
	if q.collecting != nil && !q.collecting.fits(len(message)) {
		q.seal()
	}
	if q.collecting == nil {
		if err := q.openBatch(); err != nil {
			return nil, 0, err
		}
	}
	b := q.collecting
	if err := b.append(message, sum); err != nil {
		q.spooler.fail(err)
		if b.n > 0 {
			q.seal()
		} else {
			q.collecting = nil
			q.uploads.Go(func() { q.remove(b) })
		}
		return nil, 0, diskError{err}
	}
	q.memory += size
	q.count.Queued++
	q.count.Pending++
	if b.unspooled {
		q.count.Unspooled++
	}
	n := b.n
	if n >= q.conf.flushAt {
		b.due = true
	}
	if b.due || len(q.waiting) > 0 {
		q.dispatch()
	}
	return b.seg, n, nil
}

// makeSegment makes a segment for the next messages. If the disk fails, it returns nil, and
// the next messages are held in memory alone. If SpoolMax leaves no room, it returns
// ErrQueueFull.
func (q *queue) makeSegment() error {
	err := q.spooler.prepare(1)
	if err == nil || err == ErrQueueFull {
		return err
	}
	q.lock()
	defer q.unlock()
	q.spooler.fail(err)
	return nil
}

// seal moves the collecting batch to waiting, where it takes no more messages. q.mu must be
// held.
func (q *queue) seal() {
	q.waiting = append(q.waiting, q.collecting)
	q.collecting = nil
	q.maintain(false)
}

// openBatch makes a batch for the next messages. It returns the error of
// spooler.newBatch. q.mu must be held.
func (q *queue) openBatch() error {
	b, low, err := q.spooler.newBatch(time.Now())
	q.maintain(low)
	if err != nil {
		return err
	}
	q.collecting = b
	q.timer.Reset(q.conf.flushAfter)
	if b.hasFile() && !q.watching {
		q.watching = true
		q.checker.Reset(checkPause)
	}
	return nil
}

func (q *queue) isClosed() bool {
	q.lock()
	defer q.unlock()
	return q.closed
}

// makeDue makes the collecting batch due if the batch is old enough. The timer calls
// makeDue. The timer keeps running if its batch is sealed early, so it may fire while a
// younger batch collects messages.
func (q *queue) makeDue() {
	q.lock()
	defer q.unlock()
	if q.collecting != nil && time.Since(q.collecting.opened) >= q.conf.flushAfter {
		q.collecting.due = true
		q.dispatch()
	}
}

// dispatch gives due batches to idle uploaders. While no uploader is idle, batches wait and
// grow. q.mu must be held.
func (q *queue) dispatch() {
	for len(q.idle) > 0 {
		b := q.next()
		if b == nil {
			return
		}
		last := len(q.idle) - 1
		u := q.idle[last]
		q.idle = q.idle[:last]
		u.batch = b
		q.uploads.Add(1)
		q.starts = append(q.starts, u)
	}
}

// next returns the batch to be sent next, and moves it to uploading. It returns nil if no
// batch is due or the throttle is closed. q.mu must be held.
func (q *queue) next() *batch {
	var b *batch
	spooled := len(q.spooled) > 0 && q.ctx.Err() == nil
	due := q.collecting != nil && q.collecting.due
	at := 0 // the index of the next batch in waiting, or -1
	if spooled && q.outage.down && (q.spooled[0].tries > 1+maxRetries || q.spooled[0].outcome.isMisdirected()) {
		// This batch has failed as a probe, too, or was misdirected. Perhaps the collector is not down, but never takes
		// this batch. So probe with a batch that has not been sent yet. Batches in memory alone wait
		// until Shutdown, because they might be dropped.
		ready := func(b *batch) bool { return b.isKept() || q.closed }
		at = slices.IndexFunc(q.waiting, ready)
		spooled = at < 0 && !(due && ready(q.collecting))
	}
	switch {
	case q.throttle.isClosed() || len(q.uploading) >= q.outage.limit:
		return nil
	case spooled:
		b = q.spooled[0]
		q.spooled = slices.Delete(q.spooled, 0, 1)
	case at >= 0 && len(q.waiting) > 0:
		b = q.waiting[at]
		q.waiting = slices.Delete(q.waiting, at, at+1)
	case due:
		b, q.collecting = q.collecting, nil
	default:
		return nil
	}
	q.uploading = append(q.uploading, b)
	q.uploadingMemory += b.footprint()
	q.tellRoom() // b now uses the part of maxMemory that is reserved for batches under way
	return b
}
