package analytics

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/hookferry/analytics/internal/spool"
)

const (
	// maxAnswer is how many bytes of an answer the client reads at most. An answer that
	// rejects every call of a batch is shorter. If an answer is longer, the client closes
	// its connection.
	maxAnswer = 1 << 20

	retryCountHeader = "X-Retry-Count"
)

// An uploader sends one batch at a time, with retries.
type uploader struct {
	queue *queue
	http  retryablehttp.Client
	pack  packer

	batch    *batch
	sent     *batch // the batch, or the part of it that post sends
	attempts int    // attempts made for sent, including those before it was put on disk
	probe    bool   // this batch gets a single attempt, because the collector is down and the batch is on disk
	lastErr  error  // error of the latest attempt
}

func newUploader(q *queue) *uploader {
	u := &uploader{queue: q}
	u.http = retryablehttp.Client{
		HTTPClient: &http.Client{
			Transport: transport{q.conf.transport},
			Timeout:   q.conf.timeout,
		},
		Logger:         nil, // otherwise retryablehttp logs to standard error
		RetryMax:       maxRetries,
		RequestLogHook: u.before,
		CheckRetry:     u.check,
		Backoff:        u.wait,
		PrepareRetry:   func(req *http.Request) error { return q.throttle.pass(req.Context()) },
		ErrorHandler:   retryablehttp.PassthroughErrorHandler,
	}
	return u
}

// run sends the batch that the uploader has been given, and then the next due batches, one
// by one. It returns when no batch is due.
func (u *uploader) run() {
	for more := true; more; {
		b := u.batch
		if !b.onDisk || u.load(b) {
			b.outcome = u.send()
		}
		r := b.outcome.reason
		if (r == ReasonExhausted || r == ReasonShutdown || b.outcome.isMisdirected()) && u.persist(b) {
			more = u.putBack()
		} else {
			more = u.settle()
		}
	}
}

// send makes the attempts for the batch and returns its outcome.
func (u *uploader) send() outcome {
	b := u.batch
	u.probe = u.queue.outage.isDown(b)
	f := u.post(b)
	if b.n > 1 && f.isTooLarge() {
		return u.divide(f.attempts)
	}
	return f
}

// divide sends the messages of a batch that was refused because of its size. It halves what is
// too large, down to single messages, and only those are refused. The parts take up to twice
// MaxBatchSize of memory that MaxMemory does not count. If an attempt fails in another way, the
// messages that are not settled yet have its outcome. The argument attempts counts the attempts
// made for the complete batch.
func (u *uploader) divide(attempts int) outcome {
	b := u.batch
	all := outcome{attempts: attempts}
	text := b.text()
	if text == nil {
		all.reason, all.err = ReasonDamaged, errDamaged
		return all
	}
	for ends := []int{b.n, b.n / 2}; len(ends) > 0; { // the ends of the parts to be sent, the next one last
		to := ends[len(ends)-1]
		part := b.part(text, all.from, to)
		f := u.post(part)
		part.release()
		all.attempts += f.attempts
		switch n := to - all.from; {
		case f.isTooLarge() && n > 1:
			ends = append(ends, all.from+n/2)
			continue
		case f.isTooLarge():
			f.rejected = []rejection{{0, f.reason, f.err}}
		case f.reason != "":
			all.reason, all.err = f.reason, f.err
			return all
		}
		for _, r := range f.rejected {
			r.index += all.from
			all.rejected = append(all.rejected, r)
		}
		all.from, ends = to, ends[:len(ends)-1]
	}
	return all
}

// post makes the attempts for b, which is the uploader's batch or a part of it, and returns its
// outcome.
func (u *uploader) post(b *batch) outcome {
	ctx := u.queue.ctx
	u.sent, u.attempts, u.lastErr = b, b.tries, nil
	if err := u.queue.throttle.pass(ctx); err != nil {
		return u.undelivered(err)
	}
	if u.queue.conf.gzip && b.packed == nil {
		if err := b.pack(&u.pack); err != nil {
			return u.undelivered(err)
		}
	}
	body := func() (io.Reader, error) { return b.newBody(time.Now()), nil }
	req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodPost, u.queue.conf.url.String(), body)
	if err != nil {
		return u.undelivered(err)
	}
	req.Header = u.queue.conf.header.Clone()
	resp, err := u.http.Do(req)
	var answer []byte
	if resp != nil {
		// Ignore an error of reading the answer: the status alone decides whether the batch is
		// delivered.
		answer, _ = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		resp.Body.Close()
	}
	if err != nil || judge(resp.StatusCode, nil) != delivered {
		return u.undelivered(err)
	}
	return outcome{attempts: u.attempts, rejected: rejections(answer, b.n)}
}

