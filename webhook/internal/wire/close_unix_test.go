//go:build unix

package wire

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http/httptest"
	"syscall"
	"testing"
)

// An unwritable connection fails the test if something is written to it, because such a
// write may wait for the peer.
type unwritable struct {
	net.Conn
	t *testing.T
}

func (c unwritable) Write(p []byte) (int, error) {
	c.t.Error("the close writes in a way that may wait")
	return c.Conn.Write(p)
}

// An idle connection is closed with the farewell of TLS, and without one if the
// peer has stopped to read: whoever closes it has others to see to.
func TestIdleTLSConnectionsAreClosedAtOnce(t *testing.T) {
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	defer certificate.Close()
	for _, full := range []bool{false, true} {
		came := make(chan int64, 1)
		closed := make(chan struct{})
		addr := serve(t, func(c net.Conn) {
			tc := tls.Server(c, certificate.TLS)
			if _, err := tc.Write([]byte("x")); err != nil {
				t.Error(err)
			}
			<-closed
			n, _ := io.Copy(io.Discard, c) // below TLS
			came <- n
		})
		c := socketClient(t)
		nc, err := connect(context.Background(), c.config.Dial, addr, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		// With it come the tickets for sessions: closing a socket that holds
		// something unread resets it.
		if _, err := nc.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		cn := newConn(c, nc)
		if full {
			for chunk := make([]byte, 64<<10); err == nil; {
				_, err = writeOnce(cn.tap.raw, chunk)
			}
			if err != syscall.EAGAIN {
				t.Fatal(err)
			}
		}
		cn.tap.Conn = unwritable{cn.tap.Conn, t}
		cn.close()
		close(closed)
		if n := <-came; !full && n == 0 {
			t.Error("no farewell came, although there was room")
		}
	}
}
