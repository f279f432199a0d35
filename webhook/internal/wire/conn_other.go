//go:build !unix

package wire

import "syscall"

// canProbe says that sockets can be read without waiting. Here that an idle
// connection has ended is found out by the request, which is then made again.
const canProbe = false

type turn struct{}

func (cn *conn) ask(*Buffer, []byte) error { panic("wire: no probe") }

func (cn *conn) turnAround(uintptr) bool { panic("wire: no probe") }

type poll struct{}

func (*poll) read(syscall.RawConn, []byte) (int, error) { panic("wire: no probe") }

func writeOnce(syscall.RawConn, []byte) (int, error) { panic("wire: no probe") }
