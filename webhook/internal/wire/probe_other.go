//go:build !unix

package wire

import "syscall"

// canProbe says that sockets can be read without waiting. Where they cannot, the
// request finds out that an idle connection has ended, and is made again.
const canProbe = false

type probe struct{}

func (*probe) tryRead(syscall.RawConn, []byte) (int, error) { panic("wire: no probe") }
