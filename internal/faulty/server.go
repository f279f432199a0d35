// Package faulty has the parts that the test servers of packages analyticstest and webhooktest
// share: a server that waits for its goroutines, and the answers that a good server never gives.
//
// A function that fails because the client is gone ends the handler by a call of Abort.
package faulty

import (
	"context"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
)

// A Server is an http.Server that can wait for its connections and handlers. Set its fields before
// the call of Start.
type Server struct {
	http.Server
	running sync.WaitGroup // the server, its connections, its handlers, and the goroutines of Go

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]bool
}

// Start serves the connections of l in the background, until Close. It replaces ErrorLog, because
// the steps of a script cause errors on purpose.
func (s *Server) Start(l net.Listener) {
	s.open = make(map[net.Conn]bool)
	s.ErrorLog = log.New(io.Discard, "", 0)
	s.ConnState = s.changed
	next := s.ConnContext
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		s.begin(c)
		if next != nil {
			ctx = next(ctx, c)
		}
		return ctx
	}
	s.running.Go(func() { _ = s.Serve(l) })
}

// Close closes all connections. Call Wait afterwards. Close may be called again.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	_ = s.Server.Close()
}

// Wait waits for the goroutines of the server, after Close.
func (s *Server) Wait() { s.running.Wait() }

// begin counts a goroutine or, if c is not nil, a connection in s.running, and returns true. After
// Close it returns false and counts nothing.
func (s *Server) begin(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	if c != nil {
		s.open[c] = true
	}
	return true
}

// changed is the server's ConnState.
func (s *Server) changed(c net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	s.mu.Lock()
	known := s.open[c]
	delete(s.open, c)
	s.mu.Unlock()
	if known {
		s.running.Done()
	}
}

// Go runs f in a goroutine, for which Wait waits. After Close it returns false and runs nothing.
func (s *Server) Go(f func()) bool {
	begun := s.begin(nil)
	if begun {
		go func() {
			defer s.running.Done()
			f()
		}()
	}
	return begun
}

// Open returns the open connections. It leaves out those that a handler has hijacked.
func (s *Server) Open() []net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.open))
}

// Handle calls serve, for which Wait waits, to answer a request. After Close it aborts the request.
// It logs a panic of serve with the name of the package, because ErrorLog is discarded.
func (s *Server) Handle(name string, serve func()) {
	if !s.begin(nil) {
		Abort()
	}
	defer s.running.Done()
	defer func() {
		v := recover()
		if v != nil && v != http.ErrAbortHandler {
			log.Printf("%s: panic in a step: %v\n%s", name, v, debug.Stack())
		}
		if v != nil {
			Abort()
		}
	}()
	serve()
}
