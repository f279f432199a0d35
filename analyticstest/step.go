package analyticstest

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/hookferry/analytics/internal/faulty"
)

// A Step says how a [Server] treats one batch request. A connection step ([Refuse], [Unreachable])
// says how the server treats one attempt to connect. The zero Step is Answer(200).
//
// Each method returns a changed copy:
//
//	analyticstest.Answer(503).With("Retry-After", "120").After(2 * time.Second).Times(3)
type Step struct {
	kind     kind
	status   int // 0: 200
	header   http.Header
	body     string
	hasBody  bool
	rejected []int
	length   int           // the Content-Length of kindMisstated
	size     int64         // size of a streamed body in bytes
	every    time.Duration // time between two bytes of a dripped body
	closes   bool
	delay    time.Duration
	until    <-chan struct{}
	times    int // how often the step is taken; below 1: once
}

// A kind is the way in which a request or an attempt to connect is answered.
type kind uint8

const (
	kindAnswer kind = iota
	kindCut
	kindDripped
	kindStreamed
	kindMisstated
	kindHang
	kindHangReading
	kindClose
	kindHalfClose
	kindReset
	kindResetReading
	kindRaw
	kindEndlessHeader
	kindEndlessInformational
	kindRefuse
	kindUnreachable
)

// early reports whether the step acts before the request has been read completely.
func (k kind) early() bool { return k == kindResetReading || k == kindHangReading }

// dials reports whether the step acts on attempts to connect.
func (k kind) dials() bool { return k == kindRefuse || k == kindUnreachable }

// Answer answers with a status of 200 to 599, and panics for other values. With a 2xx
// status the server accepts the calls of the batch. The body is {"success":true} for 200
// and empty otherwise, unless WithBody sets it.
func Answer(status int) Step {
	if status < 200 || status > 599 {
		panic(fmt.Sprintf("analyticstest: Answer(%d): the status is not in 200 to 599", status))
	}
	return Step{status: status}
}

// Reject accepts the batch, except for the calls at the given indexes. The answer lists these calls
// in the format of package collector, so that a Client drops them with ReasonRejected.
func Reject(indexes ...int) Step {
	s := Answer(http.StatusOK)
	s.rejected = slices.Clone(indexes)
	return s
}

// Stream answers 200 with a body of size bytes, without Content-Length. It sends the
// body as fast as the client reads, and takes little memory.
func Stream(size int64) Step { return Step{kind: kindStreamed, size: size} }

// Hang reads the request and never answers. The step ends when the client gives up.
func Hang() Step { return Step{kind: kindHang} }

// HangReading stops reading in the middle of the request's body, and never answers. The
// network in memory buffers 64 KB, so a client with a larger body hangs while it writes.
// The connection stays open until the server is closed. The batch has an Err and no Calls.
func HangReading() Step { return Step{kind: kindHangReading} }

// Close reads the request and closes the connection without an answer.
func Close() Step { return Step{kind: kindClose} }

// HalfClose reads the request and closes the connection for writing, without an
// answer. It keeps reading until the client closes its side.
func HalfClose() Step { return Step{kind: kindHalfClose} }

// Reset reads the request and resets the connection.
func Reset() Step { return Step{kind: kindReset} }

// ResetReading resets the connection in the middle of the request's body. The
// batch has an Err and no Calls.
func ResetReading() Step { return Step{kind: kindResetReading} }

// Raw reads the request, sends data instead of an HTTP answer and closes the connection.
// The calls are never accepted, even if data is an answer of 200.
func Raw(data string) Step { return Step{kind: kindRaw, body: data} }

// Garbage reads the request, sends bytes that are not HTTP and closes the connection. For a
// valid answer with a malformed body, see WithBody.
func Garbage() Step { return Raw("\x16\x03\x01 this is no answer\r\n\r\n") }

// EndlessHeader answers with header lines that never end. On HTTP/2 it resets the stream.
func EndlessHeader() Step { return Step{kind: kindEndlessHeader} }

// EndlessInformational answers with 103 Early Hints forever.
func EndlessInformational() Step { return Step{kind: kindEndlessInformational} }

// Refuse is a connection step: the connection is refused.
//
// Two things can take a connection step: an attempt to connect, or a request on an open connection,
// whichever comes first. If a request takes the step, the server reads the request. For Refuse it
// then resets the connection, and for Unreachable it does not answer. If the Server is used as a
// handler of another server, such as one of httptest, only requests take connection steps.
func Refuse() Step { return Step{kind: kindRefuse} }

// Unreachable is a connection step: the attempt to connect gets no answer until its context
// ends. See [Refuse].
func Unreachable() Step { return Step{kind: kindUnreachable} }

// After delays the step by d, or until the client gives up.
func (s Step) After(d time.Duration) Step {
	s.delay = d
	return s
}

// Until delays the step until c is closed, or the client gives up.
func (s Step) Until(c <-chan struct{}) Step {
	s.until = c
	return s
}

// Times takes the step n times before the script goes on. Less than 1 means once.
func (s Step) Times(n int) Step {
	s.times = n
	return s
}

// With adds a header to an answer, such as Retry-After for 429 and 503, or Location for 307.
func (s Step) With(name, value string) Step {
	s.header = faulty.CloneHeader(s.header)
	s.header.Add(name, value)
	return s
}

// WithBody sets the body of an answer.
func (s Step) WithBody(body string) Step {
	s.body, s.hasBody = body, true
	return s
}

// Cut sends the header and half of the body of an answer, and then resets the connection.
// The server still accepts the calls if the status of the answer is 2xx.
func (s Step) Cut() Step {
	s.kind = kindCut
	return s
}

// Drip sends the body of an answer one byte at a time, with an interval before each byte.
// The server still accepts the calls if the status is 2xx. If the interval is longer than
// the client's timeout, the client times out between the header and the body.
func (s Step) Drip(interval time.Duration) Step {
	s.kind = kindDripped
	s.every = interval
	return s
}

// Misstate gives an answer a Content-Length that may differ from the length of its body,
// and closes the connection after the body. The server still accepts the calls if the
// status is 2xx. On HTTP/2, Misstate resets the stream.
func (s Step) Misstate(length int) Step {
	s.kind = kindMisstated
	s.length = length
	return s
}

// HangUp closes the connection after an answer, but the answer does not announce that.
// So the client keeps the connection for its next request, and then finds the
// connection closed. On HTTP/2 the connection ends with GOAWAY.
func (s Step) HangUp() Step {
	s.closes = true
	return s
}

// pause waits for the delays of the step. If ctx ends first, it returns the error of ctx.
func (s Step) pause(ctx context.Context) error { return faulty.Pause(ctx, s.until, s.delay) }

func (s Step) code() int { return cmp.Or(s.status, http.StatusOK) }
