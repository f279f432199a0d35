package analytics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// closeTimeout is the deadline of Close.
	closeTimeout = 30 * time.Second

	// cancelGrace is how long Shutdown waits, after its deadline, for the requests that
	// it has cancelled. They end at once unless a Transport ignores the context of its
	// requests, or a callback hangs.
	cancelGrace = time.Second
)

// Flush, Shutdown and Close return an UndeliveredError. It counts the messages that were
// queued before the call of Flush, Shutdown or Close.
type UndeliveredError struct {
	Delivered int   // delivered before the call returned
	Dropped   int   // dropped; OnDelivery has got the reason
	Spooled   int   // in SpoolDir, to be sent when the collector is back
	Pending   int   // still to be sent: Flush ran out of time, or a Transport did not stop at Shutdown
	Err       error // the error of ctx, the error of the last batch that was not delivered, or both
}

func (e *UndeliveredError) Error() string {
	missing := e.Dropped + e.Spooled + e.Pending
	text := fmt.Sprintf("analytics: %d of %d messages not delivered", missing, e.Delivered+missing)
	if e.Spooled > 0 {
		text += fmt.Sprintf(", %d of them on disk", e.Spooled)
	}
	if e.Pending > 0 {
		text += fmt.Sprintf(", %d of them pending", e.Pending)
	}
	return text + ": " + e.Err.Error()
}

func (e *UndeliveredError) Unwrap() error { return e.Err }

// Flush uploads the queued messages without waiting for FlushAt or FlushAfter. It returns
// when all messages queued before the call are delivered or dropped, or stay in SpoolDir
// because an attempt has shown that the collector is down, or not at the Endpoint. If not
// all of them were delivered, or ctx ended first, the error is an *[UndeliveredError]
// that counts them. If ctx ended first, the client goes on trying. Flush does not cut
// short a back-off or a pause that the collector asked for.
//
// With SpoolDir, Flush may be the first call: it opens the folder and sends the messages in
// the folder. If the folder cannot be used, Flush returns a *[ConfigError].
func (c *Client) Flush(ctx context.Context) error {
	if c.SpoolDir != "" {
		// Do not call begin here. It would also start uploads, and these might finish
		// before flushAll counts their messages.
		if err := c.setUpOnce(); err != nil {
			return err
		}
	}
	w := c.queue.flushAll(false)
	c.queue.checkSpool(true)
	w.wait(ctx)
	return w.result(ctx.Err())
}

// Shutdown refuses further calls with [ErrClosed] and delivers the queued messages. It
// returns when no message is left in memory and no goroutine runs. It then releases
// SpoolDir. If not all messages queued before the call were delivered, Shutdown returns an
// *[UndeliveredError].
//
// Shutdown gives up if ctx ends, or if all messages are in SpoolDir and the latest
// attempt could not connect to the collector, or was Misdirected as in [Stats]. It then
// cancels the requests under way, and drops the messages in memory with ReasonShutdown.
// Messages in SpoolDir stay there for the next client on that folder. If a Transport
// ignores the context of its requests, or a callback hangs, Shutdown waits one more
// second for the request or callback and then returns.
//
// Shutdown does not open a SpoolDir that no call has opened. Shutdown may be called several
// times, also at once. Of calls that wait at the same time, the earliest deadline applies
// to all.
func (c *Client) Shutdown(ctx context.Context) error {
	w := c.queue.flushAll(true)
	c.queue.checkSpool(true)
	c.queue.resolveUnreachable()
	w.wait(ctx)
	cut := ctx.Err()
	if len(w.pending) > 0 || w.sum.Spooled > 0 {
		c.queue.checkSpool(true)
		c.queue.cancelUploads(w)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelGrace)
		defer cancel()
		w.wait(grace)
	}
	if len(w.pending) == 0 {
		c.queue.uploads.Wait()
		c.release()
	}
	return w.result(cut)
}

// Close is Shutdown with a deadline of 30 seconds.
func (c *Client) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return c.Shutdown(ctx)
}

