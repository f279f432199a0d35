// Package analyticstest provides a collector for the tests of programs that
// use package analytics. It runs in the process, on a network in memory:
//
//	func TestSignUp(t *testing.T) {
//		srv := analyticstest.New(t)
//		client := analytics.New("write-key")
//		client.Transport = srv.Transport()
//
//		signUp(client, "ann@example.com") // the code under test
//
//		if err := client.Close(); err != nil {
//			t.Fatal(err)
//		}
//		calls := srv.Calls()
//		if len(calls) != 1 || calls[0].Event != "Signed Up" {
//			t.Errorf("calls = %+v, want one Signed Up", calls)
//		}
//	}
//
// A Client sends in the background. So a test must close the client, call Flush, or wait
// with [Server.Wait] before it looks at the calls.
//
// # Failures
//
// With a script of [Step] values the server answers in other ways, or not at all:
//
//	srv := analyticstest.New(t,
//		analyticstest.Answer(503).With("Retry-After", "20").Times(2),
//		analyticstest.Hang(),
//		analyticstest.Answer(200))
//
// # Time
//
// Reads, writes and waits on the network in memory are durably blocking. So a server made
// within a testing/synctest bubble uses the time of the bubble: waiting a minute for a
// retry takes no real time.
//
// # Real sockets
//
// A [Server] is also an [http.Handler], for a program under test that runs as a process of
// its own or whose transport cannot be set:
//
//	web := httptest.NewServer(srv)
//	defer web.Close()
//
// The server then listens at web.URL. All steps work there, except connection steps.
//
// # Analytics off
//
// To send nothing, in development or in tests of other things, give the client the transport
// [Discard]. The code that makes calls does not change, and invalid calls still return errors.
package analyticstest

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"

	"github.com/hookferry/analytics/internal/faulty"
	"github.com/hookferry/analytics/internal/memnet"
)

// A Server is a collector that stores the calls that it accepts, answers according to its
// script, and forwards nothing. All methods may be called concurrently.
type Server struct {
	listener  *memnet.Listener
	transport *http.Transport
	server    faulty.Server
	ctx       context.Context // ends at Close
	cancel    context.CancelFunc

	mu      sync.Mutex // guards the fields below; not held during I/O or a wait
	script  []Step     // never empty
	taken   int        // how often the first step of script was taken
	batches []*Batch
	calls   []Call
	seen    map[string]bool // messageIds of the calls
	grown   chan struct{}   // closed when batches or calls grow, and then replaced
	ports   int             // number of client ports handed out
}

// New returns a server that is closed when the test ends. t is a *testing.T or similar.
// Within a synctest bubble, pass the t of the bubble.
//
// Each batch request takes the next step of the script. Attempts to connect take only connection
// steps; see [Refuse]. The last step is repeated forever. Without a script, the server accepts
// every batch.
func New(t interface{ Cleanup(func()) }, script ...Step) *Server {
	s := NewServer(script...)
	t.Cleanup(s.Close)
	return s
}

// NewServer does the same as New, but needs no test. The caller must close the server.
func NewServer(script ...Step) *Server {
	s := &Server{
		listener: memnet.Listen(&net.TCPAddr{IP: net.IPv4(203, 0, 113, 1), Port: 8080}),
		seen:     make(map[string]bool),
		grown:    make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.SetScript(script...)
	s.transport = &http.Transport{
		DialContext:         s.dial,
		DialTLSContext:      s.dial, // net/http expects a connection after its TLS handshake here, so https works without TLS
		MaxIdleConnsPerHost: 64,
	}
	s.server.Handler = s
	s.server.Start(s.listener)
	return s
}

// Transport returns the transport for clients of the server. The transport reaches the
// server under any host name, with https as well as http. So a client needs no Endpoint.
// Each call of Transport returns the same transport, which clients may share.
func (s *Server) Transport() *http.Transport { return s.transport }

// Close closes all connections and waits for the server's goroutines. Calls and Batches
// still return what the server has received. After Close the network in memory refuses
// connections. If the Server is the handler of another server, it then closes the
// connection of each request, and sends no answer. Close may be called again.
func (s *Server) Close() {
	s.cancel()
	s.server.Close()
	s.transport.CloseIdleConnections()
	s.server.Wait()
}

// SetScript replaces the rest of the script.
func (s *Server) SetScript(script ...Step) {
	if len(script) == 0 {
		script = []Step{Answer(http.StatusOK)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = slices.Clone(script)
	s.taken = 0
}

// Calls returns the accepted calls in order: the calls of batches that were answered with 2xx,
// without those that [Reject] left out. Of several calls with the same messageId, Calls returns
// only the first. All results share their maps and slices, so the caller must not change them.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Batches returns all batch requests received so far, accepted or not, in the order in
// which the server read them. Each attempt of a client is a batch of its own. All results
// share their maps and slices, so the caller must not change them.
func (s *Server) Batches() []Batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Batch, len(s.batches))
	for i, b := range s.batches {
		list[i] = *b
	}
	return list
}

// Wait waits until n calls have been accepted, and returns Calls. If ctx ends first, the
// error wraps ctx.Err().
func (s *Server) Wait(ctx context.Context, n int) ([]Call, error) {
	err := s.wait(ctx, n, "calls taken", func() int { return len(s.calls) })
	return s.Calls(), err
}

// WaitBatches waits until n batch requests have been received, and returns Batches. The
// requests may not have been answered yet. If ctx ends first, the error wraps ctx.Err().
func (s *Server) WaitBatches(ctx context.Context, n int) ([]Batch, error) {
	err := s.wait(ctx, n, "batches received", func() int { return len(s.batches) })
	return s.Batches(), err
}

// wait waits until count returns n or more. It calls count with s.mu held.
func (s *Server) wait(ctx context.Context, n int, what string, count func() int) error {
	for {
		s.mu.Lock()
		have, grown := count(), s.grown
		s.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return fmt.Errorf("analyticstest: %d of %d %s: %w", have, n, what, ctx.Err())
		}
	}
}

