package memnet

import (
	"context"
	"net"
	"os"
	"sync"
	"syscall"
)

// A Listener is a [net.Listener] without a queue: Dial waits until Accept takes the
// connection.
type Listener struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// Listen returns a listener with the address addr. Listen does not register the address
// anywhere, so several listeners may have the same address.
func Listen(addr net.Addr) *Listener {
	return &Listener{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

// Dial connects a client to the listener. The argument client is the address of the client.
// Dial returns [ErrRefused] after Close, and ctx.Err() if ctx ends before the connection is
// accepted.
func (l *Listener) Dial(ctx context.Context, client net.Addr) (*Conn, error) {
	c, server := Pipe(client, l.addr)
	select {
	case l.conns <- server:
		return c, nil
	case <-l.done:
		return nil, ErrRefused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements [net.Listener].
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close makes Accept and Dial return errors. Established connections stay open. Close
// may be called again.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// closed reports whether Close was called.
func (l *Listener) closed() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return l.addr }

// ErrRefused is the system's error for a connection to an address without a listener.
var ErrRefused error = os.NewSyscallError("connect", syscall.ECONNREFUSED)

// DialError wraps err as [net.Dialer] wraps its errors.
func DialError(err error) error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: err}
}
