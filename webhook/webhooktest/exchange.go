package webhooktest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/internal/memnet"
)

// An exchange is a request that a receiver is answering.
type exchange struct {
	w       http.ResponseWriter
	req     *http.Request
	request *Request
	conn    net.Conn // the server's end of the connection, with TLS if it uses that
}

// abort ends the handler by a panic that keeps the http.Server from sending an answer of its own.
func abort() {
	panic(http.ErrAbortHandler)
}

// do carries out a step. It does not return if the step ends the connection, or if the connection
// has ended.
func (x *exchange) do(step Step) {
	ctx := x.req.Context()
	if step.pause(ctx) != nil {
		abort()
	}
	switch step.kind {
	case kindAnswer:
		x.answer(step)
	case kindDripped:
		x.drip(step)
	case kindStreamed:
		x.stream(step)
	case kindMisstated:
		x.misstate(step)
	case kindHang:
		<-ctx.Done()
		abort()
	case kindClose:
		x.hangUp()
	case kindReset:
		memnet.Reset(x.conn.(*serverConn).Conn)
		abort()
	case kindRaw:
		_, _ = io.WriteString(x.conn, step.body)
		x.hangUp()
	case kindEndlessHeader:
		x.endlessHeader()
	case kindEndlessInformational:
		x.w.Header().Set("Link", "</"+strings.Repeat("x", 2000)+">; rel=preload")
		for ctx.Err() == nil {
			x.w.WriteHeader(http.StatusEarlyHints)
		}
		abort()
	case kindChoose:
		x.do(step.choose(x.request))
	case kindServe:
		step.handler.ServeHTTP(x.w, x.req)
	default:
		panic("webhooktest: unknown step")
	}
}

// hangUp closes the connection.
func (x *exchange) hangUp() {
	_ = x.conn.Close()
	abort()
}

// writeHeader begins an answer.
func (x *exchange) writeHeader(step Step) {
	h := x.w.Header()
	for name, values := range step.header {
		h[name] = values
	}
	x.w.WriteHeader(step.code())
}

func (x *exchange) flush() {
	if http.NewResponseController(x.w).Flush() != nil {
		abort()
	}
}

func (x *exchange) answer(step Step) {
	if step.closes {
		if x.req.ProtoMajor > 1 {
			x.w.Header().Set("Connection", "close") // becomes GOAWAY
		} else if step.code() != http.StatusNoContent && step.code() != http.StatusNotModified {
			// With a Content-Length, the client knows that the body is complete before the
			// connection ends.
			x.w.Header().Set("Content-Length", strconv.Itoa(len(step.body)))
		}
	}
	x.writeHeader(step)
	_, _ = io.WriteString(x.w, step.body)
	if step.closes && x.req.ProtoMajor == 1 {
		x.flush()
		x.hangUp()
	}
}

func (x *exchange) drip(step Step) {
	x.writeHeader(step)
	x.flush()
	next := Step{delay: step.every}
	for i := 0; step.body == "" || i < len(step.body); i++ {
		if next.pause(x.req.Context()) != nil {
			abort()
		}
		b := []byte{' '}
		if step.body != "" {
			b[0] = step.body[i]
		}
		if _, err := x.w.Write(b); err != nil {
			abort()
		}
		x.flush()
	}
}

func (x *exchange) stream(step Step) {
	x.writeHeader(step)
	chunk := []byte(strings.Repeat("x", 32<<10))
	for left := step.size; left > 0; {
		n, err := x.w.Write(chunk[:min(left, int64(len(chunk)))])
		if err != nil {
			abort()
		}
		left -= int64(n)
	}
}

func (x *exchange) misstate(step Step) {
	length := strconv.Itoa(step.length)
	if x.req.ProtoMajor > 1 {
		x.w.Header().Set("Content-Length", length)
		x.writeHeader(step)
		_, _ = io.WriteString(x.w, step.body)
		x.flush()
		abort()
	}
	// Write the answer without the http.Server, which would correct the length.
	header := step.header.Clone()
	if header == nil {
		header = make(http.Header)
	}
	header.Set("Content-Length", length)
	_, _ = fmt.Fprintf(x.conn, "HTTP/1.1 %03d %s\r\n", step.code(), http.StatusText(step.code()))
	_ = header.Write(x.conn)
	_, _ = io.WriteString(x.conn, "\r\n"+step.body)
	x.hangUp()
}

func (x *exchange) endlessHeader() {
	_, err := io.WriteString(x.conn, "HTTP/1.1 200 OK\r\n")
	lines := strings.Repeat("X-Padding: "+strings.Repeat("x", 1011)+"\r\n", 16)
	for err == nil {
		_, err = io.WriteString(x.conn, lines)
	}
	abort()
}

// pause waits for the Until and the After of the step, or until ctx ends.
func (s Step) pause(ctx context.Context) error {
	if s.until != nil {
		select {
		case <-s.until:
		case <-ctx.Done():
			return ctx.Err()
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
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s Step) code() int {
	if s.status == 0 {
		return http.StatusOK
	}
	return s.status
}
