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

// A Reason says why a Client did not deliver messages that it had accepted. There are no
// other reasons than those below.
type Reason string

const (
	// ReasonRefused: the collector answered with a status for which the client does not
	// retry, because another attempt would not change it. An example is 401 for an
	// unknown write key. A 413 for a batch, often a proxy's limit, refuses only those calls
	// that are too large alone. Err is a *StatusError. With SpoolDir, messages stay on disk
	// instead if the answer says nothing about them, unless the disk refuses them.
	ReasonRefused Reason = "refused"

	// ReasonRejected: the collector took the batch, but not this call of it.
	// Err is a *RejectedError.
	ReasonRejected Reason = "rejected"

	// ReasonExhausted: eleven attempts failed. Err wraps the error of the last one, a
	// *StatusError or an error of the transport. With SpoolDir such messages stay on disk
	// instead, unless the disk refuses them.
	ReasonExhausted Reason = "exhausted"

	// ReasonShutdown: the deadline of Shutdown or Close passed before delivery. If a
	// request was under way, the collector may have received its messages. With SpoolDir
	// such messages stay on disk instead, unless the disk refuses them.
	ReasonShutdown Reason = "shutdown"

	// ReasonDamaged: the disk under SpoolDir has damaged the messages, and their file is set
	// aside; or somebody has deleted their file.
	ReasonDamaged Reason = "damaged"
)

var reasons = [...]Reason{ReasonRefused, ReasonRejected, ReasonExhausted, ReasonShutdown, ReasonDamaged}

func (r Reason) index() int { return slices.Index(reasons[:], r) }

// A StatusError says that the collector answered with a status other than 2xx.
type StatusError struct {
	Code int
}

func (e *StatusError) Error() string {
	if text := http.StatusText(e.Code); text != "" {
		return fmt.Sprintf("analytics: the collector answered %d %s", e.Code, text)
	}
	return fmt.Sprintf("analytics: the collector answered %d", e.Code)
}

// A RejectedError says why the collector rejected one call of a batch that it accepted.
// Code and Message come from the collector.
type RejectedError struct {
	Code    string
	Message string
}

func (e *RejectedError) Error() string {
	return fmt.Sprintf("analytics: the collector rejected the call: %.50q: %.200q", e.Code, e.Message)
}

// errShutdown is the cause with which Shutdown cancels uploads at its deadline.
var errShutdown = errors.New("analytics: shut down before delivery")

// An outcome is the final result of a batch.
type outcome struct {
	reason   Reason // empty if the collector took the batch
	err      error
	attempts int
	from     int         // reason and err hold from this message on; the collector took those before
	rejected []rejection // messages with an outcome of their own, of those taken; sorted by index
}

type rejection struct {
	index  int
	reason Reason
	err    error
}

// isTooLarge reports whether the batch was refused because of its size.
func (f *outcome) isTooLarge() bool {
	var status *StatusError
	return f.reason == ReasonRefused && errors.As(f.err, &status) && status.Code == http.StatusRequestEntityTooLarge
}

// isMisdirected reports whether the batch was refused by an answer that says nothing about its
// messages.
func (f *outcome) isMisdirected() bool {
	var status *StatusError
	return f.reason == ReasonRefused && errors.As(f.err, &status) && misdirected(status.Code)
}

// misdirected reports whether a status says that a request came with a wrong key, or to a wrong
// place. A proxy answers so while it has no collector to pass the request to. The same messages
// may be taken once the key or the place is right.
func misdirected(code int) bool {
	switch code {
	case 401, 403, 404, 405, 407:
		return true
	}
	return 300 <= code && code <= 399
}

// dropped returns how many of the first n messages of the batch were dropped.
func (f *outcome) dropped(n int) int {
	lost := 0
	if f.reason != "" {
		lost = max(0, n-f.from)
	}
	for _, r := range f.rejected {
		if r.index < n {
			lost++
		}
	}
	return lost
}

// A verdict is the consequence of one attempt.
type verdict int

const (
	delivered verdict = iota
	retry
	final
)

// judge turns the result of an attempt into a verdict. It retries every error of the
// transport, even one such as an expired certificate or a wrong host name, because an
// operator may correct that before the last attempt. Needless retries cost only ten
// requests.
func judge(code int, err error) verdict {
	switch {
	case err != nil:
		return retry
	case 200 <= code && code <= 299:
		return delivered
	case code == 501, code == 505:
		return final
	case code == 408, code == 410, code == 429, code == 460, 500 <= code && code <= 599:
		return retry
	}
	return final
}

// maxRetryAfter bounds the wait that a collector can request.
const maxRetryAfter = 300 * time.Second

// retryAfter returns how long the response asks the client to wait, or 0.
func retryAfter(resp *http.Response, now time.Time) time.Duration {
	if resp == nil {
		return 0
	}
	wait, _ := retryafter.Parse(resp.Header.Get("Retry-After"), now)
	return min(wait, maxRetryAfter)
}

// noConnection reports whether an attempt failed because no connection to the collector
// could be made: the collector refuses connections, or its name does not resolve.
func noConnection(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}

// withoutURL removes the URL from an error of http.Client.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
