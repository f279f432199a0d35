//go:build !unix

package wire

import "syscall"

// canProbe says that sockets can be read without blocking. On these systems they cannot, so only a
// request finds out that an idle connection has ended, and the Client then makes it again.
const canProbe = false

type probe struct{}

func (*probe) tryRead(syscall.RawConn, []byte) (int, error) { panic("wire: no probe") }
