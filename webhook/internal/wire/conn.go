package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"syscall"
	"time"
)

// A conn is one connection. It belongs to one request, or is idle.
type conn struct {
	client *Client
	nc     net.Conn
	raw    syscall.RawConn       // of nc, if that is a socket, and one that is known
	tap    *tap                  // under nc, if that is TLS of our making
	socket bool                  // nc is a socket, or TLS on one: it has deadlines
	limit  *time.Timer           // stands in for a deadline where there is none; made by the first request
	asks   func(fd uintptr) bool // turnAround as a value, which allocates once
	poll   poll                  // reads raw for alive
	one    [1]byte               // what poll reads into
	kept   bool                  // it has served a request
	used   time.Time             // the deadline of the last request

	turn turn
}

func newConn(c *Client, nc net.Conn) *conn {
	cn := &conn{client: c, nc: nc, raw: rawConn(nc)}
	if tc, ok := nc.(*tls.Conn); ok {
		cn.tap, _ = tc.NetConn().(*tap)
	}
	cn.socket = cn.raw != nil || cn.tap != nil && cn.tap.raw != nil
	cn.asks = cn.turnAround
	return cn
}

// rawConn returns the socket of nc. It is nil unless nc is of a type of the net
// package: others may do something of their own with what is read and written.
func rawConn(nc net.Conn) (raw syscall.RawConn) {
	switch s := nc.(type) {
	case *net.TCPConn:
		raw, _ = s.SyscallConn()
	case *net.UnixConn:
		raw, _ = s.SyscallConn()
	}
	return raw
}

// http2 reports whether the two ends have agreed on HTTP/2.
func (cn *conn) http2() bool {
	tc, ok := cn.nc.(*tls.Conn)
	return ok && tc.ConnectionState().NegotiatedProtocol == "h2"
}

// interrupt makes all reads and writes fail, those under way included. It may be
// called at any time. It closes the connection without the close_notify of TLS,
// which could wait for the peer.
func (cn *conn) interrupt() {
	if tc, ok := cn.nc.(*tls.Conn); ok {
		tc.NetConn().Close()
		return
	}
	cn.nc.Close()
}

// forget takes cn off the client's list.
func (cn *conn) forget() {
	cn.client.mu.Lock()
	delete(cn.client.conns, cn)
	cn.client.mu.Unlock()
}

// close ends a connection that is in order. It does not wait: a peer that does not
// read gets no close_notify of TLS.
func (cn *conn) close() {
	switch {
	case cn.tap != nil && cn.tap.raw != nil && canProbe:
		cn.tap.parting = true
	case cn.raw == nil:
		cn.abandon()
		return
	}
	cn.forget()
	cn.nc.Close()
}

// abandon ends a connection that may be in any state.
func (cn *conn) abandon() {
	cn.forget()
	cn.interrupt()
}

var (
	// errStale says that a kept connection had ended, or had something to
	// say, before the request; nothing was written.
	errStale = errors.New("connection was closed while it was idle")
	// errEarly says that a new one spoke first.
	errEarly error = ProtocolError("it came before the request")
	// errInterrupted stands in for the cause of a context that is done.
	errInterrupted = errors.New("interrupted")
)

// exchange writes the request, b.out and then rest, and reads the answer. keep
// reports whether the connection can be used again.
func (cn *conn) exchange(ctx context.Context, deadline time.Time, b *Buffer, rest []byte) (a Answer, keep bool, err error) {
	b.in.begin(cn.nc)
	if !cn.socket {
		// It may have no deadlines, as those of SSH tunnels do not: then it is
		// closed instead.
		cn.endAt(deadline)
		defer func() {
			if !cn.limit.Stop() {
				keep = false
				if err != nil {
					err = ErrTimeout
				}
			}
		}()
	} else if err := cn.nc.SetDeadline(deadline); err != nil {
		return a, false, cn.broken(err)
	}
	if cn.client.aborted.Load() || ctx.Err() != nil {
		return a, false, errInterrupted
	}
	if ctx != cn.client.config.Context {
		stop := context.AfterFunc(ctx, cn.interrupt)
		defer func() { keep = stop() && keep }() // if it cannot be stopped, it may interrupt the next request
	}
	switch {
	case len(b.out)+len(rest) > maxInline:
		return cn.exchangeLarge(b, rest)
	case cn.raw != nil && canProbe:
		err = cn.ask(b, rest)
	default:
		if cn.kept && !cn.alive() {
			return a, false, errStale
		}
		err = writeAll(cn.nc, b.out, rest)
	}
	if err != nil && (err == errStale || err == errEarly || isTimeout(err)) {
		return a, false, err
	}
	// A receiver may answer and close before it has read all: what it said may
	// be there although the write has failed.
	a, keep, rerr := b.in.answer(b.kept[:0])
	if err == nil {
		return a, keep, rerr
	}
	if rerr != nil {
		return a, false, err
	}
	return a, false, nil
}

// endAt interrupts the connection at t, unless cn.limit is stopped before.
func (cn *conn) endAt(t time.Time) {
	if cn.limit == nil {
		cn.limit = time.AfterFunc(time.Until(t), cn.interrupt)
		return
	}
	cn.limit.Reset(time.Until(t))
}

// exchangeLarge is exchange for a request that may not fit into the buffers
// between here and the receiver: the answer is read meanwhile.
func (cn *conn) exchangeLarge(b *Buffer, rest []byte) (a Answer, keep bool, err error) {
	if cn.kept && !cn.alive() {
		return a, false, errStale
	}
	written := make(chan error, 1)
	go func() { written <- writeAll(cn.nc, b.out, rest) }() // waited for below
	a, keep, err = b.in.answer(b.kept[:0])
	if keep && cn.socket {
		// The receiver may have read all before the goroutine comes to say that
		// it was written. If it was not, it is not going to be.
		_ = cn.nc.SetWriteDeadline(time.Unix(1, 0))
		werr := <-written
		return a, werr == nil, err
	}
	select {
	case werr := <-written:
		return a, keep && werr == nil, err
	default:
		// It was answered, or failed, before all of it was sent. The caller
		// abandons the connection too, which does no harm.
		cn.abandon()
		<-written
		return a, false, err
	}
}

// broken returns the error for a connection that failed before its request: errStale
// if it was kept, else err.
func (cn *conn) broken(err error) error {
	if cn.kept {
		return errStale
	}
	return err
}

// alive reports whether a kept connection is open and silent, as far as that
// can be told.
func (cn *conn) alive() bool {
	switch {
	case cn.tap != nil:
		return cn.tap.silent(cn.nc)
	case cn.raw != nil && canProbe:
		_, err := cn.poll.read(cn.raw, cn.one[:])
		return err == errSilent
	}
	return true
}

// writeAll writes two slices, one after the other.
func writeAll(nc net.Conn, first, second []byte) error {
	if len(first) > 0 {
		if _, err := nc.Write(first); err != nil {
			return err
		}
	}
	if len(second) > 0 {
		if _, err := nc.Write(second); err != nil {
			return err
		}
	}
	return nil
}
