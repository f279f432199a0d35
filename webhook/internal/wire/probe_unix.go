//go:build unix

package wire

import (
	"cmp"
	"io"
	"os"
	"syscall"
)

// canProbe says whether sockets can be read without blocking.
const canProbe = true

// A probe reads from a socket without blocking.
type probe struct {
	each func(fd uintptr) bool // step; made only once, because each closure takes an allocation
	p    []byte
	n    int
	err  error

	// For turnAround. Otherwise request is nil.
	request []byte
	written int
}

// tryRead reads into p without blocking. It returns errSilent if there is nothing to read.
func (o *probe) tryRead(raw syscall.RawConn, p []byte) (int, error) {
	if o.each == nil {
		o.each = o.step
	}
	o.p = p
	err := raw.Read(o.each)
	o.p = nil
	switch {
	case err != nil:
		return 0, err
	case o.err == syscall.EAGAIN:
		return 0, errSilent
	case o.err != nil:
		return 0, os.NewSyscallError("read", o.err)
	case o.n == 0:
		return 0, io.EOF
	}
	return o.n, nil
}

// turnAround writes request, and reads the beginning of the answer into p. If there is something to
// read before, it writes nothing: written is -1. If it cannot write all of request at once, it does
// not read.
//
// A look, a write and a read would use raw three times, and the read would find nothing at first,
// because the answer has not come yet.
func (o *probe) turnAround(raw syscall.RawConn, request, p []byte) (n, written int, err error) {
	o.request, o.written = request, -1
	n, err = o.tryRead(raw, p)
	o.request = nil
	return n, o.written, err
}

// raw.Read calls step. If step returns false, raw.Read calls it again once there may be something
// to read.
func (o *probe) step(fd uintptr) bool {
	if o.n, o.err = retried(syscall.Read, fd, o.p); o.err != syscall.EAGAIN || o.request == nil {
		return true
	}
	if o.written < 0 {
		n, _ := retried(syscall.Write, fd, o.request)
		o.written = max(n, 0)
	}
	return o.written < len(o.request)
}

// tryWrite writes to a socket without blocking, whatever its deadlines.
func tryWrite(raw syscall.RawConn, p []byte) (n int, err error) {
	cerr := raw.Control(func(fd uintptr) { n, err = retried(syscall.Write, fd, p) })
	if cerr != nil || err != nil {
		return 0, cmp.Or(cerr, os.NewSyscallError("write", err))
	}
	return n, nil
}

// retried calls a system call until no signal interrupts it.
func retried(call func(fd int, p []byte) (int, error), fd uintptr, p []byte) (n int, err error) {
	for {
		if n, err = call(int(fd), p); err != syscall.EINTR {
			return n, err
		}
	}
}
