//go:build unix

package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"testing"
	"time"
)

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
			under := cn.tap.Conn
			for chunk := make([]byte, 64<<10); err == nil; {
				if err = under.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err == nil {
					_, err = under.Write(chunk)
				}
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
		}
		begin := time.Now()
		cn.close()
		if took := time.Since(begin); took > 4*time.Second { // crypto/tls waits for five
			t.Errorf("full %v: the close took %v", full, took)
		}
		close(closed)
		if n := <-came; !full && n == 0 {
			t.Error("no farewell came, although there was room")
		}
	}
}
