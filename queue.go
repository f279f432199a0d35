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

// A scratch is where a call encodes its message. Encoding into it and copying
// costs less than encoding under the mutex, where calls would wait for each
// other's maps and a caller's MarshalJSON could not use the client.
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

// lock locks c.mu, which is held for a fraction of a microsecond. If other goroutines are
// ready to run, a sync.Mutex parks this one at once, and it then waits until all of them
// have run, which may take milliseconds. Trying for about a microsecond first avoids that.
func (c *Client) lock() {
	for range 300 {
		if c.mu.TryLock() {
			return
		}
	}
	c.mu.Lock()
}

// unlock unlocks c.mu and then starts the uploaders that dispatch has chosen. Starting a
// goroutine takes longer than everything that is done under the mutex.
func (c *Client) unlock() {
	if len(c.starts) == 0 {
		c.mu.Unlock()
		return
	}
	var starts [maxUploads]*uploader
	n := copy(starts[:], c.starts)
	c.starts = c.starts[:0]
	c.mu.Unlock()
	for _, u := range starts[:n] {
		go func() { // dispatch has added it to c.uploads
			defer c.uploads.Done()
			u.run()
		}()
	}
}

// queue ends a call that does not wait.
func (c *Client) queue(s *scratch) error {
	var none context.Context
	return c.queueWithin(none, s)
}

