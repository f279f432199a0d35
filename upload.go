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
	// maxAnswer is how much is read of an answer: enough for a rejection of
	// every call of a batch. The connection of a longer answer is closed.
	maxAnswer = 1 << 20

	retryCountHeader = "X-Retry-Count"
)

// An uploader sends one batch at a time, with retries.
type uploader struct {
	*queue
	http retryablehttp.Client
	pack packer

	batch    *batch
	attempts int   // attempts made for it, with those before it was put on disk
	probe    bool  // there is one attempt only, because the collector is down
	lastErr  error // what the latest attempt met
}

func newUploader(q *queue) *uploader {
	u := &uploader{queue: q}
	u.http = retryablehttp.Client{
		HTTPClient: &http.Client{
			Transport: transport{q.conf.transport},
			Timeout:   q.conf.timeout,
		},
		Logger:         nil, // or it would log to standard error
		RetryMax:       maxRetries,
		RequestLogHook: u.before,
		CheckRetry:     u.check,
		Backoff:        u.wait,
		PrepareRetry:   func(req *http.Request) error { return q.gate.pass(req.Context()) },
		ErrorHandler:   retryablehttp.PassthroughErrorHandler,
	}
	return u
}

// run sends its batch and then whatever is due, until nothing is.
func (u *uploader) run() {
	for more := true; more; {
		b := u.batch
		if !b.onDisk || u.load(b) {
			b.outcome = u.send()
		}
		if r := b.outcome.reason; (r == ReasonExhausted || r == ReasonShutdown) && u.persist(b) {
			more = u.putBack()
		} else {
			more = u.settle()
		}
	}
}

// send makes the attempts for the batch.
func (u *uploader) send() outcome {
	b, ctx := u.batch, u.ctx
	u.attempts, u.lastErr = b.tries, nil
	u.probe = u.outage.isDown()
	if err := u.gate.pass(ctx); err != nil {
		return u.undelivered(err)
	}
	if u.conf.gzip && b.packed == nil {
		if err := b.pack(&u.pack); err != nil {
			return u.undelivered(err)
		}
	}
	body := func() (io.Reader, error) { return b.newBody(time.Now()), nil }
	req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodPost, u.conf.url.String(), body)
	if err != nil {
		return u.undelivered(err)
	}
	req.Header = u.conf.header.Clone()
	resp, err := u.http.Do(req)
	var answer []byte
	if resp != nil {
		// The status has decided; an answer that breaks off changes nothing.
		answer, _ = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		resp.Body.Close()
	}
	if err != nil || judge(resp.StatusCode, nil) != delivered {
		return u.undelivered(err)
	}
	return outcome{attempts: u.attempts, rejected: rejections(answer, b.n)}
}

// undelivered is the outcome of a batch after its last attempt, if it had any.
func (u *uploader) undelivered(err error) outcome {
	f := outcome{attempts: u.attempts}
	var status *StatusError
	switch {
	case errors.As(u.lastErr, &status) && judge(status.Code, nil) == final:
		f.reason, f.err = ReasonRefused, u.lastErr
	case u.ctx.Err() != nil:
		f.reason, f.err = ReasonShutdown, errShutdown
		if u.lastErr != nil {
			f.err = fmt.Errorf("%w; the last attempt: %w", errShutdown, u.lastErr)
		}
	default:
		f.reason, f.err = ReasonExhausted, fmt.Errorf("analytics: gave up after %d attempts: %w", u.attempts, cmp.Or(u.lastErr, err))
	}
	return f
}

// before runs before each attempt. The header is copied because the transport
// may still be writing that of an attempt that timed out.
func (u *uploader) before(_ retryablehttp.Logger, req *http.Request, retries int) {
	retries += u.batch.tries
	u.attempts = retries + 1
	u.lock()
	u.count.Attempts++
	u.unlock()
	if retries > 0 {
		req.Header = req.Header.Clone()
		req.Header.Set(retryCountHeader, strconv.Itoa(retries))
	}
}

// check decides after each attempt whether there is another.
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
	if err == nil || cause == nil { // not an attempt that Shutdown has cut short
		u.lastErr = met
	}
	u.report.attempt(ctx, u.batch.n, u.attempts, met)
	if cause == nil {
		u.outage.noteAttempt(!noConnection(err), outcome{err: met, attempts: u.attempts})
	}
	if v != retry {
		return false, nil
	}
	if err == nil {
		// retryablehttp would read 4 KB and then give up the connection.
		io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	}
	if cause != nil {
		return false, cause
	}
	if wait := retryAfter(resp, time.Now()); wait > 0 {
		u.gate.pause(wait)
	}
	return !u.probe, nil
}

