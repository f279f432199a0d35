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
type scratch struct{ text []byte }

var scratches = sync.Pool{New: func() any { return &scratch{text: make([]byte, 0, 1<<10)} }}

// scratch begins a call: it returns an empty buffer for its message.
func (c *Client) scratch() (*scratch, error) {
	if err := c.begin(); err != nil {
		return nil, err
	}
	s := scratches.Get().(*scratch)
	s.text = s.text[:0]
	return s, nil
}

// lock locks c.mu. What is done under it takes a fraction of a microsecond. A
// sync.Mutex parks the goroutine at once if others are ready to run, and it then
// waits until all of these have had their turn, which may take milliseconds.
// Trying for about a microsecond first avoids that.
func (c *Client) lock() {
	for range 300 {
		if c.mu.TryLock() {
			return
		}
	}
	c.mu.Lock()
}

// A flight is an uploader and the batch it is to send.
type flight struct {
	u *uploader
	b *batch
}

// unlock unlocks c.mu and then starts the uploaders that dispatch has chosen: to
// start a goroutine takes longer than all that is done under the mutex.
func (c *Client) unlock() {
	if len(c.starts) == 0 {
		c.mu.Unlock()
		return
	}
	var starts [maxUploads]flight
	n := copy(starts[:], c.starts)
	clear(c.starts)
	c.starts = c.starts[:0]
	c.mu.Unlock()
	for _, f := range starts[:n] {
		go func() { // dispatch has added it to c.uploads
			defer c.uploads.Done()
			f.u.run(f.b)
		}()
	}
}

// queue ends a call that does not wait.
func (c *Client) queue(s *scratch, err error) error {
	var none context.Context
	return c.finish(none, s, err)
}