// undelivered returns the outcome of a batch that was not delivered because of err. It also
// serves for a batch that had no attempt.
func (u *uploader) undelivered(err error) outcome {
	f := outcome{attempts: u.attempts}
	var status *StatusError
	switch {
	case errors.As(u.lastErr, &status) && judge(status.Code, nil) == final:
		f.reason, f.err = ReasonRefused, u.lastErr
	case u.queue.ctx.Err() != nil:
		f.reason, f.err = ReasonShutdown, errShutdown
		if u.lastErr != nil {
			f.err = fmt.Errorf("%w; the last attempt: %w", errShutdown, u.lastErr)
		}
	default:
		f.reason, f.err = ReasonExhausted, fmt.Errorf("analytics: gave up after %d attempts: %w", u.attempts, cmp.Or(u.lastErr, err))
	}
	return f
}

// before runs before each attempt. It copies the header because the transport may still be
// writing the header of an attempt that timed out.
func (u *uploader) before(_ retryablehttp.Logger, req *http.Request, retries int) {
	retries += u.sent.tries
	u.attempts = retries + 1
	u.queue.lock()
	u.queue.count.Attempts++
	u.queue.unlock()
	if retries > 0 {
		req.Header = req.Header.Clone()
		req.Header.Set(retryCountHeader, strconv.Itoa(retries))
	}
}

// check runs after each attempt and decides whether another attempt follows.
func (u *uploader) check(ctx context.Context, resp *http.Response, err error) (bool, error) {
	code := 0
	if err == nil {
		code = resp.StatusCode
	}
	v := judge(code, err)
	var met error
	switch {
	case err != nil:
		met = withoutURL(err)
	case v != delivered:
		met = &StatusError{Code: code}
	}
	cause := context.Cause(ctx)
	if err == nil || cause == nil { // do not record an attempt that Shutdown has cut short
		u.lastErr = met
	}
	u.queue.report.attempt(ctx, u.sent.n, u.attempts, met)
	if cause == nil {
		u.queue.outage.noteAttempt(!noConnection(err), outcome{err: met, attempts: u.attempts})
	}
	if v != retry {
		return false, nil
	}
	if err == nil {
		// Read the answer here, to keep the connection open. retryablehttp would read only 4 KB
		// and then close the connection.
		io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	}
	if cause != nil {
		return false, cause
	}
	if wait := retryAfter(resp, time.Now()); wait > 0 {
		u.queue.throttle.pause(wait)
	}
	return !u.probe, nil
}

// wait returns the back-off after a failed attempt, counted from 0. retryablehttp calls wait
// right after check. The next attempt starts when the back-off is over and the throttle is open. A
// Retry-After closes the throttle, so it can delay an attempt, but never shortens the back-off. So a
// collector that asks for one second after each attempt still gets attempts for two minutes on
// average.
func (u *uploader) wait(_, _ time.Duration, attempt int, resp *http.Response) time.Duration {
	u.queue.report.failed(u.lastErr)
	wait := backoff(attempt)
	if resp != nil && resp.StatusCode == http.StatusTooManyRequests {
		u.queue.throttle.pause(wait)
	}
	return wait
}

// settle records the outcome of an uploader's batch. It returns true if the uploader has
// got another batch.
func (u *uploader) settle() bool {
	b := u.batch
	u.queue.settle(b)
	u.queue.lock()
	defer u.queue.unlock()
	u.queue.endUpload(b)
	b.resolve(b.outcome, false)
	if b.outcome.reason == "" && b.n > 0 { // b.n is 0 if the complete batch was damaged
		u.queue.outage.noteTaken()
	}
	b.release()
	return u.advance()
}

// settle counts and reports the outcome of a batch, and removes its file.
func (q *queue) settle(b *batch) {
	q.lock()
	q.count.settle(b)
	q.unlock()
	b.deliveries(q.tell)
	q.remove(b)
}

// tell reports the outcome of messages to the log and to OnDelivery.
func (q *queue) tell(d Delivery) {
	q.report.settled(d)
	if q.conf.onDelivery != nil {
		q.conf.onDelivery(d)
	}
}

// endUpload removes b from the batches under way. q.mu must be held.
func (q *queue) endUpload(b *batch) {
	i := slices.Index(q.uploading, b)
	q.uploading = slices.Delete(q.uploading, i, i+1)
	q.memory -= b.footprint()
	q.uploadingMemory -= b.footprint()
	q.tellRoom()
}

// advance gives the uploader the next batch and returns true, or makes it idle and returns
// false. q.mu must be held.
func (u *uploader) advance() bool {
	u.batch = u.queue.next()
	if u.batch == nil {
		u.queue.idle = append(u.queue.idle, u)
	}
	return u.batch != nil
}

