package server

import (
	"net"
	"testing"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

// TestLocalURL covers listeners on all addresses, on one address, and on a host name.
func TestLocalURL(t *testing.T) {
	for _, tt := range []struct {
		listen, addr string
		cert         *config.Certificate
		want         string
	}{
		{":8080", "[::]:8080", nil, "http://localhost:8080"},
		{"0.0.0.0:0", "0.0.0.0:4711", nil, "http://localhost:4711"},
		{"localhost:8080", "127.0.0.1:8080", nil, "http://localhost:8080"},
		{"127.0.0.1:8080", "127.0.0.1:8080", nil, "http://127.0.0.1:8080"},
		{"192.0.2.1:443", "192.0.2.1:443", &config.Certificate{}, "https://192.0.2.1:443"},
	} {
		addr, err := net.ResolveTCPAddr("tcp", tt.addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := localURL(tt.listen, tt.cert, addr); got != tt.want {
			t.Errorf("localURL(%q, %q) = %s, want %s", tt.listen, tt.addr, got, tt.want)
		}
	}
}
