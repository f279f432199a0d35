package memnet

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
)

// A Network is the TCP network of one machine, in memory. Servers listen on it, and clients
// connect to them by address. The zero value is ready to use. It may be used concurrently.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*Listener // by address
	ports     int                  // number of ports handed out
}

// Listen works like [net.ListenConfig.Listen]. The host is an IP address; "localhost" and
// "" mean 127.0.0.1. Port 0 chooses a free port.
func (n *Network) Listen(_ context.Context, network, address string) (net.Listener, error) {
	addr, err := resolve(address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if addr.Port == 0 {
		addr.Port = n.port()
	}
	if old := n.listeners[addr.String()]; old != nil && !old.closed() {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: addr, Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	}
	if n.listeners == nil {
		n.listeners = make(map[string]*Listener)
	}
	l := Listen(addr)
	n.listeners[addr.String()] = l
	return l, nil
}

// DialContext works like [net.Dialer.DialContext]. The client's address is 127.0.0.1.
func (n *Network) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	return n.DialFrom(ctx, net.IPv4(127, 0, 0, 1), address)
}

// DialFrom does the same as DialContext, but the argument from is the client's IP address.
func (n *Network) DialFrom(ctx context.Context, from net.IP, address string) (net.Conn, error) {
	addr, err := resolve(address)
	if err != nil {
		return nil, DialError(err)
	}
	n.mu.Lock()
	l := n.listeners[addr.String()]
	client := &net.TCPAddr{IP: from, Port: n.port()}
	n.mu.Unlock()
	if l == nil {
		return nil, DialError(ErrRefused)
	}
	c, err := l.Dial(ctx, client)
	if err != nil {
		return nil, DialError(err)
	}
	return c, nil
}

// port returns a new port for a listener or a client. n.mu must be held.
func (n *Network) port() int {
	n.ports++
	return 32768 + (n.ports-1)%(1<<15)
}

func resolve(address string) (*net.TCPAddr, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if host == "" || host == "localhost" {
		host = "127.0.0.1"
	}
	ip := net.ParseIP(host)
	if ip == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("memnet: port %q: %w", port, err)
	}
	return &net.TCPAddr{IP: ip, Port: int(number)}, nil
}
