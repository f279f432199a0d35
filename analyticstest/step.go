package analyticstest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// A Step says what a [Server] does with one batch request or, if it is a
// connection step ([Refuse], [Unreachable]), with one attempt to connect. The
// zero Step is Answer(200).
//
// The methods return a changed copy:
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
	size     int64         // of a streamed body
	every    time.Duration // from one byte of a dripped body to the next
	closes   bool
	delay    time.Duration
	until    <-chan struct{}
	times    int // how often the step is taken; 0: once
}

// A kind says how a request or a dial is answered.
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

// early reports whether the step acts before the request has been read.
func (k kind) early() bool { return k == kindResetReading || k == kindHangReading }

// dials reports whether the step acts before there is a connection.
func (k kind) dials() bool { return k == kindRefuse || k == kindUnreachable }

// Answer answers with a status, 200 to 599. With a 2xx the calls of the batch
// are taken. The body is {"success":true} for a 200 and none for the others,
// unless WithBody gives another.
func Answer(status int) Step {
	if status < 200 || status > 599 {
		panic(fmt.Sprintf("analyticstest: Answer(%d): the status is not in 200 to 599", status))
	}
	return Step{status: status}
}

// Reject takes the batch, except for the calls at these indexes. It names them in the
// answer as package collector does, so that a Client drops them with ReasonRejected.
func Reject(indexes ...int) Step {
	s := Answer(http.StatusOK)
	s.rejected = slices.Clone(indexes)
	return s
}

// Stream answers 200 with a body of size bytes, sent as fast as the client
// reads and without Content-Length. It takes no memory.
func Stream(size int64) Step { return Step{kind: kindStreamed, size: size} }

// Hang reads the request and never answers. The step ends when the client gives up.
func Hang() Step { return Step{kind: kindHang} }

// HangReading stops reading in the middle of the request's body, and never
// answers. The network in memory buffers 64 KB; a client with a larger body hangs
// while it writes. The connection stays open until the server is closed. The batch
// has an Err and no Calls.
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

// Raw reads the request, sends data in place of an HTTP answer and closes the
// connection. The calls are never taken, even if data is an answer of 200.
func Raw(data string) Step { return Step{kind: kindRaw, body: data} }

// Garbage reads the request, sends bytes that are not HTTP and closes the connection.
// For a 200 with garbage in it, see WithBody.
func Garbage() Step { return Raw("\x16\x03\x01 this is no answer\r\n\r\n") }

// EndlessHeader answers with header lines without end. On HTTP/2 the stream is reset.
func EndlessHeader() Step { return Step{kind: kindEndlessHeader} }

// EndlessInformational answers with 103 Early Hints again and again.
func EndlessInformational() Step { return Step{kind: kindEndlessInformational} }

// Refuse is a connection step: the connection is refused.
//
// A connection step is taken by the next attempt to connect. A request on an open
// connection takes it too, if it comes first. The request is read. With Refuse the
// connection is then reset, and with Unreachable there is no answer. Behind another
// server, such as one of httptest, only requests take connection steps.
func Refuse() Step { return Step{kind: kindRefuse} }

// Unreachable is a connection step: the attempt to connect has no answer, and lasts
// until its context ends. See [Refuse].
func Unreachable() Step { return Step{kind: kindUnreachable} }

// After delays the step. The delay ends when the client gives up.
func (s Step) After(d time.Duration) Step {
	s.delay = d
	return s
}

// Until delays the step until c is closed, or the client gives up.
func (s Step) Until(c <-chan struct{}) Step {
	s.until = c
	return s
}

// Times repeats the step n times before the script goes on. Less than 1 means once.
func (s Step) Times(n int) Step {
	s.times = n
	return s
}

// With adds a header to an answer: Retry-After to a 429 or 503, Location to a
// 307.
func (s Step) With(name, value string) Step {
	s.header = s.header.Clone()
	if s.header == nil {
		s.header = make(http.Header)
	}
	s.header.Add(name, value)
	return s
}

// WithBody gives an answer a body.
func (s Step) WithBody(body string) Step {
	s.body, s.hasBody = body, true
	return s
}

// Cut sends the header and half the body of an answer and resets the
// connection. The status counts: with a 2xx the calls are taken.
func (s Step) Cut() Step {
	s.kind = kindCut
	return s
}

// Drip sends the body of an answer a byte at a time, the first of them an
// interval after the header. The status counts, as for Cut. With an interval longer
// than the client's timeout, the answer hangs in the middle.
func (s Step) Drip(interval time.Duration) Step {
	s.kind = kindDripped
	s.every = interval
	return s
}

// Misstate gives an answer a Content-Length that is not that of its body, and
// closes the connection after it. The status counts, as for Cut. On HTTP/2 the
// stream is reset.
func (s Step) Misstate(length int) Step {
	s.kind = kindMisstated
	s.length = length
	return s
}

// HangUp closes the connection after an answer that does not announce it: the client
// keeps the connection for its next request, and finds it closed. On HTTP/2 the
// connection ends with GOAWAY.
func (s Step) HangUp() Step {
	s.closes = true
	return s
}

// pause waits for the delays of the step. If one of the contexts ends before, it returns
// that context's error.
func (s Step) pause(client, server context.Context) error {
	if s.until != nil {
		select {
		case <-s.until:
		case <-client.Done():
			return client.Err()
		case <-server.Done():
			return server.Err()
		}
	}
	if s.delay <= 0 {
		return nil
	}
	timer := time.NewTimer(s.delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-client.Done():
		return client.Err()
	case <-server.Done():
		return server.Err()
	}
}

func (s Step) code() int {
	if s.status == 0 {
		return http.StatusOK
	}
	return s.status
}
