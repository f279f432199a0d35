package analyticstest

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"

	"github.com/hookferry/analytics/internal/faulty"
	"github.com/hookferry/analytics/internal/memnet"
)

// An exchange is a request that the server answers according to a step. The context of the
// request also ends when the server is closed.
type exchange struct {
	server *Server
	w      http.ResponseWriter
	r      *http.Request
	batch  *Batch
}

// do executes a step.
func (x *exchange) do(step Step) {
	ctx := x.r.Context()
	if step.pause(ctx) != nil {
		faulty.Abort()
	}
	switch step.kind {
	case kindAnswer:
		x.answer(step)
	case kindCut:
		_, body := x.content(step)
		c := x.hijack()
		x.writeAnswer(c, step, max(2, len(body)), body[:len(body)/2])
		memnet.Reset(c)
	case kindDripped:
		body := x.begin(step)
		faulty.Drip(ctx, x.w, step.every, slices.Values([]byte(body)))
	case kindStreamed:
		x.begin(step.WithBody(""))
		faulty.Stream(x.w, step.size)
	case kindMisstated:
		x.misstate(step)
	case kindHangReading:
		x.raw(func(net.Conn) { <-ctx.Done() })
	case kindHang, kindUnreachable:
		<-ctx.Done()
		faulty.Abort()
	case kindClose:
		_ = x.hijack().Close()
	case kindHalfClose:
		x.raw(func(c net.Conn) {
			if w, ok := c.(interface{ CloseWrite() error }); ok && w.CloseWrite() == nil {
				_, _ = io.Copy(io.Discard, c)
			}
		})
	case kindReset, kindResetReading, kindRefuse:
		memnet.Reset(x.hijack())
	case kindRaw:
		x.raw(func(c net.Conn) { _, _ = io.WriteString(c, step.body) })
	case kindEndlessHeader:
		x.raw(func(c net.Conn) { faulty.EndlessHeader(c) })
	case kindEndlessInformational:
		faulty.EndlessInformational(ctx, x.w)
	default:
		panic("analyticstest: unknown step")
	}
}

// hijack takes the connection over from the HTTP server.
func (x *exchange) hijack() net.Conn {
	c, _, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		faulty.Abort() // on HTTP/2 this resets the stream
	}
	return c
}

// content returns the header and the body of an answer.
func (x *exchange) content(step Step) (http.Header, string) {
	header := faulty.CloneHeader(step.header)
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
	return text(list)
}

// text returns v as JSON.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// begin sends the header of the answer that step describes. It returns the body, which
// the caller has to send.
func (x *exchange) begin(step Step) string {
	header, body := x.content(step)
	if step.closes {
		faulty.PrepareHangUp(header, x.r, step.code(), len(body))
	}
	for name, values := range header {
		x.w.Header()[name] = values
	}
	x.server.answered(x.batch, step.code(), step.rejected)
	x.w.WriteHeader(step.code())
	return body
}

func (x *exchange) answer(step Step) {
	_, _ = io.WriteString(x.w, x.begin(step))
	if step.closes && x.r.ProtoMajor == 1 {
		faulty.Flush(x.w)
		_ = x.hijack().Close()
	}
}

func (x *exchange) misstate(step Step) {
	if x.r.ProtoMajor > 1 {
		x.begin(step.With("Content-Length", strconv.Itoa(step.length)))
		faulty.Flush(x.w)
		faulty.Abort()
	}
	_, body := x.content(step)
	x.raw(func(c net.Conn) { x.writeAnswer(c, step, step.length, body) })
}

// writeAnswer writes a faulty answer to a connection. Either the Content-Length is wrong, or the body
// is only a part of the whole one.
func (x *exchange) writeAnswer(c net.Conn, step Step, contentLength int, body string) {
	header, _ := x.content(step)
	x.server.answered(x.batch, step.code(), step.rejected)
	faulty.WriteAnswer(c, step.code(), header, contentLength, body)
}

// raw takes the connection over, calls write with it, and then closes it. If the server is closed
// meanwhile, the connection is closed, too, so that write fails.
func (x *exchange) raw(write func(net.Conn)) {
	c := x.hijack()
	defer c.Close()
	stop := context.AfterFunc(x.r.Context(), func() { _ = c.Close() })
	defer stop()
	write(c)
}
