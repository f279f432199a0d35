//go:build !unix

package wire

import "syscall"

// canProbe is false because sockets cannot be read without blocking on these systems. So only a
// request finds out that an idle connection has ended, and the Client then makes the request again.
const canProbe = false

type probe struct{}

func (*probe) tryRead(syscall.RawConn, []byte) (int, error) { panic("wire: no probe") }

func (*probe) turnAround(syscall.RawConn, []byte, []byte) (n, written int, err error) {
	panic("wire: no probe")
}

func tryWrite(syscall.RawConn, []byte) (int, error) { panic("wire: no probe") }