// load reads the text of a batch under way from the disk. It returns true if there is a
// message to send. Otherwise it has set b.outcome: with ReasonDamaged; with
// ReasonExhausted if reading the batch may succeed later; or without a Reason if load has
// already reported every message of the batch as damaged.
func (u *uploader) load(b *batch) bool {
	lost, err := b.seg.Load()
	u.queue.lock()
	u.queue.count.Spooled -= b.n
	if err != nil {
		u.queue.count.Pending += b.n // until the batch is settled
		u.queue.unlock()
		b.outcome = outcome{reason: ReasonDamaged, err: err, attempts: b.tries}
		if damage := (*spool.DamageError)(nil); !errors.As(err, &damage) {
			b.outcome.reason = ReasonExhausted
			u.queue.report.spool(err)
		}
		return false
	}
	b.n, b.size = b.seg.Len(), len(b.seg.Bytes())
	b.onDisk = false
	b.outcome = outcome{attempts: b.tries}
	u.queue.count.Pending += b.n
	u.queue.count.drop(ReasonDamaged, lost)
	u.queue.memory += b.footprint()
	u.queue.uploadingMemory += b.footprint()
	u.queue.unlock()
	if lost > 0 {
		u.queue.tell(Delivery{Count: lost, Attempts: b.tries, Reason: ReasonDamaged, Err: errDamaged})
	}
	return b.n > 0
}

var errDamaged = errors.New("analytics: the message in SpoolDir does not match its checksum")

// persist reports whether b is on disk. If b is in memory alone, because the disk failed
// when b was made or somebody has deleted its file, persist first tries to copy b to the disk.
func (u *uploader) persist(b *batch) bool {
	if b.hasFile() {
		return u.queue.keep(b)
	}
	seg := u.queue.spooler.copy(b)
	if seg == nil {
		return false
	}
	u.queue.lock()
	defer u.queue.unlock()
	b.seg, b.buf = seg, nil
	return true
}

// putBack leaves the uploader's batch on disk alone, because the batch could not be
// delivered or read. It returns true if the uploader has got another batch.
func (u *uploader) putBack() bool {
	b := u.batch
	u.queue.unload(b)
	if b.outcome.isMisdirected() {
		u.queue.report.misdirected(b.outcome.err)
	}
	u.queue.lock()
	defer u.queue.unlock()
	u.queue.endUpload(b)
	u.queue.markSpooled(b)
	b.tries = b.outcome.attempts
	u.queue.spooled = append(u.queue.spooled, b) // behind the others, which b must not hold up
	b.resolve(b.outcome, true)
	if b.outcome.isMisdirected() {
		u.queue.count.Misdirected++
	}
	if b.outcome.reason != ReasonShutdown {
		u.queue.outage.noteDown(b.outcome)
	}
	return u.advance()
}

// rejections returns the calls that an answer to n calls lists as rejected, sorted by
// index. It ignores malformed parts of the answer, because the status has already said
// that the collector took the batch.
func rejections(answer []byte, n int) []rejection {
	if !bytes.Contains(answer, []byte(`"rejected"`)) {
		return nil
	}
	var body struct {
		Rejected []struct {
			Index         int
			Code, Message string
		}
	}
	if json.Unmarshal(answer, &body) != nil {
		return nil
	}
	var list []rejection
	for _, r := range body.Rejected {
		if 0 <= r.Index && r.Index < n {
			list = append(list, rejection{r.Index, ReasonRejected, &RejectedError{Code: r.Code, Message: r.Message}})
		}
	}
	slices.SortStableFunc(list, func(a, b rejection) int { return cmp.Compare(a.index, b.index) })
	return slices.CompactFunc(list, func(a, b rejection) bool { return a.index == b.index })
}

// A transport works around three properties of net/http and retryablehttp.
//   - It has no method CloseIdleConnections. retryablehttp calls that method after every final
//     failure, which would close the connections of all users of a shared transport.
//   - It removes the Location of a redirect. Redirects are not followed, and http.Client
//     would report a malformed Location as if the network had failed.
//   - It closes the connection of a server that switches protocols. The body of such an
//     answer is the bare connection. Neither http.Client.Timeout nor the request's context
//     stops reading it.
type transport struct{ base http.RoundTripper }

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.base.RoundTrip(req)
	switch {
	case resp == nil:
	case resp.StatusCode < 200 && resp.Body != nil:
		resp.Body.Close()
		resp.Body = http.NoBody
	case resp.StatusCode/100 == 3:
		resp.Header.Del("Location")
	}
	return resp, err
}
