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
// message into the batch. Under the mutex, calls would wait for each other's encoding, and
// a caller's MarshalJSON could not use the client.
type scratch struct {
	text []byte
	err  error // of encoding
}

var scratches = sync.Pool{New: func() any { return &scratch{text: make([]byte, 0, 1<<10)} }}

func newScratch() *scratch {
	s := scratches.Get().(*scratch)
	s.text = s.text[:0]
	return s
}

// A queue holds the messages of a client from the call to their outcome. Batches go from
// collecting to waiting to uploading. With SpoolDir they may also go from there, or from
// waiting, to spooled and back.
type queue struct {
	// These are set before the first message comes, and do not change any more.
	conf    *settings
	report  *reporter
	ctx     context.Context // of all uploads
	cancel  context.CancelCauseFunc
	uploads sync.WaitGroup // uploaders at work

	// mu guards the rest; see lock. It is never held across a callback, a log line or a
	// wait. It is held across no I/O but that of spool.Dir.Take and Segment.Append.
	mu     sync.Mutex
	closed bool

	collecting *batch   // takes messages; nil when there are none
	waiting    []*batch // takes no more, and waits for an uploader, oldest first
	uploading  []*batch // with an uploader
	spooled    []*batch // on disk alone, oldest first
	unloading  *batch   // moving from waiting to spooled, and in neither

	memory          int           // the footprints of all batches
	uploadingMemory int           // of uploading alone
	room            chan struct{} // closed when there is more room; nil when nobody waits
	count           counters
	timer           *time.Timer // when the collecting batch is due
	idle            []*uploader // with no batch
	starts          []*uploader // that unlock has to start
	maintaining     bool        // maintenance has a goroutine

	spooler spooler
	outage  outage
	gate    gate // closed while the collector has asked for a pause
}

// lock locks q.mu, which is held for a fraction of a microsecond. If other goroutines are
// ready to run, a sync.Mutex parks this one at once, and it then waits until all of them
// have run, which may take milliseconds. Trying for about a microsecond first avoids that.
func (q *queue) lock() {
	for range 300 {
		if q.mu.TryLock() {
			return
		}
	}
	q.mu.Lock()
}

// unlock unlocks q.mu and then starts the uploaders that dispatch has chosen. Starting a
// goroutine takes longer than everything that is done under the mutex.
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
		go func() { // dispatch has added it to q.uploads
			defer q.uploads.Done()
			u.run()
		}()
	}
}

// accept ends a call that does not wait.
func (c *Client) accept(s *scratch) error {
	var none context.Context
	return c.acceptWithin(none, s)
}

// acceptWithin ends a call: it queues the encoded message, unless encoding failed. If ctx is
// not nil, it waits for room.
func (c *Client) acceptWithin(ctx context.Context, s *scratch) error {
	err := c.begin()
	if err == nil {
		err = s.err
	}
	if err == nil {
		err = c.add(ctx, s.text)
	}
	const keep = 2 * MaxCallSize // refused messages may have grown it further
	if cap(s.text) <= keep {
		scratches.Put(s)
	}
	if err != nil && errors.Is(err, ErrQueueFull) {
		c.report.refused()
	}
	return err
}

// add copies a message into the collecting batch. ctx is nil for a call that does not
// wait for room.
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
			q.spooler.commit(seg, n)
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

// refuse counts a call that ends with err, an ErrQueueFull or ErrNotSpooled.
func (q *queue) refuse(err error) error {
	q.lock()
	defer q.unlock()
	q.count.Refused++
	return err
}

// nextRoom returns a channel that is closed when there may be more room than
// now. Room may have been made between the refusal of a message and this call, so
// the caller tries the message once more before it waits.
func (q *queue) nextRoom() <-chan struct{} {
	q.lock()
	defer q.unlock()
	if q.room == nil {
		q.room = make(chan struct{})
	}
	if q.collecting != nil { // it would make room only after FlushAfter
		q.collecting.due = true
		q.dispatch()
	}
	return q.room
}

// tellRoom wakes the calls that wait for room. q.mu is held.
func (q *queue) tellRoom() {
	if q.room != nil {
		close(q.room)
		q.room = nil
	}
}

// put copies a message into the collecting batch, or a new one, without waiting. It returns
// the segment that the message is in, nil for a batch in memory, and how many messages the
// batch now has. The error is ErrClosed, ErrQueueFull, errNoSegment if the caller has to
// make a file first, or a diskError if the caller has to put the message again.
func (q *queue) put(message []byte, sum uint32) (*spool.Segment, int, error) {
	q.lock()
	defer q.unlock()
	if q.closed {
		return nil, 0, ErrClosed
	}
	size := footprint(len(message))
	// Of the bound, conf.uploadMemory is for batches under way.
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

// makeSegment makes a segment for the next messages. If the disk fails, they are held
// in memory alone. The error is ErrQueueFull if SpoolMax leaves no room.
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

// seal closes the collecting batch to further messages. q.mu is held.
func (q *queue) seal() {
	q.waiting = append(q.waiting, q.collecting)
	q.collecting = nil
	q.maintain(false)
}

// openBatch makes a batch for the next messages. The error is that of
// spooler.newBatch. q.mu is held.
func (q *queue) openBatch() error {
	b, low, err := q.spooler.newBatch(time.Now())
	q.maintain(low)
	if err != nil {
		return err
	}
	q.collecting = b
	q.armTimer()
	return nil
}

func (q *queue) isClosed() bool {
	q.lock()
	defer q.unlock()
	return q.closed
}

// armTimer makes the collecting batch due after FlushAfter. q.mu is held.
func (q *queue) armTimer() {
	if q.timer == nil {
		q.timer = time.AfterFunc(q.conf.flushAfter, q.makeDue)
		return
	}
	q.timer.Reset(q.conf.flushAfter)
}

// makeDue makes the collecting batch due. The timer calls it. Nothing stops the timer when
// a batch leaves for another reason, so the collecting batch may be a later one.
func (q *queue) makeDue() {
	q.lock()
	defer q.unlock()
	if q.collecting != nil && time.Since(q.collecting.opened) >= q.conf.flushAfter {
		q.collecting.due = true
		q.dispatch()
	}
}

// dispatch gives batches that are due to idle uploaders. While there is none, batches
// wait and grow. q.mu is held.
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

// next takes the batch to be sent next, nil if none is due or the gate is
// closed. q.mu is held.
func (q *queue) next() *batch {
	var b *batch
	switch {
	case q.gate.isClosed() || len(q.uploading) >= q.outage.limit:
		return nil
	case len(q.spooled) > 0 && q.ctx.Err() == nil:
		b = q.spooled[0]
		q.spooled = slices.Delete(q.spooled, 0, 1)
	case len(q.waiting) > 0:
		b = q.waiting[0]
		q.waiting = slices.Delete(q.waiting, 0, 1)
	case q.collecting != nil && q.collecting.due:
		b, q.collecting = q.collecting, nil
	default:
		return nil
	}
	q.uploading = append(q.uploading, b)
	q.uploadingMemory += b.footprint()
	return b
}
