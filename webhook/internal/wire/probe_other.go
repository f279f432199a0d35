//go:build !unix

package wire

import "syscall"

// canProbe says whether sockets can be read without blocking. Here they cannot:
// the request finds out that an idle connection has ended, and is then made
// again.
const canProbe = false

type probe struct{}

func (*probe) tryRead(syscall.RawConn, []byte) (int, error) { panic("wire: no probe") }
