// Package faulty has the server that the servers of packages analyticstest and webhooktest share. It
// waits for its goroutines, and its handlers may break connections.
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
	running sync.WaitGroup  // the server, its connections, its handlers, and the goroutines of Go
	ctx     context.Context // ends at Close
	cancel  context.CancelFunc

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]bool
}

// connKey is the key of the connection in the context of a request.
type connKey struct{}

// Conn returns the connection of a request that a Server serves, or else nil. With TLS, it is the
// connection above TLS.
func Conn(r *http.Request) net.Conn {
	c, _ := r.Context().Value(connKey{}).(net.Conn)
	return c
}

// Abort ends a handler by a panic, so that the http.Server closes the connection without an answer.
func Abort() { panic(http.ErrAbortHandler) }

// Start serves the connections of l in the background, until Close. It replaces ErrorLog, because
// the steps of a script cause errors on purpose.
func (s *Server) Start(l net.Listener) {
	s.open = make(map[net.Conn]bool)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.ErrorLog = log.New(io.Discard, "", 0)
	s.ConnState = s.changed
	next := s.ConnContext
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		s.begin(c)
		ctx = context.WithValue(ctx, connKey{}, c)
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
	s.cancel()
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

// Go runs f in a goroutine, for which Wait waits. The context of f ends at Close. After Close, Go
// returns false and runs nothing.
func (s *Server) Go(f func(context.Context)) bool {
	begun := s.begin(nil)
	if begun {
		go func() {
			defer s.running.Done()
			f(s.ctx)
		}()
	}
	return begun
}

// UntilClosed returns a context that ends with ctx, or at Close.
func (s *Server) UntilClosed(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// Open returns the open connections. It leaves out those that a handler has hijacked.
func (s *Server) Open() []net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.open))
}

// Handle calls serve, for which Wait waits, to answer a request. The context of serve's request ends
// with that of r, or at Close. After Close, Handle aborts the request. It logs a panic of serve with
// the name of the package, because ErrorLog is discarded.
func (s *Server) Handle(name string, w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
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
	ctx, cancel := s.UntilClosed(r.Context())
	defer cancel()
	serve(w, r.WithContext(ctx))
}
