// Package webhooktest provides receivers of webhooks that follow a script. It is
// for tests of programs that send webhooks.
//
//	network := webhooktest.NewNetwork()
//	defer network.Close()
//	crm := network.Receiver("https://crm.example/hook", "secret",
//		step.Answer(503).Times(2),
//		step.Answer(200))
//
// Package step has the steps of which a script is made. [Do] chooses one for each request. A step
// that ends a request in the middle of its body leaves it out of [Receiver.Requests].
//
// A receiver is a real [net/http.Server] on a network in memory. A client that
// dials with [Network.DialContext] reaches the receivers by the names in their
// URLs, and nothing else. A webhook.Forwarder does so with
//
//	webhook.Config{
//		DialContext:     network.DialContext,
//		TLSClientConfig: network.TLSClientConfig(),
//	}
//
// Reads, writes and waits on such a network are durably blocking in the sense of testing/synctest.
// So if the network is made in a synctest bubble, the time of the bubble can advance, and hours of
// retries take milliseconds. Copy TestFourHoursOfRetries of this package as an example.
// [NewLoopback] makes a network of real sockets, for use outside of bubbles.
//
// The package panics if the test makes a mistake, such as an invalid URL.
package webhooktest

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hookferry/analytics/internal/memnet"
	"github.com/hookferry/analytics/internal/weburl"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/step"
)

// A Network connects clients with receivers. It may be used concurrently.
type Network struct {
	loopback  bool
	authority *authority
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc

	mu        sync.Mutex
	receivers map[string]*Receiver // by host:port
	ports     int                  // how many ports clients have got so far
}

// NewNetwork returns a network in memory. For use in a synctest bubble, call it
// in the bubble, and close the network before the bubble's function returns.
func NewNetwork() *Network {
	n := &Network{
		authority: newAuthority(),
		receivers: make(map[string]*Receiver),
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

// NewLoopback returns a network whose receivers listen on ports of 127.0.0.1. [Network.DialContext]
// still finds a receiver by the name in the URL for which it was made. Other clients use
// [Receiver.URL], which has the port.
func NewLoopback() *Network {
	n := NewNetwork()
	n.loopback = true
	return n
}

// TLSClientConfig returns a new configuration that trusts only the network's authority.
func (n *Network) TLSClientConfig() *tls.Config {
	return &tls.Config{RootCAs: n.authority.pool()}
}

// DialContext connects to the receiver at addr, a host and a port. If there is
// none, it fails like a real network: with a [net.DNSError] if no receiver has
// that host name, otherwise with a refused connection.
func (n *Network) DialContext(ctx context.Context, _, addr string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, memnet.DialError(err)
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, memnet.DialError(err)
	}
	addr = strings.ToLower(addr)
	n.mu.Lock()
	r := n.receivers[addr]
	known := net.ParseIP(host) != nil || n.knows(host)
	n.mu.Unlock()
	switch {
	case r != nil:
		return r.dial(ctx)
	case known:
		return nil, step.Refuse().Dial(ctx, host)
	default:
		return nil, step.NoSuchHost().Dial(ctx, host)
	}
}

// knows reports whether a receiver has this host name. The caller holds n.mu.
func (n *Network) knows(host string) bool {
	for _, r := range n.receivers {
		if strings.EqualFold(r.host, host) {
			return true
		}
	}
	return false
}

// Close ends all connections and receivers, and waits for their goroutines. Afterwards connections
// are refused. The received requests can still be read. A second Close does nothing.
func (n *Network) Close() error {
	n.cancel()
	n.mu.Lock()
	receivers := slices.Collect(maps.Values(n.receivers))
	n.mu.Unlock()
	for _, r := range receivers {
		r.server.Close()
		r.server.Wait()
	}
	return nil
}

// Receiver adds a receiver for all requests to the scheme, host and port of rawURL, with any path.
// The receiver checks signatures with secret, unless secret is empty.
//
// Each request, or connection, takes the next step of the script. The last step is repeated
// forever. Without a script, the receiver answers every request with 200.
//
// Receiver panics if rawURL is not an http or https URL, if another receiver has its host and port,
// or if the network is closed.
func (n *Network) Receiver(rawURL string, secret signature.Secret, script ...step.Step) *Receiver {
	u, err := weburl.Parse(rawURL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		panic(fmt.Sprintf("webhooktest: %q is not an http or https URL", rawURL))
	}
	port := 80
	if u.Scheme == "https" {
		port = 443
	}
	if u.Port() != "" {
		// url.Parse has checked that it is a number.
		port, _ = strconv.Atoi(u.Port())
	}
	addr := strings.ToLower(net.JoinHostPort(u.Hostname(), strconv.Itoa(port)))

	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil { // Close has begun, and may already have copied n.receivers
		panic("webhooktest: Receiver after Close")
	}
	if n.receivers[addr] != nil {
		panic(fmt.Sprintf("webhooktest: second receiver for %s", addr))
	}
	r := newReceiver(n, u, serverAddr(u.Hostname(), port, len(n.receivers)), secret, script)
	n.receivers[addr] = r
	if n.loopback {
		n.receivers[r.listener.Addr().String()] = r
	}
	return r
}

// clientAddr returns the address of the next client.
func (n *Network) clientAddr() net.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ports++
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, byte(n.ports>>14&0x7f)), Port: 49152 + n.ports&0x3fff}
}

// serverAddr returns the address of a receiver: its host, if that is an IP
// address, or else an invented one.
func serverAddr(host string, port, number int) net.Addr {
	ip := net.ParseIP(host)
	if ip == nil {
		ip = net.IPv4(203, 0, 113, byte(number%254+1))
	}
	return &net.TCPAddr{IP: ip, Port: port}
}