// flushAll makes all queued messages due and returns a waiter for them.
func (q *queue) flushAll(closing bool) *waiter {
	q.lock()
	defer q.unlock()
	w := &waiter{}
	for _, b := range slices.Concat(q.uploading, q.waiting) {
		w.add(b, b.n)
	}
	for _, b := range q.allSpooled() {
		w.add(b, b.n)
		if q.ctx.Err() != nil { // an earlier Shutdown has left them on disk
			b.resolve(outcome{err: errShutdown}, true)
		}
	}
	if q.collecting != nil {
		w.add(q.collecting, q.collecting.n)
		q.collecting.due = true
	}
	q.dispatch()
	if closing {
		q.closed = true
		q.tellRoom()
		if q.timer != nil {
			q.timer.Stop()
			q.checker.Stop()
		}
	}
	return w
}

// resolveUnreachable tells the waiters of batches with a file that these stay in SpoolDir, if the
// latest attempt could not connect to the collector, or was misdirected.
func (q *queue) resolveUnreachable() {
	q.lock()
	defer q.unlock()
	if q.outage.unreachable != nil {
		q.resolveSpooled(*q.outage.unreachable, q.uploading)
	}
}

// cancelUploads cancels all requests. The uploaders then settle all remaining batches. A
// batch that w has already counted as spooled may be under way again. Then w also waits
// for the end of that upload.
func (q *queue) cancelUploads(w *waiter) {
	q.cancel(errShutdown)
	q.lock()
	defer q.unlock()
	for _, b := range q.uploading {
		if b.settled == nil {
			w.add(b, 0)
		}
	}
	for _, b := range q.allSpooled() {
		b.resolve(outcome{err: errShutdown}, true)
	}
	q.throttle.open()
}

// release frees the resources of a closed client that has no messages in memory.
func (c *Client) release() {
	c.queue.lock()
	conf, report, disk := c.queue.conf, c.queue.report, c.queue.spooler
	c.queue.released = true
	if c.queue.throttle.timer != nil {
		c.queue.throttle.timer.Stop()
	}
	c.queue.unlock()
	if conf == nil {
		return // the client was never started
	}
	disk.close()
	report.logPending(0)
	if conf.own != nil {
		conf.own.CloseIdleConnections()
	}
}

// A waiter waits for the outcome of all messages that are queued when flushAll makes
// the waiter.
type waiter struct {
	pending []awaited
	sum     UndeliveredError
}

// An awaited is a batch, with the number of its messages that a waiter waits for. The
// waiter does not count messages that join the batch later.
type awaited struct {
	settled *settlement
	n       int
}

// add makes w wait for b and count n of its messages. The queue's mutex must be held.
func (w *waiter) add(b *batch, n int) {
	if b.settled == nil {
		b.settled = &settlement{done: make(chan struct{})}
	}
	w.pending = append(w.pending, awaited{b.settled, n})
}

// wait returns when all batches are settled or ctx has ended.
func (w *waiter) wait(ctx context.Context) {
	for _, a := range w.pending {
		select {
		case <-a.settled.done:
		case <-ctx.Done():
		}
	}
	w.pending = slices.DeleteFunc(w.pending, func(a awaited) bool {
		select {
		case <-a.settled.done:
			w.count(a)
			return true
		default:
			return false
		}
	})
}

func (w *waiter) count(a awaited) {
	f := &a.settled.outcome
	n := min(a.n, a.settled.n)
	if lost := a.n - n; lost > 0 { // lost by damage on disk
		w.sum.Dropped += lost
		w.sum.Err = errDamaged
	}
	if a.n == 0 {
		return // this batch was counted before, as spooled
	}
	if a.settled.spooled {
		w.sum.Spooled += n
		w.sum.Err = f.err
		return
	}
	dropped := f.dropped(n)
	w.sum.Dropped += dropped
	w.sum.Delivered += n - dropped
	if dropped > 0 {
		w.sum.Err = f.err
		if f.reason == "" {
			w.sum.Err = f.rejected[0].err
		}
	}
}

// result returns nil if all messages were delivered, and otherwise an *UndeliveredError.
func (w *waiter) result(ctxErr error) error {
	e := w.sum
	for _, a := range w.pending {
		e.Pending += a.n
	}
	if e.Dropped+e.Spooled+e.Pending == 0 {
		return nil
	}
	switch {
	case ctxErr == nil:
	case e.Err == nil:
		e.Err = ctxErr
	case !errors.Is(e.Err, ctxErr):
		e.Err = fmt.Errorf("%w; %w", ctxErr, e.Err)
	}
	return &e
}
