//go:build unix

package wire

import (
	"io"
	"net"
	"os"
	"syscall"
)

// canProbe says that sockets can be read without waiting.
const canProbe = true

// A turn is the state of a request between its write and the first bytes of
// its answer.
type turn struct {
	b    *Buffer
	rest []byte
	sent bool
	left [2][]byte // not written, when there was no room
	err  error
}

// ask looks whether the connection is as it should be, silent, writes b.out and
// rest, and waits for the first bytes of the answer.
//
// It is one turn at the runtime's poller. net.Conn.Read tries to read before
// it waits, and right after a request it tries in vain; here that system call
// comes before the request, where it finds out whether the peer has closed or
// said something unasked. What happens after it wakes the wait, because the
// poller was told of it before (internal/poll, FD.RawRead).
func (cn *conn) ask(b *Buffer, rest []byte) error {
	t := &cn.turn
	*t = turn{b: b, rest: rest}
	err := cn.raw.Read(cn.asks)
	terr, left := t.err, t.left
	*t = turn{}
	if err != nil {
		return err // of the wait: the deadline
	}
	if terr != nil {
		return terr
	}
	return writeAll(cn.nc, left[0], left[1])
}

// turnAround is the function of ask that has the socket. It returns false to
// wait until there is something to read.
func (cn *conn) turnAround(fd uintptr) bool {
	t := &cn.turn
	in := &t.b.in
	n, err := ignoringEINTR(syscall.Read, fd, in.space())
	if err == syscall.EAGAIN {
		if t.sent {
			return false
		}
		return !cn.write(fd)
	}
	switch {
	case !t.sent && n > 0:
		t.err = cn.broken(errEarly)
	case !t.sent && err == nil:
		t.err = cn.broken(io.EOF)
	case !t.sent:
		t.err = cn.broken(cn.opError("read", err))
	case err != nil:
		in.err = cn.opError("read", err)
	case n == 0:
		in.err = io.EOF
	default:
		in.took(n)
	}
	return true
}

// write writes the request. It returns false if there was no room for all of
// it, or it failed.
func (cn *conn) write(fd uintptr) bool {
	t := &cn.turn
	parts := [2][]byte{t.b.out, t.rest}
	for i, p := range parts {
		if len(p) == 0 {
			continue
		}
		n, err := ignoringEINTR(syscall.Write, fd, p)
		if err == syscall.EAGAIN {
			n, err = 0, nil
		}
		if err != nil {
			t.err = cn.opError("write", err)
			return false
		}
		if n < len(p) {
			t.left[i] = p[n:]
			copy(t.left[i+1:], parts[i+1:])
			return false
		}
	}
	t.sent = true
	return true
}

// A poll reads from a socket without waiting.
type poll struct {
	once func(fd uintptr) bool // reads, made once
	p    []byte
	n    int
	err  error
}

// read reads into p. It returns errSilent if there is nothing to read.
func (o *poll) read(raw syscall.RawConn, p []byte) (int, error) {
	if o.once == nil {
		o.once = o.reads
	}
	o.p = p
	err := raw.Read(o.once)
	o.p = nil
	switch {
	case err != nil:
		return 0, err
	case o.err == syscall.EAGAIN:
		return 0, errSilent
	case o.err != nil:
		return 0, o.err
	case o.n == 0:
		return 0, io.EOF
	}
	return o.n, nil
}

// reads is the function of read that has the socket.
func (o *poll) reads(fd uintptr) bool {
	o.n, o.err = ignoringEINTR(syscall.Read, fd, o.p)
	return true
}

// writeOnce writes as much of p as there is room for.
func writeOnce(raw syscall.RawConn, p []byte) (n int, err error) {
	rerr := raw.Write(func(fd uintptr) bool {
		n, err = ignoringEINTR(syscall.Write, fd, p)
		return true
	})
	if rerr != nil {
		err = rerr
	}
	return max(n, 0), err
}

func ignoringEINTR(f func(int, []byte) (int, error), fd uintptr, p []byte) (int, error) {
	for {
		n, err := f(int(fd), p)
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// opError returns the error of a system call as the net package does.
func (cn *conn) opError(call string, err error) error {
	local, remote := cn.nc.LocalAddr(), cn.nc.RemoteAddr()
	return &net.OpError{Op: call, Net: remote.Network(), Source: local, Addr: remote, Err: os.NewSyscallError(call, err)}
}