// ServeHTTP answers a batch request from the network in memory or from another server.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.server.Handle("analyticstest", func() {
		ctx, cancel := s.untilClosed(r.Context())
		defer cancel()
		s.serve(w, r.WithContext(ctx))
	})
}

// untilClosed returns a context that ends with ctx, or when s is closed.
func (s *Server) untilClosed(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "batches are posted", http.StatusMethodNotAllowed)
		return
	}
	x := &exchange{server: s, w: w, r: r}
	step, early := s.take(func(step Step) bool { return step.kind.early() })
	if early {
		x.batch = newBatch(r, (*Batch).readHalf)
		s.record(x.batch)
		x.do(step)
		return
	}
	x.batch = newBatch(r, (*Batch).read)
	s.record(x.batch)
	if err := x.batch.Err; err != nil {
		x.answer(Answer(http.StatusBadRequest).WithBody(`{"success":false,"code":"malformed","message":` + text(err.Error()) + `}`))
		return
	}
	step, _ = s.take(func(Step) bool { return true })
	x.do(step)
}

// take returns the next step and advances the script, but only if want accepts the step.
func (s *Server) take(want func(Step) bool) (Step, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	step := s.script[0]
	if !want(step) {
		return Step{}, false
	}
	s.taken++
	if s.taken >= step.times && len(s.script) > 1 {
		s.script = s.script[1:]
		s.taken = 0
	}
	return step, true
}

// record stores a batch that was received.
func (s *Server) record(b *Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batches = append(s.batches, b)
	b.Number = len(s.batches)
	s.grow()
}

// answered records the status of the answer to b. If it is 2xx, the server accepts the
// calls of b, except for those in leftOut.
func (s *Server) answered(b *Batch, status int, leftOut []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.Status = status
	if status/100 != 2 {
		return
	}
	for i, c := range b.Calls {
		if slices.Contains(leftOut, i) || c.MessageId != "" && s.seen[c.MessageId] {
			continue
		}
		s.seen[c.MessageId] = true
		s.calls = append(s.calls, c)
	}
	s.grow()
}

// grow tells the callers of wait to call count again, because the server has received
// or accepted something. s.mu must be held.
func (s *Server) grow() {
	close(s.grown)
	s.grown = make(chan struct{})
}

// dial connects a client. If the next step is a connection step, dial takes the step and
// fails as it says.
func (s *Server) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	step, fails := s.take(func(step Step) bool { return step.kind.dials() })
	if fails {
		pausing, cancel := s.untilClosed(ctx)
		defer cancel()
		if err := step.pause(pausing); err != nil {
			return nil, memnet.DialError(err)
		}
		if step.kind == kindUnreachable {
			<-pausing.Done()
		}
		return nil, memnet.DialError(cmp.Or(ctx.Err(), memnet.ErrRefused))
	}
	s.mu.Lock()
	s.ports++
	client := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 49152 + s.ports&0x3fff}
	s.mu.Unlock()
	c, err := s.listener.Dial(ctx, client)
	if err != nil {
		return nil, memnet.DialError(err)
	}
	return c, nil
}
