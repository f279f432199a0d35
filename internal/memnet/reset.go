package memnet

import (
	"crypto/tls"
	"fmt"
	"net"
)

// Reset closes c with a TCP reset. c must be a [*Conn], a [*net.TCPConn] or a [*tls.Conn]
// on top of one of these. For any other type Reset panics.
func Reset(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	switch c := c.(type) {
	case *Conn:
		c.Reset()
	case *net.TCPConn:
		_ = c.SetLinger(0) // discards unsent data and resets
		_ = c.Close()
	default:
		panic(fmt.Sprintf("memnet: cannot reset a %T", c))
	}
}
