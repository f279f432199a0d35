package analytics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// closeTimeout is how long Close gives Shutdown.
	closeTimeout = 30 * time.Second

	// cancelGrace is how long Shutdown waits, after its deadline, for the
	// requests it cancelled. Only a Transport that does not heed the
	// context of its requests, or a callback that hangs, needs any of it.
	cancelGrace = time.Second
)

// An UndeliveredError is the error of Flush, Shutdown or Close. It counts the messages that
// were queued before the call.
type UndeliveredError struct {
	Delivered int   // delivered by now
	Dropped   int   // given up; OnDelivery has got the reason
	Spooled   int   // in SpoolDir, to be sent when the collector is back
	Pending   int   // still to be sent: Flush ran out of time, or a Transport did not end with Shutdown
	Err       error // the context's error, the error of the last batch that was not delivered, or both
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

// Flush uploads what is queued without waiting for FlushAt or FlushAfter, and
// returns when all messages queued before it are delivered or dropped, or stay
// in SpoolDir because an attempt has shown that the collector is down. If not
// all were delivered, or ctx ended first, the error is an *[UndeliveredError]
// that counts them; in the latter case the client goes on trying. Flush does
// not cut short a back-off or a pause that the collector asked for.
//
// With SpoolDir, Flush is also a first call: it opens the folder and sends what
// is there. Its error is a *[ConfigError] if that is impossible.
func (c *Client) Flush(ctx context.Context) error {
	if c.SpoolDir != "" {
		// Not begin, which also starts uploads: w has to wait for them before they end.
		if err := c.setUpOnce(); err != nil {
			return err
		}
	}
	w := c.flushAll(false)
	w.wait(ctx)
	return w.result(ctx.Err())
}

// Shutdown refuses further calls with [ErrClosed], delivers what is queued,
// and returns when nothing is left in memory and no goroutine runs. If ctx ends
// first, or everything is in SpoolDir and the latest attempt could not connect to the
// collector, it cancels the requests under way and drops what they and the queue
// held, with ReasonShutdown; what is in SpoolDir stays there, for the next
// client on that folder. It returns an *[UndeliveredError] if messages queued
// before it were not delivered, and lets the folder go. It does not open a
// folder that no call has opened. A Transport that does not heed the context of
// its requests, and a callback that hangs, it leaves behind a second later.
//
// Shutdown may be called again, and while another call of it is still
// waiting; the earliest deadline ends them all.
func (c *Client) Shutdown(ctx context.Context) error {
	w := c.flushAll(true)
	w.wait(ctx)
	cut := ctx.Err()
	if len(w.pending) > 0 || w.sum.Spooled > 0 {
		c.cancelUploads(w)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelGrace)
		defer cancel()
		w.wait(grace)
	}
	if len(w.pending) == 0 {
		c.uploads.Wait()
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

// flushAll makes everything queued due and returns a waiter for it.
func (q *queue) flushAll(closing bool) *waiter {
	q.lock()
	defer q.unlock()
	w := &waiter{}
	for _, b := range slices.Concat(q.uploading, q.waiting) {
		w.add(b, b.n)
	}
	for _, b := range q.allSpooled() {
		w.add(b, b.n)
		if q.ctx.Err() != nil { // an earlier Shutdown has left them there
			b.resolve(outcome{err: errShutdown}, true)
		}
	}
	if q.collecting != nil {
		w.add(q.collecting, q.collecting.n)
		q.collecting.due = true
	}
	q.dispatch()
	if closing {
		if q.outage.unreachable != nil {
			q.resolveSpooled(*q.outage.unreachable, q.uploading)
		}
		q.closed = true
		q.tellRoom()
		if q.timer != nil {
			q.timer.Stop()
		}
	}
	return w
}

// cancelUploads cancels all requests. The uploaders then end all batches that are left.
// w also waits for batches that it has counted as spooled and that are under way again.
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
	q.gate.open()
}

// release frees the resources of a closed client that has no messages.
func (c *Client) release() {
	c.lock()
	conf, report, disk := c.conf, c.report, c.spooler
	if c.gate.timer != nil {
		c.gate.timer.Stop()
	}
	c.unlock()
	if conf == nil {
		return // never started
	}
	disk.close()
	report.logPending()
	if conf.own != nil {
		conf.own.CloseIdleConnections()
	}
}

// A waiter waits for the messages that were queued at one moment.
type waiter struct {
	pending []awaited
	sum     UndeliveredError
}

// An awaited is a batch and how many of its messages are waited for. Later messages may
// join the batch until it is sealed.
type awaited struct {
	settled *settlement
	n       int
}

// add makes w wait for b, and count n of its messages. The queue's mutex is held.
func (w *waiter) add(b *batch, n int) {
	if b.settled == nil {
		b.settled = &settlement{done: make(chan struct{})}
	}
	w.pending = append(w.pending, awaited{b.settled, n})
}

// wait returns when everything is settled or ctx has ended.
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
	if lost := a.n - n; lost > 0 { // damaged on disk
		w.sum.Dropped += lost
		w.sum.Err = errDamaged
	}
	if a.n == 0 {
		return // counted before
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

// result returns nil if everything was delivered.
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
