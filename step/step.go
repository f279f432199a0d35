// Package step has the answers that a test wants of a server: good ones, bad ones, and none at all.
// The servers of packages analyticstest and webhooktest take a script of steps:
//
//	srv := analyticstest.New(t,
//		step.Answer(503).With("Retry-After", "120").Times(2),
//		step.Hang(),
//		step.Answer(200))
//
// A [Step] is also an [http.Handler], for any other server:
//
//	web := httptest.NewServer(step.Answer(200).Cut())
package step

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// A Step says what a server does with one request. A connection step (see [Refuse]) says what it
// does with one connection. The zero Step is Answer(200).
//
// Each method with a result of type Step returns a changed copy. Steps may be used concurrently.
type Step struct {
	kind    kind
	status  int // 0: 200
	header  http.Header
	body    string        // of an answer, or the data of Raw
	length  int           // the Content-Length of Misstate
	size    int64         // of the body of Stream, in bytes
	every   time.Duration // interval between the bytes of Drip
	closes  bool          // HangUp
	delay   time.Duration
	until   <-chan struct{}
	times   int // how often a script takes the step; below 1: once
	handler http.Handler
}

// A kind is the way in which a step treats a request or a connection.
type kind uint8

const (
	answer kind = iota
	cut
	drip
	stream
	misstate
	hang
	hangReading
	closed
	halfClose
	reset
	resetReading
	raw
	endlessHeader
	endlessInformational
	serve
	// The connection steps. From resetEarly on, the connection is accepted.
	refuse
	noSuchHost
	unreachable
	resetEarly
	stall
)

// Answer answers with a status from 200 to 599, and panics for other values.
func Answer(status int) Step {
	if status < 200 || status > 599 {
		panic(fmt.Sprintf("step: Answer(%d): the status is not in 200 to 599", status))
	}
	return Step{status: status}
}

// Redirect answers with a 3xx status and a Location.
func Redirect(status int, location string) Step { return Answer(status).With("Location", location) }

// Stream answers 200 with a body of size bytes, without a Content-Length. It sends the body as fast
// as the client reads, and does not keep it in memory.
func Stream(size int64) Step { return Step{kind: stream, size: size} }

// Hang reads the request and never answers. The step ends when the client gives up.
func Hang() Step { return Step{kind: hang} }

// HangReading stops reading in the middle of the request's body, and never answers. A network in
// memory buffers 64 KB, so a client with a larger body hangs while it writes. The connection stays
// open until the server is closed.
//
// A server has read the request before most steps. See [Step.Early] for those that prevent it.
func HangReading() Step { return Step{kind: hangReading} }

// Close reads the request and closes the connection without an answer.
func Close() Step { return Step{kind: closed} }

// HalfClose reads the request and closes the connection for writing, without an answer. It keeps
// reading until the client closes its side.
func HalfClose() Step { return Step{kind: halfClose} }

// Reset reads the request and resets the connection.
func Reset() Step { return Step{kind: reset} }

// ResetReading resets the connection in the middle of the request's body.
func ResetReading() Step { return Step{kind: resetReading} }

// Raw reads the request, sends data in place of an HTTP answer and closes the connection.
func Raw(data string) Step { return Step{kind: raw, body: data} }

// Garbage reads the request, sends data that is not HTTP, and closes the connection. For a valid
// answer with a malformed body, see [Step.WithBody].
func Garbage() Step { return Raw("\x16\x03\x01 this is not the protocol you are looking for\r\n\r\n") }

// EndlessHeader answers with header lines that never end. On HTTP/2 it breaks the protocol instead.
func EndlessHeader() Step { return Step{kind: endlessHeader} }

// EndlessInformational answers with 103 Early Hints forever.
func EndlessInformational() Step { return Step{kind: endlessInformational} }

// Serve answers with a handler. If the server has read the request, the handler can read it again.
func Serve(h http.Handler) Step { return Step{kind: serve, handler: h} }

// Pick does one of steps at random, each time it is taken, ignoring its Times. The same seed gives
// the same choices. Pick panics without steps.
func Pick(seed uint64, steps ...Step) Step {
	if len(steps) == 0 {
		panic("step: Pick of no steps")
	}
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 0))
	return Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		picked := steps[random.IntN(len(steps))]
		mu.Unlock()
		picked.ServeHTTP(w, r)
	}))
}

// Refuse is a connection step: the connection is refused.
//
// Two things can take a connection step: an attempt to connect, or a request on an open connection,
// whichever comes first. If a request takes the step, the server reads the request. It then resets
// the connection; for Unreachable and Stall it never answers. A server that does not see attempts
// to connect, such as one of httptest, does connection steps on requests alone.
func Refuse() Step { return Step{kind: refuse} }

// NoSuchHost is a connection step: the host name cannot be resolved.
func NoSuchHost() Step { return Step{kind: noSuchHost} }

// Unreachable is a connection step: nothing answers, and the attempt to connect lasts until its
// context ends.
func Unreachable() Step { return Step{kind: unreachable} }

// ResetEarly is a connection step: the connection is accepted, and reset before anything is read
// from it.
func ResetEarly() Step { return Step{kind: resetEarly} }

// Stall is a connection step: the connection is accepted, but nothing is read from it or written to
// it. So a TLS handshake hangs, too.
func Stall() Step { return Step{kind: stall} }

// After delays the step by d, or until the client gives up.
func (s Step) After(d time.Duration) Step {
	s.delay = d
	return s
}

// Until delays the step until c is closed, or the client gives up. If After is set, too, its time
// begins when c is closed.
func (s Step) Until(c <-chan struct{}) Step {
	s.until = c
	return s
}

// Times takes the step n times before the script goes on. Less than 1 means once.
func (s Step) Times(n int) Step {
	s.times = n
	return s
}

// With adds a header to an answer.
func (s Step) With(name, value string) Step {
	header := s.header.Clone()
	if header == nil {
		header = make(http.Header)
	}
	header.Add(name, value)
	s.header = header
	return s
}

// WithBody sets the body of an answer.
func (s Step) WithBody(body string) Step {
	s.body = body
	return s
}

// Cut sends the header and half of the body of an answer, and then resets the connection.
func (s Step) Cut() Step {
	s.kind = cut
	return s
}

// Drip sends the body of an answer one byte at a time. The first byte comes an interval after the
// header. Without a body, Drip sends spaces until the client gives up.
func (s Step) Drip(interval time.Duration) Step {
	s.kind, s.every = drip, interval
	return s
}

// Misstate gives an answer a Content-Length that may differ from the length of its body, and closes
// the connection after the body. On HTTP/2 it resets the stream.
func (s Step) Misstate(length int) Step {
	s.kind, s.length = misstate, length
	return s
}

// HangUp closes the connection after an answer, but the answer does not announce that. So the client
// keeps the connection for its next request, and then finds it closed. On HTTP/1.1 the answer has a
// Content-Length. On HTTP/2 the connection ends with GOAWAY.
func (s Step) HangUp() Step {
	s.closes = true
	return s
}

// Status returns the status of an answer, and 0 for a step that gives none.
func (s Step) Status() int {
	if s.kind > misstate {
		return 0
	}
	return cmp.Or(s.status, http.StatusOK)
}

// Body returns what WithBody has set.
func (s Step) Body() string { return s.body }

// Early reports whether the step acts before the request has been read completely.
func (s Step) Early() bool { return s.kind == hangReading || s.kind == resetReading }