// queueWithin ends a call: it takes the encoded message, unless encoding failed. With
// a context, it waits for room.
func (c *Client) queueWithin(ctx context.Context, s *scratch) error {
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
func (c *Client) add(ctx context.Context, message []byte) error {
	sum := c.spooler.checksum(message)
	var room <-chan struct{}
	for {
		seg, n, err := c.put(message, sum)
		if failed, ok := err.(diskError); ok {
			c.report.spool(failed.error)
			continue
		}
		if err == errNoSegment {
			if err = c.makeSegment(); err == nil {
				continue
			}
		}
		switch {
		case err == nil:
			c.spooler.commit(seg, n)
			return nil
		case errors.Is(err, ErrNotSpooled), err == ErrQueueFull && ctx == nil:
			return c.refuse(err)
		case err != ErrQueueFull:
			return err
		}
		if room != nil {
			select {
			case <-room:
			case <-ctx.Done():
				return c.refuse(fmt.Errorf("%w: %w", ErrQueueFull, context.Cause(ctx)))
			}
		}
		room = c.nextRoom()
	}
}

// refuse counts a call that ends with err, an ErrQueueFull or ErrNotSpooled.
func (c *Client) refuse(err error) error {
	c.lock()
	defer c.unlock()
	c.count.Refused++
	return err
}

// nextRoom returns a channel that is closed when there may be more room than
// now. Room may have been made between the refusal of a message and this call, so
// the caller tries the message once more before it waits.
func (c *Client) nextRoom() <-chan struct{} {
	c.lock()
	defer c.unlock()
	if c.room == nil {
		c.room = make(chan struct{})
	}
	if c.collecting != nil { // it would make room only after FlushAfter
		c.collecting.due = true
		c.dispatch()
	}
	return c.room
}

// tellRoom wakes the calls that wait for room. c.mu is held.
func (c *Client) tellRoom() {
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}

// put copies a message into the collecting batch, or a new one, without waiting. It
// returns the segment that the message is in, nil for a batch in memory, and
// how many messages the batch now has. The error is ErrClosed, ErrQueueFull,
// errNoSegment if a file has to be made first, or a diskError, after which the
// message is to be put again.
func (c *Client) put(message []byte, sum uint32) (*spool.Segment, int, error) {
	c.lock()
	defer c.unlock()
	if c.closed {
		return nil, 0, ErrClosed
	}
	size := footprint(len(message))
	// Of the bound, conf.uploadMemory is for batches under way.
	if c.memory+max(0, c.conf.uploadMemory-c.uploadingMemory)+size > c.conf.maxMemory {
		return nil, 0, ErrQueueFull
	}
	if c.collecting != nil && !c.collecting.fits(len(message)) {
		c.seal()
	}
	if c.collecting == nil {
		if err := c.openBatch(); err != nil {
			return nil, 0, err
		}
	}
	b := c.collecting
	if err := b.append(message, sum); err != nil {
		c.spooler.fail(err)
		if b.n > 0 {
			c.seal()
		} else {
			c.collecting = nil
			c.uploads.Go(func() { c.remove(b) })
		}
		return nil, 0, diskError{err}
	}
	c.memory += size
	c.count.Queued++
	c.count.Pending++
	if b.unspooled {
		c.count.Unspooled++
	}
	n := b.n
	if n >= c.conf.flushAt {
		b.due = true
	}
	if b.due || len(c.waiting) > 0 {
		c.dispatch()
	}
	return b.seg, n, nil
}

// makeSegment makes a segment for the next messages. If the disk fails, they are held
// in memory alone. The error is ErrQueueFull if SpoolMax leaves no room.
func (c *Client) makeSegment() error {
	err := c.spooler.prepare(1)
	if err == nil || err == ErrQueueFull {
		return err
	}
	c.lock()
	defer c.unlock()
	c.spooler.fail(err)
	return nil
}

// seal closes the collecting batch to further messages. c.mu is held.
func (c *Client) seal() {
	c.waiting = append(c.waiting, c.collecting)
	c.collecting = nil
	c.maintain(false)
}

// openBatch makes a batch for the next messages. The error is that of
// spooler.newBatch. c.mu is held.
func (c *Client) openBatch() error {
	b, low, err := c.spooler.newBatch(time.Now())
	c.maintain(low)
	if err != nil {
		return err
	}
	c.collecting = b
	c.armTimer()
	return nil
}

func (c *Client) isClosed() bool {
	c.lock()
	defer c.unlock()
	return c.closed
}

// armTimer makes the collecting batch due after FlushAfter. c.mu is held.
func (c *Client) armTimer() {
	if c.timer == nil {
		c.timer = time.AfterFunc(c.conf.flushAfter, c.makeDue)
		return
	}
	c.timer.Reset(c.conf.flushAfter)
}

// makeDue makes the collecting batch due. The timer calls it. Nothing stops the timer when
// a batch leaves for another reason, so the collecting batch may be a later one.
func (c *Client) makeDue() {
	c.lock()
	defer c.unlock()
	if c.collecting != nil && time.Since(c.collecting.opened) >= c.conf.flushAfter {
		c.collecting.due = true
		c.dispatch()
	}
}

// dispatch gives batches that are due to idle uploaders. While there is none, batches
// wait and grow. c.mu is held.
func (c *Client) dispatch() {
	for len(c.idle) > 0 {
		b := c.next()
		if b == nil {
			return
		}
		last := len(c.idle) - 1
		u := c.idle[last]
		c.idle = c.idle[:last]
		u.batch = b
		c.uploads.Add(1)
		c.starts = append(c.starts, u)
	}
}

// next takes the batch to be sent next, nil if none is due or the gate is
// closed. c.mu is held.
func (c *Client) next() *batch {
	var b *batch
	switch {
	case c.gate.isClosed() || len(c.uploading) >= c.outage.limit:
		return nil
	case len(c.spooled) > 0 && c.ctx.Err() == nil:
		b = c.spooled[0]
		c.spooled = slices.Delete(c.spooled, 0, 1)
	case len(c.waiting) > 0:
		b = c.waiting[0]
		c.waiting = slices.Delete(c.waiting, 0, 1)
	case c.collecting != nil && c.collecting.due:
		b, c.collecting = c.collecting, nil
	default:
		return nil
	}
	c.uploading = append(c.uploading, b)
	c.uploadingMemory += b.footprint()
	return b
}

// settle records the outcome of an uploader's batch. It reports whether the uploader has
// another one.
func (c *Client) settle(u *uploader) bool {
	b := u.batch
	c.lock()
	c.count.settle(b)
	c.unlock()

	b.deliveries(c.tell)
	c.remove(b)

	c.lock()
	defer c.unlock()
	c.endUpload(b)
	b.resolve(b.outcome, false)
	if b.outcome.reason == "" && b.n > 0 { // 0: all of it was damaged
		c.noteTaken()
	}
	b.release()
	return c.advance(u)
}

// tell reports what became of messages.
func (c *Client) tell(d Delivery) {
	c.report.settled(d)
	if c.conf.onDelivery != nil {
		c.conf.onDelivery(d)
	}
}

// endUpload takes b off the batches that are under way. c.mu is held.
func (c *Client) endUpload(b *batch) {
	i := slices.Index(c.uploading, b)
	c.uploading = slices.Delete(c.uploading, i, i+1)
	c.memory -= b.footprint()
	c.uploadingMemory -= b.footprint()
	c.tellRoom()
}

// advance gives an uploader the next batch, or makes it idle and returns false. c.mu is
// held.
func (c *Client) advance(u *uploader) bool {
	u.batch = c.next()
	if u.batch == nil {
		c.idle = append(c.idle, u)
	}
	return u.batch != nil
}
