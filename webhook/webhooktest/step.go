package webhooktest

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/hookferry/analytics/internal/faulty"
)

// A Step says what a [Receiver] does with one request. A connection step (see [Refuse]) says what
// it does with one connection. The zero Step answers 200 without a body.
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
	length  int           // Content-Length that kindMisstated sends
	size    int64         // size of a streamed body, in bytes
	every   time.Duration // interval between the bytes of a dripped body
	delay   time.Duration
	until   <-chan struct{}
	times   int // how often the step is taken; 0: once
	closes  bool
	choose  func(*Request) Step
	handler http.Handler
}

// A kind is the way in which a step answers a request.
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

// A fault is an error of a connection before any request.
type fault uint8

const (
	faultNone fault = iota
	faultRefused
	faultNoSuchHost
	faultUnreachable
	faultReset
	faultStalled
)

// refuses reports whether the fault prevents the connection.
func (f fault) refuses() bool {
	return f == faultRefused || f == faultNoSuchHost || f == faultUnreachable
}

// Answer answers with a status from 200 to 599.
func Answer(status int) Step {
	if status < 200 || status > 599 {
		panic(fmt.Sprintf("webhooktest: Answer(%d): the status is not in 200 to 599", status))
	}
	return Step{status: status}
}

// Redirect answers with a 3xx status and a Location.
func Redirect(status int, location string) Step { return Answer(status).With("Location", location) }

// Stream answers 200 with a body of size bytes, without a Content-Length. It
// sends the body as fast as the client reads, and does not keep it in memory.
func Stream(size int64) Step { return Step{kind: kindStreamed, size: size} }

// Hang reads the request and never answers. The step ends when the client gives up.
func Hang() Step { return Step{kind: kindHang} }

// Close reads the request and closes the connection without an answer.
func Close() Step { return Step{kind: kindClose} }

// Reset reads the request and resets the connection.
func Reset() Step { return Step{kind: kindReset} }

// Raw reads the request, sends data in place of an HTTP answer and closes the connection.
func Raw(data string) Step { return Step{kind: kindRaw, body: data} }

// Garbage reads the request, answers with data that is not HTTP, and closes the connection.
func Garbage() Step { return Raw("\x16\x03\x01 this is not the protocol you are looking for\r\n\r\n") }

// EndlessHeader answers with an endless header. On HTTP/2 it breaks the protocol instead.
func EndlessHeader() Step { return Step{kind: kindEndlessHeader} }

// EndlessInformational answers with 103 Early Hints over and over again.
func EndlessInformational() Step { return Step{kind: kindEndlessInformational} }

// Serve answers with a handler, which may read the body again.
func Serve(h http.Handler) Step { return Step{kind: kindServe, handler: h} }

// Do calls choose with each request that takes the step, and does the Step that choose returns,
// ignoring its Times. choose may be called concurrently. If choose returns a connection step, the
// connection is already open, so the step acts on the request instead; see [Refuse].
func Do(choose func(*Request) Step) Step {
	return Step{kind: kindChoose, choose: choose}
}

// Pick does one of steps at random, each time it is taken. It works like Do. The
// same seed gives the same choices.
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
// The next connection takes a connection step. But if a request on an open connection comes first,
// that request takes the step: the receiver reads the request, and then resets its connection. With
// Stall, the receiver reads the request and never answers it.
func Refuse() Step { return Step{kind: kindReset, fault: faultRefused} }

// NoSuchHost is a connection step: the host name cannot be resolved.
func NoSuchHost() Step { return Step{kind: kindReset, fault: faultNoSuchHost} }

// Unreachable is a connection step: nothing answers, and the dial lasts until its context ends.
func Unreachable() Step { return Step{kind: kindReset, fault: faultUnreachable} }

// ResetEarly is a connection step: the connection is accepted, and reset before
// anything is read from it.
func ResetEarly() Step { return Step{kind: kindReset, fault: faultReset} }

// Stall is a connection step: the connection is accepted, but nothing is read
// from it or written to it. So a TLS handshake hangs, too.
func Stall() Step { return Step{kind: kindHang, fault: faultStalled} }

// After waits for d before the step is done, or until the client gives up.
func (s Step) After(d time.Duration) Step {
	s.delay = d
	return s
}

// Until waits until c is closed before the step is done, or until the client gives
// up. If After is set, too, its time begins when c is closed.
func (s Step) Until(c <-chan struct{}) Step {
	s.until = c
	return s
}

// Times repeats the step: it is taken n times, but at least once, before the next one.
func (s Step) Times(n int) Step {
	s.times = n
	return s
}

// With adds a header to the answer.
func (s Step) With(name, value string) Step {
	s.header = faulty.CloneHeader(s.header)
	s.header.Add(name, value)
	return s
}

// WithBody sets the body of the answer.
func (s Step) WithBody(body string) Step {
	s.body = body
	return s
}

// Drip sends the body of the answer one byte at a time. The first byte comes an interval after the
// header. Without a body, Drip sends spaces until the client gives up.
func (s Step) Drip(interval time.Duration) Step {
	s.kind = kindDripped
	s.every = interval
	return s
}

// Misstate gives the answer a Content-Length that does not fit its body, and
// closes the connection after the answer. On HTTP/2 it resets the stream.
func (s Step) Misstate(length int) Step {
	s.kind = kindMisstated
	s.length = length
	return s
}

// HangUp closes the connection after the answer, without announcing that in the
// header. So a client that keeps the connection finds it closed. On HTTP/1.1 the
// answer has a Content-Length. On HTTP/2 the connection ends with a GOAWAY.
func (s Step) HangUp() Step {
	s.closes = true
	return s
}
