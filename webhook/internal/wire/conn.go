package wire

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

// A conn is one connection. One request uses it, or it is idle.
type conn struct {
	client *Client
	host   *host
	nc     net.Conn    // the tap, or TLS over it
	tap    *tap        // under TLS
	limit  *time.Timer // interrupts the request at its deadline
	kept   bool        // it has served a request

	// Client.mu guards these.
	place *list.Element // in Client.conns
	idle  bool
	used  time.Time // the deadline of its last request
}

// http2 reports whether the two ends have agreed on HTTP/2.
func (cn *conn) http2() bool {
	tc, ok := cn.nc.(*tls.Conn)
	return ok && tc.ConnectionState().NegotiatedProtocol == "h2"
}

// interrupt makes all reads and writes fail, those under way included. It may be
// called at any time. It sends no close_notify of TLS, which could wait for the
// receiver.
func (cn *conn) interrupt() { cn.tap.Close() }

// forget removes cn from the client's list.
func (cn *conn) forget() {
	cn.client.mu.Lock()
	cn.client.conns.Remove(cn.place)
	cn.client.mu.Unlock()
}

// close closes a connection that is in order.
func (cn *conn) close() {
	cn.forget()
	cn.tap.close(cn.nc)
}

// abandon closes a connection that may be in any state.
func (cn *conn) abandon() {
	cn.forget()
	cn.interrupt()
}

var (
	// errStale says that an idle connection had ended, or that the receiver had
	// sent something on it, before the request. Nothing was written.
	errStale = errors.New("connection was closed while it was idle")
	// errEarly says that the receiver sent something before the request.
	errEarly error = ProtocolError("it came before the request")
	// errInterrupted says that the context of the request, or of the Client, is done. Post
	// returns the cause of that context instead.
	errInterrupted = errors.New("interrupted")
)

// maxInline bounds, in bytes, the requests that are put together in one buffer and
// written before the answer is read. That much fits into the buffers of the two
// systems, even if the receiver reads nothing. With more, the write and a receiver
// that answers without reading could wait for each other.
const maxInline = 32 << 10

// exchange writes the request, b.out and then rest, and reads the answer. keep
// reports whether the connection can be used again.
func (cn *conn) exchange(ctx context.Context, deadline time.Time, b *Buffer, rest []byte) (a Answer, keep bool, err error) {
	b.in.begin(cn.nc)
	// A timer costs what a deadline of a socket does, and ends connections that
	// have no deadlines, such as those of SSH tunnels, too.
	if cn.limit == nil {
		cn.limit = time.AfterFunc(time.Until(deadline), cn.interrupt)
	} else {
		cn.limit.Reset(time.Until(deadline))
	}
	defer func() {
		if !cn.limit.Stop() {
			keep = false
			if err != nil {
				err = ErrTimeout
			}
		}
	}()
	if cn.client.aborted.Load() || ctx.Err() != nil {
		return a, false, errInterrupted
	}
	if ctx != cn.client.config.Context {
		stop := context.AfterFunc(ctx, cn.interrupt)
		defer func() { keep = stop() && keep }() // if it cannot be stopped, it may interrupt the next request
	}
	// On a new connection TLS may be in the middle of its own messages.
	if cn.kept || !cn.tap.secure {
		if err := cn.tap.look(cn.nc); err != nil && cn.kept {
			return a, false, errStale
		} else if err != nil {
			return a, false, err
		}
	}
	if len(rest) > 0 {
		return cn.exchangeLarge(b, rest)
	}
	_, err = cn.nc.Write(b.out)
	if isTimeout(err) {
		return a, false, err
	}
	// A receiver may answer and close before it has read the whole request. Its
	// answer may be there although the write failed.
	a, keep, rerr := b.in.answer(b.kept[:0])
	if rerr == nil {
		return a, keep && err == nil, nil
	}
	if err == nil {
		err = rerr
	}
	return a, false, err
}

// exchangeLarge is exchange for a request that may not fit into the buffers between
// here and the receiver: it reads the answer while a goroutine writes.
func (cn *conn) exchangeLarge(b *Buffer, rest []byte) (a Answer, keep bool, err error) {
	written := make(chan error, 1)
	go func() { // waited for below
		_, err := cn.nc.Write(b.out)
		if err == nil {
			_, err = cn.nc.Write(rest)
		}
		written <- err
	}()
	a, keep, err = b.in.answer(b.kept[:0])
	if keep && cn.nc.SetWriteDeadline(time.Unix(1, 0)) == nil {
		// The receiver may have read everything before the goroutine reports that
		// it was written. A write that still waits now ends by the deadline.
		keep = <-written == nil && cn.nc.SetWriteDeadline(time.Time{}) == nil
		return a, keep, err
	}
	select {
	case werr := <-written:
		return a, keep && werr == nil, err
	default:
		// The request was answered, or failed, before all of it was sent.
		cn.interrupt()
		<-written
		return a, false, err
	}
}
