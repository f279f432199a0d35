// Package webhooktest provides receivers of webhooks that follow a script, for
// the tests of programs that send them.
//
//	network := webhooktest.NewNetwork()
//	defer network.Close()
//	crm := network.Receiver("https://crm.example/hook", "secret",
//		webhooktest.Answer(503).Times(2),
//		webhooktest.Answer(200))
//
// A receiver is a real [net/http.Server], on a network that exists in memory:
// whoever dials by [Network.DialContext] reaches the receivers by the names in
// their URLs, and nothing else. For a webhook.Forwarder that is
//
//	webhook.Config{
//		DialContext:     network.DialContext,
//		TLSClientConfig: network.TLSClientConfig(),
//	}
//
// Reads, writes and waits on such a network are durably blocking, so that a
// network made within a testing/synctest bubble lets the time of the bubble
// pass: hours of retries take milliseconds, as in TestFourHoursOfRetries of this
// package, which is made to be copied. [NewLoopback] makes the same on
// real sockets, outside of bubbles.
//
// The package panics where a test is at fault, as with a URL that is not one.
package webhooktest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/hookferry/analytics/internal/memnet"
	"github.com/hookferry/analytics/signature"
)

// A Network connects clients with receivers. It may be used concurrently.
type Network struct {
	loopback  bool
	authority *authority
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc

	mu        sync.Mutex
	receivers map[string]*Receiver // by host:port
	ports     int                  // of clients, handed out so far
}

// NewNetwork returns a network in memory. For use within a synctest bubble it
// is made there, and closed before the bubble's function returns.
func NewNetwork() *Network {
	n := &Network{
		authority: newAuthority(),
		receivers: make(map[string]*Receiver),
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

// NewLoopback returns a network whose receivers listen on ports of 127.0.0.1.
// [Network.DialContext] still knows them by the names in the URLs they were
// made for; everybody else reaches them by their URL field.
func NewLoopback() *Network {
	n := NewNetwork()
	n.loopback = true
	return n
}

// TLSClientConfig returns a new configuration that trusts the network's
// authority and nobody else.
func (n *Network) TLSClientConfig() *tls.Config {
	return &tls.Config{RootCAs: n.authority.pool()}
}

// DialContext connects to the receiver at addr, a host and a port. Without
// one it fails as the system does: with a [net.DNSError] if no receiver has
// that host name, else with a refused connection.
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
		return nil, memnet.DialError(memnet.ErrRefused)
	default:
		return nil, memnet.DialError(errNoSuchHost(host))
	}
}

// knows reports whether a receiver has that host name.
func (n *Network) knows(host string) bool {
	for _, r := range n.receivers {
		if strings.EqualFold(r.host, host) {
			return true
		}
	}
	return false
}

// Close ends all connections and receivers, and waits for their goroutines.
// After it, connections are refused. What was received stays readable. A second
// Close does nothing.
func (n *Network) Close() error {
	n.cancel()
	n.mu.Lock()
	var receivers []*Receiver
	for _, r := range n.receivers {
		receivers = append(receivers, r)
	}
	n.mu.Unlock()
	for _, r := range receivers {
		r.close()
	}
	return nil
}

// Receiver adds a receiver for all requests to the scheme, host and port of
// rawURL, whatever their path. It checks signatures by secret, unless that is
// empty.
//
// Each request, or connection, takes the next step of the script; the last one
// is repeated for ever. Without a script, every request is answered 200.
//
// It panics if rawURL is not an http or https URL, or is that of another receiver,
// and after Close.
func (n *Network) Receiver(rawURL string, secret signature.Secret, script ...Step) *Receiver {
	u, err := url.Parse(rawURL)
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
	if n.ctx.Err() != nil { // Close looks at the receivers after that
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

// serverAddr returns the address of a receiver: its own if its host is one, or
// one made up.
func serverAddr(host string, port, number int) net.Addr {
	ip := net.ParseIP(host)
	if ip == nil {
		ip = net.IPv4(203, 0, 113, byte(number%254+1))
	}
	return &net.TCPAddr{IP: ip, Port: port}
}

func errNoSuchHost(host string) error {
	return &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}
