package wire

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// A conn is one connection. It is either idle, or in use by one request.
type conn struct {
	client *Client
	nc     net.Conn    // the peekConn, or a TLS connection over the peekConn
	peek   *peekConn   // the peekConn, below TLS
	limit  *time.Timer // interrupts the request at its deadline
	stop   func() bool // keeps the end of Config.Context from interrupting the connection
	kept   bool        // the connection has served a request before

	// A connection of net/http has only the fields above named client and kept, and these. It may be in
	// use by several requests.
	shared *http.ClientConn // nil for a connection of this package
	key    key              // of the Targets that it serves
	filter *filter          // below shared; nil with HTTP/2, and with TLS through a proxy
	http2  atomic.Bool      // an answer by HTTP/2 has come

	// Client.mu guards these, and kept if net/http has the connection.
	users        int       // requests in progress on shared
	used         time.Time // the deadline of its last request
	host         *host     // while it is idle
	older, newer *conn     // its neighbours in Client.idle
}

// interrupt makes all reads and writes fail, including those in progress. It may be called at any
// time, and sends no close_notify, which could block on the receiver.
func (cn *conn) interrupt() { cn.peek.Close() }

// close closes a connection that is in order, with a close_notify if it uses TLS.
func (cn *conn) close() {
	if cn.shared != nil {
		cn.shared.Close()
		return
	}
	cn.stop()
	cn.peek.close(cn.nc)
}

// abandon closes a connection that may be in any state.
func (cn *conn) abandon() {
	cn.stop()
	cn.interrupt()
}

var (
	// errStale says that an idle connection had ended before the request, or that the receiver had
	// sent something on it. Nothing was written.
	errStale       = errors.New("connection was closed while it was idle")
	errEarly error = ProtocolError("it came before the request")
)

// maxInline is the largest request, in bytes, that is written before the answer is read. That much
// fits into the socket buffers of both ends. A larger request could deadlock with a receiver that
// answers without reading: each side would wait for the other to read.
const maxInline = 32 << 10

// exchange writes the request, first b.out and then rest, and reads the answer. keep
// reports whether the connection can be used again.
func (cn *conn) exchange(ctx context.Context, deadline time.Time, b *Buffer, rest []byte) (a Answer, keep bool, err error) {
	b.in.begin(cn.nc)
	// A timer enforces the deadline. It costs as much as a socket deadline, and also
	// works for connections without deadlines, such as those of SSH tunnels.
	if cn.limit == nil {
		cn.limit = time.AfterFunc(time.Until(deadline), cn.interrupt)
	} else {
		cn.limit.Reset(time.Until(deadline))
	}
	defer func() { keep = cn.limit.Stop() && keep }()
	all := cn.client.config.Context
	if err := cmp.Or(ctx.Err(), all.Err()); err != nil {
		return a, false, err
	}
	if ctx != all {
		stop := context.AfterFunc(ctx, cn.interrupt)
		defer func() { keep = stop() && keep }() // if stop fails, interrupt may hit the next request
	}
	turns := len(rest) == 0 && !cn.peek.secure && cn.peek.probes()
	// A TLS connection is not probed before it has served a request: until then, TLS may be
	// in the middle of messages of its own.
	if !turns && (cn.kept || !cn.peek.secure) {
		if err := cn.peek.look(cn.nc); err != nil && cn.kept {
			return a, false, errStale
		} else if err != nil {
			return a, false, err
		}
	}
	if len(rest) > 0 {
		return cn.exchangeLarge(b, rest)
	}
	var werr error
	if turns {
		cn.peek.request = b.out
	} else {
		_, werr = cn.nc.Write(b.out)
	}
	// Read the answer even if the write failed: a receiver may answer and close before it
	// has read the whole request.
	a, keep, err = b.in.answer(b.kept[:0])
	if turns {
		if werr = cn.peek.werr; cn.peek.unsent && cn.kept {
			return a, false, errStale
		}
	}
	if err == nil {
		return a, keep && werr == nil, nil
	}
	return a, false, cmp.Or(werr, err)
}

// exchangeLarge is exchange for a request of more than maxInline bytes. It reads the answer while a
// goroutine writes the request.
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
	// The receiver may have answered before it has read the whole request. The deadline ends a
	// write that still blocks, but not a write that has ended and is only yet to be reported.
	if !keep || cn.nc.SetWriteDeadline(time.Unix(1, 0)) != nil {
		cn.interrupt()
		<-written
		return a, false, err
	}
	keep = <-written == nil && cn.nc.SetWriteDeadline(time.Time{}) == nil
	return a, keep, err
}
