//go:build !race && unix

// The race detector allocates, and so do sockets without RawConn.Read.

package wire

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// A request on a kept connection allocates nothing. With TLS, crypto/tls allocates once for each
// record, on both sides (in Go 1.26).
func TestPostDoesNotAllocate(t *testing.T) {
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	defer cert.Close()
	config := cert.Client().Transport.(*http.Transport).TLSClientConfig
	for _, tt := range []struct {
		name, scheme string
		serve        func(net.Conn)
		most         float64
	}{
		{"plain", "http", answerAll, 0},
		{"TLS", "https", func(c net.Conn) { answerAll(tls.Server(c, &tls.Config{Certificates: cert.TLS.Certificates})) }, 4},
	} {
		addr := serve(t, tt.serve)
		c := socketClient(t)
		c.config.TLS = config
		to := target(t, tt.scheme+"://"+addr+"/")
		body := make([]byte, 450)
		lines := []byte("X-Signature: 0123456789\r\n")
		var b Buffer
		post := func() {
			if a, err := c.Post(c.config.Context, time.Now().Add(never), to, lines, body, &b); err != nil || a.Status != 200 {
				t.Fatalf("%s: Post = %+v, %v; want 200", tt.name, a, err)
			}
		}
		post()
		n := testing.AllocsPerRun(200, post)
		if n > tt.most {
			t.Errorf("%s: got %v allocations, want at most %v", tt.name, n, tt.most)
		}
	}
}
