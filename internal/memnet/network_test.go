package memnet

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
)

func TestNetworkConnectsClientsToListeners(t *testing.T) {
	var n Network
	ctx := t.Context()
	l, err := n.Listen(ctx, "tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if _, err := n.Listen(ctx, "tcp", address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("second Listen on %s = %v, want EADDRINUSE", address, err)
	}
	if other, err := n.Listen(ctx, "tcp", ":0"); err != nil || other.Addr().String() == address {
		t.Errorf("Listen on any port = %v, %v, want another address than %s", other, err, address)
	}
	go func() { // ends when l is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, c.RemoteAddr().(*net.TCPAddr).IP.String())
			c.Close()
		}
	}()
	for from, dial := range map[string]func() (net.Conn, error){
		"127.0.0.1": func() (net.Conn, error) { return n.DialContext(ctx, "tcp", address) },
		"192.0.2.1": func() (net.Conn, error) { return n.DialFrom(ctx, net.IPv4(192, 0, 2, 1), address) },
	} {
		c, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); string(got) != from || err != nil {
			t.Errorf("the server sees a client at the address %q, %v, want %s", got, err, from)
		}
		c.Close()
	}

	l.Close()
	for _, to := range []string{address, "127.0.0.1:1"} {
		_, err := n.DialContext(ctx, "tcp", to)
		var op *net.OpError
		if !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &op) || op.Op != "dial" {
			t.Errorf("DialContext to %s without a listener = %v, want a *net.OpError of dial with ECONNREFUSED", to, err)
		}
	}
	var unknown *net.DNSError
	if _, err := n.DialContext(ctx, "tcp", "a.example:80"); !errors.As(err, &unknown) {
		t.Errorf("DialContext to an unknown name = %v, want a *net.DNSError", err)
	}
	again, err := n.Listen(ctx, "tcp", address)
	if err != nil {
		t.Fatalf("Listen on %s after its listener was closed = %v, want nil", address, err)
	}
	again.Close()
}
