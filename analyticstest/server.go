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
// With a script of steps, which package step makes, the server answers in other ways, or not at all:
//
//	srv := analyticstest.New(t,
//		step.Answer(503).With("Retry-After", "20").Times(2),
//		step.Hang(),
//		step.Answer(200))
//
// The server accepts the calls of a batch if the status of the answer is 2xx, even if the body of
// the answer is cut off, misstated or dripped. It does not accept them after a step without a status
// of its own, such as step.Raw. An answer of 200 without a body gets {"success":true}, and every
// answer gets the Content-Type of JSON if it has none. The batch of a step that ends the request in
// the middle of its body has an Err and no Calls.
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
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"

	"github.com/hookferry/analytics/internal/faulty"
	"github.com/hookferry/analytics/internal/memnet"
	"github.com/hookferry/analytics/step"
)

// A Server is a collector that stores the calls that it accepts, answers according to its
// script, and forwards nothing. All methods may be called concurrently.
type Server struct {
	listener  *memnet.Listener
	transport *http.Transport
	server    faulty.Server
	script    step.Script

	mu      sync.Mutex // guards the fields below; not held during I/O or a wait
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
// steps; see [step.Refuse]. The last step is repeated forever. Without a script, the server accepts
// every batch.
func New(t interface{ Cleanup(func()) }, script ...step.Step) *Server {
	s := NewServer(script...)
	t.Cleanup(s.Close)
	return s
}

// NewServer does the same as New, but needs no test. The caller must close the server.
func NewServer(script ...step.Step) *Server {
	s := &Server{
		listener: memnet.Listen(&net.TCPAddr{IP: net.IPv4(203, 0, 113, 1), Port: 8080}),
		seen:     make(map[string]bool),
		grown:    make(chan struct{}),
	}
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
	s.server.Close()
	s.transport.CloseIdleConnections()
	s.server.Wait()
}

// SetScript replaces the rest of the script.
func (s *Server) SetScript(script ...step.Step) { s.script.Set(script...) }

// Reject accepts the batch, except for the calls at the given indexes. The answer lists these calls
// in the format of package collector, so that a Client drops them with ReasonRejected. Any other
// answer with such a list has the same effect.
func Reject(indexes ...int) step.Step {
	var list []rejection
	for _, i := range indexes {
		list = append(list, rejection{i, "rejected", "the script rejects this call"})
	}
	return step.Answer(http.StatusOK).WithBody(text(map[string]any{"success": true, "rejected": list}))
}

// A rejection says in the answer to a batch that one of its calls was rejected.
type rejection struct {
	Index   int    `json:"index"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// rejected returns the indexes of the calls that the body of an answer lists as rejected.
func rejected(body string) (indexes []int) {
	var answer struct{ Rejected []rejection }
	if json.Unmarshal([]byte(body), &answer) != nil {
		return nil
	}
	for _, r := range answer.Rejected {
		indexes = append(indexes, r.Index)
	}
	return indexes
}

// text returns v as JSON.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
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
	s.server.Handle("analyticstest", w, r, s.serve)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "batches are posted", http.StatusMethodNotAllowed)
		return
	}
	next, early := s.script.NextIf(step.Step.Early)
	read := (*Batch).read
	if early {
		read = (*Batch).readHalf
	}
	b := newBatch(r, read)
	s.record(b)
	switch {
	case early:
	case b.Err != nil:
		next = step.Answer(http.StatusBadRequest).WithBody(`{"success":false,"code":"malformed","message":` + text(b.Err.Error()) + `}`)
	default:
		next = s.script.Next()
	}
	if next.Status() == http.StatusOK && next.Body() == "" {
		next = next.WithBody(`{"success":true}`)
	}
	next.ServeHTTP(&answer{ResponseWriter: w, server: s, batch: b, body: next.Body()}, r)
}

// An answer is a ResponseWriter that tells the server the status of the answer to a batch.
type answer struct {
	http.ResponseWriter
	server   *Server
	batch    *Batch
	body     string // of the step
	answered bool
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) WriteHeader(status int) {
	if status >= http.StatusOK && !a.answered {
		a.answered = true
		if a.Header().Get("Content-Type") == "" {
			a.Header().Set("Content-Type", "application/json")
		}
		a.server.answered(a.batch, status, rejected(a.body))
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	if !a.answered {
		a.WriteHeader(http.StatusOK)
	}
	return a.ResponseWriter.Write(p)
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

// dial connects a client. If the next step is a connection step, dial takes the step.
func (s *Server) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	next, taken := s.script.NextIf(step.Step.Connects)
	if taken && next.Refuses() {
		host, _, _ := net.SplitHostPort(addr)
		dialing, cancel := s.server.UntilClosed(ctx)
		defer cancel()
		err := next.Dial(dialing, host)
		if dialing.Err() != nil {
			err = memnet.DialError(cmp.Or(ctx.Err(), memnet.ErrRefused))
		}
		return nil, err
	}
	s.mu.Lock()
	s.ports++
	client := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 49152 + s.ports&0x3fff}
	s.mu.Unlock()
	if taken {
		c, accepted := memnet.Pipe(client, s.listener.Addr())
		if !s.server.Go(func(ctx context.Context) { next.Accept(ctx, accepted) }) {
			return nil, memnet.DialError(memnet.ErrRefused)
		}
		return c, nil
	}
	c, err := s.listener.Dial(ctx, client)
	if err != nil {
		return nil, memnet.DialError(err)
	}
	return c, nil
}
