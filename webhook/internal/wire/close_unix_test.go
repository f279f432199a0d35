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

// fill writes to a socket until its buffer is full.
func fill(raw syscall.RawConn) (err error) {
	chunk := make([]byte, 64<<10)
	werr := raw.Write(func(fd uintptr) bool {
		for err == nil || err == syscall.EINTR {
			_, err = syscall.Write(int(fd), chunk)
		}
		return true
	})
	if err == syscall.EAGAIN {
		return werr
	}
	return err
}

// An unwritten fails the test if a write could wait for the receiver.
type unwritten struct {
	net.Conn
	t *testing.T
}

func (c unwritten) Write([]byte) (int, error) {
	c.t.Error("the close may wait for the receiver")
	return 0, io.ErrClosedPipe
}

// The client sends a close_notify of TLS when it closes an idle connection. If the receiver has
// stopped reading, the client does not wait for it.
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
			n, _ := io.Copy(io.Discard, c) // the bytes below TLS
			came <- n
		})
		c := socketClient(t)
		nc, err := connect(context.Background(), c.config.Dial, addr, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		// This also reads the session tickets. Closing a socket with unread bytes would reset the
		// connection.
		if _, err := nc.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		peek := nc.(*tls.Conn).NetConn().(*peekConn)
		if full {
			if err := fill(peek.raw); err != nil {
				t.Fatal(err)
			}
		}
		peek.Conn = unwritten{peek.Conn, t}
		peek.close(nc)
		close(closed)
		if n := <-came; !full && n == 0 {
			t.Error("got no close_notify, want one, as the socket had room")
		}
	}
}
