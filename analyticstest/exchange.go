package analyticstest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/hookferry/analytics/internal/memnet"
)

// An exchange is a request that is being answered.
type exchange struct {
	server *Server
	w      http.ResponseWriter
	r      *http.Request
	batch  *Batch
}

// abort ends the handler without the server answering in its place.
func abort() {
	panic(http.ErrAbortHandler)
}

// do does step.
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
	case kindGarbage:
		c := x.hijack()
		_, _ = io.WriteString(c, "\x16\x03\x01 this is no answer\r\n\r\n")
		_ = c.Close()
	default:
		panic("analyticstest: unknown step")
	}
}

// hijack takes the connection from the HTTP server.
func (x *exchange) hijack() net.Conn {
	c, _, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		abort() // HTTP/2: the stream is reset
	}
	return c
}

// refuse answers a request that is no batch.
func (x *exchange) refuse() {
	x.answer(Answer(http.StatusBadRequest).WithBody(`{"success":false,"code":"malformed","message":` + quote(x.batch.Err.Error()) + `}`))
}

// header returns the header and the body of an answer.
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

// rejections lists calls as the collector of this module does.
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

func (x *exchange) answer(step Step) {
	header, body := x.content(step)
	for name, values := range header {
		x.w.Header()[name] = values
	}
	x.server.answered(x.batch, step.code(), step.rejected)
	x.w.WriteHeader(step.code())
	_, _ = io.WriteString(x.w, body)
}

func (x *exchange) cut(step Step) {
	header, body := x.content(step)
	header.Set("Content-Length", strconv.Itoa(max(2, len(body))))
	c := x.hijack()
	x.server.answered(x.batch, step.code(), step.rejected)
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %03d %s\r\n", step.code(), http.StatusText(step.code()))
	_ = header.Write(c)
	_, _ = io.WriteString(c, "\r\n"+body[:len(body)/2])
	memnet.Reset(c)
}

func (x *exchange) halfClose() {
	c := x.hijack()
	defer c.Close()
	stop := context.AfterFunc(x.server.ctx, func() { _ = c.Close() })
	defer stop()
	if w, ok := c.(interface{ CloseWrite() error }); !ok || w.CloseWrite() != nil {
		return
	}
	_, _ = io.Copy(io.Discard, c)
}
