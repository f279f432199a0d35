package webhooktest

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"

	"github.com/hookferry/analytics/internal/faulty"
	"github.com/hookferry/analytics/internal/memnet"
)

// An exchange is a request that a receiver is answering.
type exchange struct {
	w       http.ResponseWriter
	req     *http.Request
	request *Request
	conn    net.Conn // the server's end of the connection, above TLS if there is TLS
}

// do carries out a step. It does not return if the step ends the connection, or if the connection
// has ended.
func (x *exchange) do(step Step) {
	ctx := x.req.Context()
	if step.pause(ctx) != nil {
		faulty.Abort()
	}
	switch step.kind {
	case kindAnswer:
		x.answer(step)
	case kindDripped:
		x.writeHeader(step)
		body := slices.Values([]byte(step.body))
		if step.body == "" {
			body = func(yield func(byte) bool) {
				for yield(' ') {
				}
			}
		}
		faulty.Drip(ctx, x.w, step.every, body)
	case kindStreamed:
		x.writeHeader(step)
		faulty.Stream(x.w, step.size)
	case kindMisstated:
		x.misstate(step)
	case kindHang:
		<-ctx.Done()
		faulty.Abort()
	case kindClose:
		x.hangUp()
	case kindReset:
		memnet.Reset(x.conn.(*serverConn).Conn)
		faulty.Abort()
	case kindRaw:
		_, _ = io.WriteString(x.conn, step.body)
		x.hangUp()
	case kindEndlessHeader:
		faulty.EndlessHeader(x.conn)
		faulty.Abort()
	case kindEndlessInformational:
		faulty.EndlessInformational(ctx, x.w)
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
	faulty.Abort()
}

// writeHeader begins an answer.
func (x *exchange) writeHeader(step Step) {
	h := x.w.Header()
	for name, values := range step.header {
		h[name] = values
	}
	x.w.WriteHeader(step.code())
}

func (x *exchange) answer(step Step) {
	if step.closes {
		faulty.PrepareHangUp(x.w.Header(), x.req, step.code(), len(step.body))
	}
	x.writeHeader(step)
	_, _ = io.WriteString(x.w, step.body)
	if step.closes && x.req.ProtoMajor == 1 {
		faulty.Flush(x.w)
		x.hangUp()
	}
}

func (x *exchange) misstate(step Step) {
	if x.req.ProtoMajor > 1 {
		x.w.Header().Set("Content-Length", strconv.Itoa(step.length))
		x.writeHeader(step)
		_, _ = io.WriteString(x.w, step.body)
		faulty.Flush(x.w)
		faulty.Abort()
	}
	faulty.WriteAnswer(x.conn, step.code(), step.header, step.length, step.body)
	x.hangUp()
}

// pause waits for the Until and the After of the step, or until ctx ends.
func (s Step) pause(ctx context.Context) error { return faulty.Pause(ctx, s.until, s.delay) }

func (s Step) code() int { return cmp.Or(s.status, http.StatusOK) }