// wait returns how long to wait after a failed attempt, counted from 0. It is
// called right after check. The batch goes on once that time is over and the
// gate is open, so a Retry-After is a floor under the schedule: a collector
// that asks for one second ten times over is not given up after ten.
func (u *uploader) wait(_, _ time.Duration, attempt int, resp *http.Response) time.Duration {
	u.report.failed(u.lastErr)
	wait := backoff(attempt)
	if resp != nil && resp.StatusCode == http.StatusTooManyRequests {
		u.gate.pause(wait)
	}
	return wait
}

// settle records the outcome of an uploader's batch. It reports whether the uploader has
// another batch.
func (u *uploader) settle() bool {
	b := u.batch
	u.lock()
	u.count.settle(b)
	u.unlock()

	b.deliveries(u.tell)
	u.remove(b)

	u.lock()
	defer u.unlock()
	u.endUpload(b)
	b.resolve(b.outcome, false)
	if b.outcome.reason == "" && b.n > 0 { // 0: all of it was damaged
		u.outage.noteTaken()
	}
	b.release()
	return u.advance()
}

// tell reports what became of messages.
func (u *uploader) tell(d Delivery) {
	u.report.settled(d)
	if u.conf.onDelivery != nil {
		u.conf.onDelivery(d)
	}
}

// endUpload takes b off the batches that are under way. q.mu is held.
func (u *uploader) endUpload(b *batch) {
	i := slices.Index(u.uploading, b)
	u.uploading = slices.Delete(u.uploading, i, i+1)
	u.memory -= b.footprint()
	u.uploadingMemory -= b.footprint()
	u.tellRoom()
}

// advance gives an uploader the next batch, or makes it idle and returns false. q.mu is held.
func (u *uploader) advance() bool {
	u.batch = u.next()
	if u.batch == nil {
		u.idle = append(u.idle, u)
	}
	return u.batch != nil
}

// load reads the text of a batch under way from the disk. It reports whether there
// is anything to send; if not, it has set b.outcome: damaged, or exhausted if the batch
// can be read at another time.
func (u *uploader) load(b *batch) bool {
	lost, err := b.seg.Load()
	u.lock()
	u.count.Spooled -= b.n
	if err != nil {
		u.count.Pending += b.n // until it is settled
		u.unlock()
		b.outcome = outcome{reason: ReasonDamaged, err: err, attempts: b.tries}
		if damage := (*spool.DamageError)(nil); !errors.As(err, &damage) {
			b.outcome.reason = ReasonExhausted
			u.report.spool(err)
		}
		return false
	}
	b.n, b.size = b.seg.Len(), len(b.seg.Bytes())
	b.onDisk = false
	b.outcome = outcome{attempts: b.tries}
	u.count.Pending += b.n
	u.count.drop(ReasonDamaged, lost)
	u.memory += b.footprint()
	u.uploadingMemory += b.footprint()
	u.unlock()
	if lost > 0 {
		u.tell(Delivery{Count: lost, Attempts: b.tries, Reason: ReasonDamaged, Err: errDamaged})
	}
	return b.n > 0
}

var errDamaged = errors.New("analytics: the message in SpoolDir does not match its checksum")

// persist reports whether b is on disk and can stay there. If b is in memory alone, because
// the disk failed when b was made, persist tries to copy it to the disk.
func (u *uploader) persist(b *batch) bool {
	if b.hasFile() {
		return true
	}
	seg := u.spooler.copy(b)
	if seg == nil {
		return false
	}
	u.lock()
	defer u.unlock()
	b.seg, b.buf = seg, nil
	return true
}

// putBack leaves a batch that was not delivered, or could not be read now, on disk alone. It
// reports whether its uploader has another batch.
func (u *uploader) putBack() bool {
	b := u.batch
	u.unload(b)
	u.lock()
	defer u.unlock()
	u.endUpload(b)
	u.markSpooled(b)
	b.tries = b.outcome.attempts
	u.spooled = slices.Insert(u.spooled, 0, b)
	b.resolve(b.outcome, true)
	if b.outcome.reason == ReasonExhausted {
		u.outage.noteDown(b.outcome)
	}
	return u.advance()
}

// rejections returns the calls that an answer to n calls lists as rejected, by index.
// It ignores whatever is malformed: the status has said that the batch was taken.
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
			list = append(list, rejection{r.Index, &RejectedError{Code: r.Code, Message: r.Message}})
		}
	}
	slices.SortStableFunc(list, func(a, b rejection) int { return cmp.Compare(a.index, b.index) })
	return slices.CompactFunc(list, func(a, b rejection) bool { return a.index == b.index })
}

// A transport works around three properties of net/http and retryablehttp.
//   - It has no CloseIdleConnections. retryablehttp calls that after every final
//     failure, and it would close the connections of all users of a shared transport.
//   - It removes the Location of a redirect. Redirects are not followed, and http.Client
//     would report a malformed Location as if the network had failed.
//   - It closes the connection of a server that switches protocols. The body of such an
//     answer is the bare connection, and neither http.Client.Timeout nor the request's
//     context ends reading it.
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
