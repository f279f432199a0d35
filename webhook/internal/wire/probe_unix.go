//go:build unix

package wire

import (
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

// step is called by raw.Read.
func (o *probe) step(fd uintptr) bool {
	for {
		if o.n, o.err = syscall.Read(int(fd), o.p); o.err != syscall.EINTR {
			return true
		}
	}
}
