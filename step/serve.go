package step

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/internal/faulty"
	"github.com/hookferry/analytics/internal/memnet"
)

// ServeHTTP does the step. It panics with [http.ErrAbortHandler], as handlers may, if the step ends
// the connection, or if the client is gone.
func (s Step) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	if s.pause(ctx) != nil {
		faulty.Abort()
	}
	switch s.kind {
	case answer:
		s.answer(w, r)
	case cut:
		s.cut(w, r)
	case drip:
		s.drip(ctx, w)
	case stream:
		s.writeHeader(w)
		copyBody(w, io.LimitReader(padding{}, s.size))
	case misstate:
		s.misstate(w, r)
	case hangReading:
		onConn(w, r, func(net.Conn) { <-ctx.Done() })
	case hang, unreachable, stall:
		<-ctx.Done()
		faulty.Abort()
	case closed:
		onConn(w, r, func(net.Conn) {})
	case halfClose:
		onConn(w, r, closeWrite)
	case reset, resetReading, refuse, noSuchHost, resetEarly:
		onConn(w, r, memnet.Reset)
	case raw:
		onConn(w, r, func(c net.Conn) { _, _ = io.WriteString(c, s.body) })
	case endlessHeader:
		onConn(w, r, writeEndlessHeader)
	case endlessInformational:
		answerEndlessly(ctx, w)
	case serve:
		s.handler.ServeHTTP(w, r)
	}
}

// pause waits for the Until and then for the After of the step. If ctx ends before, it returns the
// error of ctx.
func (s Step) pause(ctx context.Context) error {
	if s.until != nil {
		select {
		case <-s.until:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return wait(ctx, s.delay)
}

// wait waits for d. If ctx ends before, it returns the error of ctx.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// writeHeader begins an answer.
func (s Step) writeHeader(w http.ResponseWriter) {
	for name, values := range s.header {
		w.Header()[name] = values
	}
	w.WriteHeader(s.Status())
}

func (s Step) answer(w http.ResponseWriter, r *http.Request) {
	if s.closes && r.ProtoMajor > 1 {
		w.Header().Set("Connection", "close") // becomes GOAWAY
	} else if s.closes && s.Status() != http.StatusNoContent && s.Status() != http.StatusNotModified {
		// Without a Content-Length, the end of the chunked body would come after the connection has
		// closed.
		w.Header().Set("Content-Length", strconv.Itoa(len(s.body)))
	}
	s.writeHeader(w)
	_, _ = io.WriteString(w, s.body)
	if s.closes && r.ProtoMajor == 1 {
		flush(w)
		onConn(w, r, func(net.Conn) {})
	}
}

func (s Step) cut(w http.ResponseWriter, r *http.Request) {
	s.With("Content-Length", strconv.Itoa(max(2, len(s.body)))).writeHeader(w)
	_, _ = io.WriteString(w, s.body[:len(s.body)/2])
	flush(w)
	onConn(w, r, memnet.Reset)
}

// misstate writes the body past the HTTP server, which would compare it with the Content-Length.
func (s Step) misstate(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Length", strconv.Itoa(s.length))
	s.writeHeader(w)
	if r.ProtoMajor > 1 {
		_, _ = io.WriteString(w, s.body)
		flush(w)
		faulty.Abort()
	}
	flush(w)
	onConn(w, r, func(c net.Conn) { _, _ = io.WriteString(c, s.body) })
}

func (s Step) drip(ctx context.Context, w http.ResponseWriter) {
	s.writeHeader(w)
	flush(w)
	body := s.body
	for body != "" || s.body == "" {
		next := " "
		if body != "" {
			next, body = body[:1], body[1:]
		}
		if wait(ctx, s.every) != nil {
			faulty.Abort()
		}
		copyBody(w, strings.NewReader(next))
		flush(w)
	}
}

// padding is an endless body.
type padding struct{}

func (padding) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// copyBody writes a body, and aborts if the client is gone.
func copyBody(w http.ResponseWriter, body io.Reader) {
	if _, err := io.Copy(w, body); err != nil {
		faulty.Abort()
	}
}

// flush sends what was written so far.
func flush(w http.ResponseWriter) {
	if http.NewResponseController(w).Flush() != nil {
		faulty.Abort()
	}
}

// onConn calls do with the connection of a request, then closes the connection and aborts. If the
// request's context ends meanwhile, it closes the connection at once, so that do fails. If only
// HTTP/2's stream is known, and not its connection, onConn resets the stream instead.
func onConn(w http.ResponseWriter, r *http.Request, do func(net.Conn)) {
	defer faulty.Abort()
	c := faulty.Conn(r)
	if r.ProtoMajor == 1 {
		c, _, _ = http.NewResponseController(w).Hijack()
	}
	if c == nil {
		return
	}
	defer c.Close()
	stop := context.AfterFunc(r.Context(), func() { _ = c.Close() })
	defer stop()
	do(c)
}

// closeWrite closes a connection for writing, and reads until the client closes its side.
func closeWrite(c net.Conn) {
	if w, ok := c.(interface{ CloseWrite() error }); ok && w.CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, c)
	}
}

// writeEndlessHeader writes an answer whose header never ends, until c fails.
func writeEndlessHeader(c net.Conn) {
	_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n")
	lines := strings.Repeat("X-Padding: "+strings.Repeat("x", 1011)+"\r\n", 16)
	for err == nil {
		_, err = io.WriteString(c, lines)
	}
}

// answerEndlessly answers with 103 Early Hints until ctx ends.
func answerEndlessly(ctx context.Context, w http.ResponseWriter) {
	w.Header().Set("Link", "</"+strings.Repeat("x", 2000)+">; rel=preload")
	for ctx.Err() == nil {
		w.WriteHeader(http.StatusEarlyHints)
	}
	faulty.Abort()
}