// finish ends a call: it takes the encoded message, unless encoding failed. With
// a context, it waits for room.
func (c *Client) finish(ctx context.Context, s *scratch, err error) error {
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

// add copies a message into the open batch. ctx is nil for a call that does not
// wait for room.
func (c *Client) add(ctx context.Context, message []byte) error {
	var sum uint32
	if c.spooler != nil {
		sum = spool.Checksum(message)
	}
	var room <-chan struct{}
	for {
		seg, n, err := c.put(message, sum)
		if failed, ok := err.(*diskError); ok {
			failed.report(c.report)
			continue
		}
		if err == errNoSegment {
			if err = c.prepare(); err == nil {
				continue
			}
		}
		switch {
		case err == nil:
			c.commit(seg, n)
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
	c.count.refused++
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
	if c.open != nil { // it would make room only after FlushAfter
		c.open.due = true
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

// put copies a message into the open batch, or a new one, without waiting. It
// returns the segment that the message is in, nil for a batch in memory alone, and
// how many messages the batch now has. The error is ErrClosed, ErrQueueFull,
// errNoSegment if a file has to be made first, or a *diskError, after which the
// message is to be put again.
func (c *Client) put(message []byte, sum uint32) (*spool.Segment, int, error) {
	c.lock()
	defer c.unlock()
	if c.closed {
		return nil, 0, ErrClosed
	}
	if c.waitingMemory()+footprint(len(message)) > c.conf.maxQueue {
		return nil, 0, ErrQueueFull
	}
	if c.open != nil && !c.open.fits(len(message)) {
		c.fill()
	}
	if c.open == nil {
		if err := c.openBatch(); err != nil {
			return nil, 0, err
		}
	}
	if c.open.seg == nil {
		c.open.append(message)
	} else if err := c.open.write(message, sum); err != nil {
		c.spooler.fail(err)
		failed := &diskError{err: err}
		if c.open.n > 0 {
			c.fill()
		} else {
			failed.empty, c.open = c.open.seg, nil
		}
		return nil, 0, failed
	}
	if c.spooler != nil && c.open.seg == nil {
		c.count.unspooled++
	}
	c.memory += footprint(len(message))
	c.count.queued++
	c.count.pending++
	b, n := c.open, c.open.n
	if n >= c.conf.flushAt {
		b.due = true
	}
	if b.due || len(c.full) > 0 {
		c.dispatch()
	}
	return b.seg, n, nil
}

// fill closes the open batch to further messages, and queues it to be sent. c.mu
// is held.
func (c *Client) fill() {
	b := c.open
	c.open = nil
	c.full = append(c.full, b)
	if c.spooler != nil {
		c.tend(false)
	}
}

// waitingMemory returns the part of c.memory that conf.maxQueue bounds: without
// the batches under way if there is a spool, as these have a bound of their own.
// c.mu is held.
func (c *Client) waitingMemory() int {
	if c.spooler != nil {
		return c.memory - c.spooler.flying
	}
	return c.memory
}

// openBatch opens a batch for the next messages. The error is errNoSegment if a
// segment of the spool has to be made for it first, or a *diskError. c.mu is held.
func (c *Client) openBatch() error {
	now := time.Now()
	if c.spooler == nil {
		c.open = newBatch(now)
	} else {
		b, low, err := c.spooler.newBatch(now)
		c.tend(low)
		if err != nil {
			return err
		}
		c.open = b
	}
	c.armTimer()
	return nil
}

func (c *Client) isClosed() bool {
	c.lock()
	defer c.unlock()
	return c.closed
}

// armTimer makes the open batch due after FlushAfter. c.mu is held.
func (c *Client) armTimer() {
	if c.timer == nil {
		c.timer = time.AfterFunc(c.conf.flushAfter, c.ripen)
		return
	}
	c.timer.Reset(c.conf.flushAfter)
}

// ripen makes the open batch due. The timer calls it, and is not stopped when a
// batch leaves for another reason, so the batch it was set for may be gone.
func (c *Client) ripen() {
	c.lock()
	defer c.unlock()
	if c.open != nil && time.Since(c.open.opened) >= c.conf.flushAfter {
		c.open.due = true
		c.dispatch()
	}
}

// dispatch hands what is due to idle uploaders. Without one, batches wait and
// grow. c.mu is held.
func (c *Client) dispatch() {
	for len(c.idle) > 0 {
		b := c.next()
		if b == nil {
			return
		}
		last := len(c.idle) - 1
		u := c.idle[last]
		c.idle = c.idle[:last]
		c.uploads.Add(1)
		c.starts = append(c.starts, flight{u, b})
	}
}

// next takes the batch to be sent next, nil if none is due or the gate is
// closed. c.mu is held.
func (c *Client) next() *batch {
	var b *batch
	switch {
	case c.gate.isClosed():
		return nil
	case c.spooler != nil && len(c.flying) >= c.spooler.width:
		return nil
	case c.spooler != nil && len(c.spooler.kept) > 0 && c.ctx.Err() == nil:
		b = c.spooler.kept[0]
		c.spooler.kept = slices.Delete(c.spooler.kept, 0, 1)
	case len(c.full) > 0:
		b = c.full[0]
		c.full = slices.Delete(c.full, 0, 1)
	case c.open != nil && c.open.due:
		b, c.open = c.open, nil
	default:
		return nil
	}
	c.flying = append(c.flying, b)
	if c.spooler != nil {
		c.spooler.flying += b.footprint()
	}
	if b.seg != nil && !b.onDisk {
		b.ends = b.seg.Ends()
	}
	return b
}

// settle records the fate of a batch and returns the next one for its
// uploader; nil when it is to rest.
func (c *Client) settle(u *uploader, b *batch) *batch {
	c.lock()
	c.count.settle(b)
	c.unlock()

	b.deliveries(c.tell)
	if b.seg != nil {
		if err := b.seg.Remove(); err != nil {
			c.report.spool(err)
		}
	}

	c.lock()
	defer c.unlock()
	c.land(b)
	b.answer(b.fate, false)
	if c.spooler != nil && b.fate.reason == "" && b.n > 0 { // 0: all of it was damaged
		c.widen()
	}
	b.release()
	return c.another(u)
}

// tell reports what became of messages.
func (c *Client) tell(d Delivery) {
	c.report.settled(d)
	if c.conf.onDelivery != nil {
		c.conf.onDelivery(d)
	}
}

// land ends the flight of b. c.mu is held.
func (c *Client) land(b *batch) {
	i := slices.Index(c.flying, b)
	c.flying = slices.Delete(c.flying, i, i+1)
	c.memory -= b.footprint()
	if c.spooler != nil {
		c.spooler.flying -= b.footprint()
	}
	c.tellRoom()
}

// another returns the next batch for an uploader; nil when it is to rest. c.mu
// is held.
func (c *Client) another(u *uploader) *batch {
	next := c.next()
	if next == nil {
		c.idle = append(c.idle, u)
	}
	return next
}
