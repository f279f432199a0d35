package analyticstest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/hookferry/analytics/internal/memnet"
)

// An exchange is a request that the server answers according to a step.
type exchange struct {
	server *Server
	w      http.ResponseWriter
	r      *http.Request
	batch  *Batch
}

// abort ends the handler without an answer, so http.Server closes the connection.
func abort() {
	panic(http.ErrAbortHandler)
}

// do executes a step.
func (x *exchange) do(step Step) {
	ctx := x.r.Context()
	if step.pause(ctx, x.server.ctx) != nil {
		abort()
	}
	switch step.kind {
	case kindAnswer:
		x.answer(step)
	case kindCut:
		x.cut(step)
	case kindDripped:
		x.drip(step)
	case kindStreamed:
		x.stream(step)
	case kindMisstated:
		x.misstate(step)
	case kindHangReading:
		x.raw(func(net.Conn) { <-x.server.ctx.Done() })
	case kindHang, kindUnreachable:
		select {
		case <-ctx.Done():
		case <-x.server.ctx.Done():
		}
		abort()
	case kindClose:
		_ = x.hijack().Close()
	case kindHalfClose:
		x.halfClose()
	case kindReset, kindResetReading, kindRefuse:
		memnet.Reset(x.hijack())
	case kindRaw:
		x.raw(func(c net.Conn) { _, _ = io.WriteString(c, step.body) })
	case kindEndlessHeader:
		x.raw(endlessHeader)
	case kindEndlessInformational:
		x.endlessInformational()
	default:
		panic("analyticstest: unknown step")
	}
}

// hijack takes the connection over from the HTTP server.
func (x *exchange) hijack() net.Conn {
	c, _, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		abort() // on HTTP/2 this resets the stream
	}
	return c
}

// refuse answers a request whose body is not a batch.
func (x *exchange) refuse() {
	x.answer(Answer(http.StatusBadRequest).WithBody(`{"success":false,"code":"malformed","message":` + quote(x.batch.Err.Error()) + `}`))
}

// content returns the header and the body of an answer.
func (x *exchange) content(step Step) (http.Header, string) {
	header := step.header.Clone()
	if header == nil {
		header = make(http.Header)
	}
	if header.Get("Content-Type") == "" {
		header.Set("Content-Type", "application/json")
	}
	body := step.body
	switch {
	case step.hasBody:
	case len(step.rejected) > 0:
		body = `{"success":true,"rejected":` + rejections(step.rejected) + `}`
	case step.code() == http.StatusOK:
		body = `{"success":true}`
	}
	return header, body
}

// rejections lists rejected calls in the format of this module's collector.
func rejections(indexes []int) string {
	type rejection struct {
		Index   int    `json:"index"`
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	var list []rejection
	for _, i := range indexes {
		list = append(list, rejection{i, "rejected", "the script rejects this call"})
	}
	text, err := json.Marshal(list)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func quote(s string) string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// begin sends the header of the answer that step describes. It returns the body, which
// the caller has to send.
func (x *exchange) begin(step Step) string {
	header, body := x.content(step)
	if step.closes {
		if x.r.ProtoMajor > 1 {
			header.Set("Connection", "close") // the server turns this into GOAWAY
		} else if step.code() != http.StatusNoContent && step.code() != http.StatusNotModified {
			header.Set("Content-Length", strconv.Itoa(len(body))) // without it, the end of the chunked body would come after the connection has closed
		}
	}
	for name, values := range header {
		x.w.Header()[name] = values
	}
	x.server.answered(x.batch, step.code(), step.rejected)
	x.w.WriteHeader(step.code())
	return body
}

func (x *exchange) flush() {
	if http.NewResponseController(x.w).Flush() != nil {
		abort()
	}
}

func (x *exchange) answer(step Step) {
	_, _ = io.WriteString(x.w, x.begin(step))
	if step.closes && x.r.ProtoMajor == 1 {
		x.flush()
		_ = x.hijack().Close()
	}
}

func (x *exchange) drip(step Step) {
	body := x.begin(step)
	x.flush()
	next := Step{delay: step.every}
	for i := range len(body) {
		if next.pause(x.r.Context(), x.server.ctx) != nil {
			abort()
		}
		if _, err := io.WriteString(x.w, body[i:i+1]); err != nil {
			abort()
		}
		x.flush()
	}
}

func (x *exchange) stream(step Step) {
	x.begin(step.WithBody(""))
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
	if x.r.ProtoMajor > 1 {
		x.begin(step.With("Content-Length", strconv.Itoa(step.length)))
		x.flush()
		abort()
	}
	header, body := x.content(step)
	header.Set("Content-Length", strconv.Itoa(step.length))
	// http.Server would correct the wrong Content-Length, so write to the connection
	// directly.
	x.raw(func(c net.Conn) {
		x.server.answered(x.batch, step.code(), step.rejected)
		writeHeader(c, step.code(), header)
		_, _ = io.WriteString(c, body)
	})
}

// raw takes the connection over, calls write with it, and then closes it. A concurrent
// Server.Close closes the connection, so that write fails.
func (x *exchange) raw(write func(net.Conn)) {
	c := x.hijack()
	defer c.Close()
	stop := context.AfterFunc(x.server.ctx, func() { _ = c.Close() })
	defer stop()
	write(c)
}

// writeHeader writes the header of an answer to a connection.
func writeHeader(c net.Conn, status int, header http.Header) {
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %03d %s\r\n", status, http.StatusText(status))
	_ = header.Write(c)
	_, _ = io.WriteString(c, "\r\n")
}

func endlessHeader(c net.Conn) {
	_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n")
	lines := strings.Repeat("X-Padding: "+strings.Repeat("x", 1011)+"\r\n", 16)
	for err == nil {
		_, err = io.WriteString(c, lines)
	}
}

func (x *exchange) endlessInformational() {
	x.w.Header().Set("Link", "</"+strings.Repeat("x", 2000)+">; rel=preload")
	for x.r.Context().Err() == nil && x.server.ctx.Err() == nil {
		x.w.WriteHeader(http.StatusEarlyHints)
	}
	abort()
}

func (x *exchange) cut(step Step) {
	header, body := x.content(step)
	header.Set("Content-Length", strconv.Itoa(max(2, len(body))))
	c := x.hijack()
	x.server.answered(x.batch, step.code(), step.rejected)
	writeHeader(c, step.code(), header)
	_, _ = io.WriteString(c, body[:len(body)/2])
	memnet.Reset(c)
}

func (x *exchange) halfClose() {
	x.raw(func(c net.Conn) {
		if w, ok := c.(interface{ CloseWrite() error }); ok && w.CloseWrite() == nil {
			_, _ = io.Copy(io.Discard, c)
		}
	})
}
