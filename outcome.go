package analytics

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/hookferry/analytics/internal/retryafter"
)

// A Reason says why messages that a Client had accepted were not delivered.
// The list is closed: nothing is dropped for any other reason.
type Reason string

const (
	// ReasonRefused: the collector answered with a status that another
	// attempt would not change, such as 401 for an unknown write key. Err is
	// a *StatusError.
	ReasonRefused Reason = "refused"

	// ReasonRejected: the collector took the batch, but not this call of it.
	// Err is a *RejectedError.
	ReasonRejected Reason = "rejected"

	// ReasonExhausted: eleven attempts failed. Err wraps what the last one
	// met: a *StatusError or an error of the transport. With SpoolDir such
	// messages stay on disk instead, if it takes them.
	ReasonExhausted Reason = "exhausted"

	// ReasonShutdown: the deadline of Shutdown or Close came first. The
	// collector may nevertheless have received messages whose request was
	// under way. With SpoolDir such messages stay on disk instead, if it takes them.
	ReasonShutdown Reason = "shutdown"

	// ReasonDamaged: the disk under SpoolDir has damaged them. The file is
	// set aside.
	ReasonDamaged Reason = "damaged"
)

var reasons = [...]Reason{ReasonRefused, ReasonRejected, ReasonExhausted, ReasonShutdown, ReasonDamaged}

func (r Reason) index() int { return slices.Index(reasons[:], r) }

// A StatusError is an answer of the collector other than 2xx.
type StatusError struct {
	Code int
}

func (e *StatusError) Error() string {
	if text := http.StatusText(e.Code); text != "" {
		return fmt.Sprintf("analytics: the collector answered %d %s", e.Code, text)
	}
	return fmt.Sprintf("analytics: the collector answered %d", e.Code)
}

// A RejectedError says why the collector left one call out of a batch it
// took. Code and Message are the collector's words.
type RejectedError struct {
	Code    string
	Message string
}

func (e *RejectedError) Error() string {
	return fmt.Sprintf("analytics: the collector rejected the call: %.50q: %.200q", e.Code, e.Message)
}

// errShutdown is the cause that cancels uploads at the deadline of Shutdown.
var errShutdown = errors.New("analytics: shut down before delivery")

// An outcome is what became of a batch.
type outcome struct {
	reason   Reason // empty when the collector took the batch
	err      error
	attempts int
	rejected []rejection // by index; only in a batch that was taken
}

type rejection struct {
	index int
	err   *RejectedError
}

// dropped returns how many of the first n messages of the batch were dropped.
func (f *outcome) dropped(n int) int {
	if f.reason != "" {
		return n
	}
	lost := 0
	for _, r := range f.rejected {
		if r.index < n {
			lost++
		}
	}
	return lost
}

// A verdict is what one attempt leads to.
type verdict int

const (
	delivered verdict = iota
	retry
	final
)

// judge turns the result of an attempt into a verdict. Every error of the transport is
// retried: somebody may renew an expired certificate or correct a name within the
// schedule, and otherwise the retries cost ten requests.
func judge(code int, err error) verdict {
	switch {
	case err != nil:
		return retry
	case 200 <= code && code <= 299:
		return delivered
	case code == 408, code == 410, code == 429, code == 460:
		return retry
	case code == 501, code == 505:
		return final
	case 500 <= code && code <= 599:
		return retry
	}
	return final
}

// maxRetryAfter caps what a collector may ask for.
const maxRetryAfter = 300 * time.Second

// retryAfter returns how long the response asks to wait, 0 when it does not.
func retryAfter(resp *http.Response, now time.Time) time.Duration {
	if resp == nil {
		return 0
	}
	wait, _ := retryafter.Parse(resp.Header.Get("Retry-After"), now)
	return min(wait, maxRetryAfter)
}

// noConnection reports whether an attempt failed because there was no connection to the
// collector: it refuses connections, or its name does not resolve.
func noConnection(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}

// withoutURL takes the URL out of an error of http.Client.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
