package webhooktest

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// A Step says what a [Receiver] does with one request or, if it is a connection
// step (see [Refuse]), with one connection. The zero Step answers 200 without a
// body.
//
// The methods return a changed copy:
//
//	webhooktest.Answer(503).With("Retry-After", "120").After(2 * time.Second).Times(3)
type Step struct {
	kind    kind
	fault   fault
	status  int // 0: 200
	header  http.Header
	body    string
	length  int           // of the body, as kindMisstated claims
	size    int64         // of a streamed body
	every   time.Duration // from one byte of a dripped body to the next
	delay   time.Duration
	until   <-chan struct{}
	times   int // how often the step is taken; 0: once
	closes  bool
	choose  func(*Request) Step
	handler http.Handler
}

// A kind is what is done with a request.
type kind uint8

const (
	kindAnswer kind = iota
	kindDripped
	kindStreamed
	kindMisstated
	kindHang
	kindClose
	kindReset
	kindRaw
	kindEndlessHeader
	kindEndlessInformational
	kindChoose
	kindServe
)

// A fault is what befalls a connection before any request.
type fault uint8

const (
	faultNone fault = iota
	faultRefused
	faultNoSuchHost
	faultUnreachable
	faultReset
	faultStalled
)

// refuses reports whether there is no connection at all.
func (f fault) refuses() bool {
	return f == faultRefused || f == faultNoSuchHost || f == faultUnreachable
}

// Answer answers with a status, 200 to 599.
func Answer(status int) Step {
	if status < 200 || status > 599 {
		panic(fmt.Sprintf("webhooktest: Answer(%d): the status is not in 200 to 599", status))
	}
	return Step{status: status}
}

// Redirect is Answer with a Location, for a 3xx status.
func Redirect(status int, location string) Step {
	return Answer(status).With("Location", location)
}

// Stream answers 200 with a body of size bytes, sent as fast as the client
// reads and without Content-Length. It takes no memory.
func Stream(size int64) Step {
	return Step{kind: kindStreamed, size: size}
}

// Hang reads the request and never answers. It ends when the client gives up.
func Hang() Step {
	return Step{kind: kindHang}
}

// Close reads the request and closes the connection without an answer.
func Close() Step {
	return Step{kind: kindClose}
}

// Reset reads the request and resets the connection.
func Reset() Step {
	return Step{kind: kindReset}
}

// Raw reads the request, sends data in place of an HTTP answer and closes the
// connection.
func Raw(data string) Step {
	return Step{kind: kindRaw, body: data}
}

// Garbage reads the request, answers with what is not HTTP, and closes the
// connection.
func Garbage() Step {
	return Raw("\x16\x03\x01 this is not the protocol you are looking for\r\n\r\n")
}

// EndlessHeader answers with header lines that do not end. On HTTP/2 they are
// a breach of the protocol.
func EndlessHeader() Step {
	return Step{kind: kindEndlessHeader}
}

// EndlessInformational answers with 103 Early Hints again and again.
func EndlessInformational() Step {
	return Step{kind: kindEndlessInformational}
}

// Serve has a handler answer. It may read the body again.
func Serve(h http.Handler) Step {
	return Step{kind: kindServe, handler: h}
}

// Do calls choose with each request that the step is taken for, and does what
// it returns, whatever its Times. The calls may be concurrent. A connection
// step that it returns comes too late for the connection, and acts on one that
// is open.
func Do(choose func(*Request) Step) Step {
	return Step{kind: kindChoose, choose: choose}
}

// Pick does one of steps, chosen at random each time it is taken, as Do does.
// The same seed gives the same choices.
func Pick(seed uint64, steps ...Step) Step {
	if len(steps) == 0 {
		panic("webhooktest: Pick of no steps")
	}
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 0))
	return Do(func(*Request) Step {
		mu.Lock()
		defer mu.Unlock()
		return steps[random.IntN(len(steps))]
	})
}

// Refuse is a connection step: the connection is refused.
//
// Connection steps are taken by the next connection, or by the next request if
// that comes first, on a connection that is open: such a request is read, and
// the connection then reset; with Stall, the request is never answered.
func Refuse() Step { return Step{kind: kindReset, fault: faultRefused} }

// NoSuchHost is a connection step: the name cannot be resolved.
func NoSuchHost() Step { return Step{kind: kindReset, fault: faultNoSuchHost} }

// Unreachable is a connection step: nobody answers, and the attempt to connect
// lasts until its context ends.
func Unreachable() Step { return Step{kind: kindReset, fault: faultUnreachable} }

// ResetEarly is a connection step: the connection is accepted and reset before
// anything is read.
func ResetEarly() Step { return Step{kind: kindReset, fault: faultReset} }

// Stall is a connection step: the connection is accepted, and nothing is read
// from it or written to it, so that a TLS handshake hangs too.
func Stall() Step { return Step{kind: kindHang, fault: faultStalled} }

// After waits before the step is done, or until the client gives up.
func (s Step) After(d time.Duration) Step {
	s.delay = d
	return s
}

// Until waits for c to be closed before the step is done, or until the client
// gives up. The time of After, if that is set too, begins then.
func (s Step) Until(c <-chan struct{}) Step {
	s.until = c
	return s
}

// Times takes the step n times, at least once, before the script goes on.
func (s Step) Times(n int) Step {
	s.times = n
	return s
}

// With adds a header to an answer.
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
	s.body = body
	return s
}

// Drip sends the body of an answer a byte at a time, the first of them an
// interval after the header; without a body, spaces until the client gives
// up.
func (s Step) Drip(interval time.Duration) Step {
	s.kind = kindDripped
	s.every = interval
	return s
}

// Misstate gives an answer a Content-Length that is not that of its body, and
// closes the connection after it. On HTTP/2 the stream is reset.
func (s Step) Misstate(length int) Step {
	s.kind = kindMisstated
	s.length = length
	return s
}

// HangUp closes the connection after an answer with a given body, without a
// word of it in the header: a client that keeps the connection finds it closed.
// On HTTP/2 the connection is wound up by GOAWAY.
func (s Step) HangUp() Step {
	s.closes = true
	return s
}
