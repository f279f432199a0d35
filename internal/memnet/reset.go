package memnet

import (
	"crypto/tls"
	"fmt"
	"net"
)

// Reset ends c, a [*Conn], a [*net.TCPConn] or a [*tls.Conn] above one of these,
// by a TCP reset. It panics on others.
func Reset(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	switch c := c.(type) {
	case *Conn:
		c.Reset()
	case *net.TCPConn:
		_ = c.SetLinger(0) // what unsent data there is, is thrown away
		_ = c.Close()
	default:
		panic(fmt.Sprintf("memnet: cannot reset a %T", c))
	}
}
