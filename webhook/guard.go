package webhook

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// An AddressError says that the address guard refused to connect to an address.
type AddressError struct {
	Addr netip.Addr // that the endpoint's host stands for
}

func (e *AddressError) Error() string { return fmt.Sprintf("address %v is not public", e.Addr) }

// A guard opens connections to public addresses only. It checks the addresses that it then dials,
// because a name that is checked earlier may resolve to another address at the dial.
type guard struct {
	allow []netip.Prefix
	// operator says that the operator wrote all hosts, so that addresses and "localhost" are allowed.
	// The operator does not decide what other names resolve to.
	operator bool
	lookup   func(ctx context.Context, network, host string) ([]netip.Addr, error) // nil: that of net.DefaultResolver
	connect  func(ctx context.Context, network, addr string) (net.Conn, error)     // nil: that of a net.Dialer

	mu       sync.Mutex
	answered map[string]answer // by host and port, at most maxAnswered
}

// An answer is the address of a host that answered when an earlier one did not.
type answer struct {
	ip    netip.Addr
	until time.Time // when it is forgotten, so that the host's own order counts again
}

const (
	maxAddresses  = 32 // of a name that are dialed for one connection
	maxDials      = 4  // in flight for one connection
	maxAnswered   = 1024
	answeredFor   = 5 * time.Minute
	fallbackDelay = 300 * time.Millisecond // as in package net
)

// dial connects to addr, but never to an address that the guard refuses. The error is an
// *AddressError only if the guard refuses all addresses of the host.
//
// The addresses share the time until the deadline of ctx, so that each is dialed. A net.Dialer does
// not do that: it gives each at least two seconds.
func (g *guard) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	ips, err := g.resolve(ctx, host)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	var refused netip.Addr
	localhost := g.operator && strings.EqualFold(host, "localhost")
	_, err = netip.ParseAddr(host)
	literal := g.operator && err == nil
	ips = slices.DeleteFunc(ips, func(ip netip.Addr) bool {
		ip = ip.WithZone("")
		if literal || localhost && ip.IsLoopback() || contains(g.allow, ip) || IsPublic(ip) {
			return false
		}
		refused = ip
		return true
	})
	if len(ips) == 0 {
		return nil, &AddressError{Addr: refused}
	}
	ips = g.order(addr, ips)
	c, i, err := g.race(ctx, network, port, ips)
	if i > 0 {
		g.remember(addr, ips[i])
	}
	return c, err
}

// resolve returns the addresses of host, at least one, IPv4 addresses in their 4-byte form.
func (g *guard) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip.Unmap()}, nil
	}
	lookup := g.lookup
	if lookup == nil {
		lookup = net.DefaultResolver.LookupNetIP
	}
	ips, err := lookup(ctx, "ip", host)
	if err == nil && len(ips) == 0 {
		err = &net.DNSError{Err: "no suitable address found", Name: host, IsNotFound: true}
	}
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	return ips, err
}

// order returns the addresses to dial for addr, in their order: first the one that answered lately,
// if it is among ips, then the families in turn (RFC 8305, section 4).
func (g *guard) order(addr string, ips []netip.Addr) []netip.Addr {
	g.mu.Lock()
	a, ok := g.answered[addr]
	if ok && !time.Now().Before(a.until) {
		delete(g.answered, addr)
		ok = false
	}
	g.mu.Unlock()
	if i := slices.Index(ips, a.ip); ok && i > 0 {
		ips = slices.Insert(slices.Delete(ips, i, i+1), 0, a.ip)
	}
	var families [2][]netip.Addr
	for _, ip := range ips {
		n := 0
		if ip.Is4() != ips[0].Is4() {
			n = 1
		}
		families[n] = append(families[n], ip)
	}
	ordered := make([]netip.Addr, 0, len(ips))
	for i := range ips {
		for _, f := range families {
			if i < len(f) {
				ordered = append(ordered, f[i])
			}
		}
	}
	return ordered[:min(len(ordered), maxAddresses)]
}

// remember makes order put ip first for addr, for a while.
func (g *guard) remember(addr string, ip netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.answered == nil {
		g.answered = make(map[string]answer)
	}
	for other := range g.answered {
		if len(g.answered) < maxAnswered {
			break
		}
		delete(g.answered, other)
	}
	g.answered[addr] = answer{ip, time.Now().Add(answeredFor)}
}

// race dials the addresses one after the other until one answers, and returns the connection and
// the index of its address. An address whose dial fails, or takes longer than its share of the
// time, is followed by the next one, but its dial goes on for a while. If none answers, the error
// is that of the first.
func (g *guard) race(ctx context.Context, network, port string, ips []netip.Addr) (net.Conn, int, error) {
	connect := g.connect
	if connect == nil {
		connect = (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
	}
	if len(ips) == 1 {
		c, err := connect(ctx, network, net.JoinHostPort(ips[0].String(), port))
		return c, 0, err
	}
	type result struct {
		i   int
		c   net.Conn
		err error
	}
	results := make(chan result)
	begun, inFlight := 0, 0
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for range inFlight {
			if r := <-results; r.err == nil {
				r.c.Close()
			}
		}
	}()
	errs := make([]error, len(ips))
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		var r result
		select {
		case <-next.C:
			i, left, share := begun, len(ips)-begun, fallbackDelay
			if deadline, ok := ctx.Deadline(); ok {
				share = min(share, time.Until(deadline)/time.Duration(left))
			}
			begun++
			inFlight++
			if left > 1 {
				next.Reset(share)
			}
			go func() { // the deferred function waits for its result
				ctx := ctx
				if left > maxDials {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, (maxDials-1)*share)
					defer cancel()
				}
				c, err := connect(ctx, network, net.JoinHostPort(ips[i].String(), port))
				results <- result{i, c, err}
			}()
			continue
		case r = <-results:
			inFlight--
		}
		if r.err == nil {
			return r.c, r.i, nil
		}
		errs[r.i] = r.err
		switch {
		case begun < len(ips) && ctx.Err() == nil:
			if r.i == begun-1 {
				next.Reset(0)
			}
		case inFlight == 0:
			return nil, 0, errs[0]
		}
	}
}

func contains(ps []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(ps, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// globalUnicast is the part of the IPv6 address space for global unicast (IANA, Internet Protocol
// Version 6 Address Space). All other parts are refused.
var globalUnicast = netip.MustParsePrefix("2000::/3")

// special lists the blocks inside IPv4 and globalUnicast that are refused: all blocks of the IANA
// Special-Purpose Address Registries (RFC 6890), even those that these call globally reachable, and
// IPv4 multicast (RFC 5771).
var special = prefixes(
	"0.0.0.0/8",         // this network
	"10.0.0.0/8",        // private
	"100.64.0.0/10",     // carrier-grade NAT, with Alibaba's metadata service
	"127.0.0.0/8",       // loopback
	"168.63.129.16/32",  // Azure's host; not in the registry
	"169.254.0.0/16",    // link local, with the clouds' metadata services
	"172.16.0.0/12",     // private
	"192.0.0.0/24",      // protocol assignments, with Oracle's metadata service
	"192.0.2.0/24",      // documentation
	"192.31.196.0/24",   // AS112
	"192.52.193.0/24",   // AMT
	"192.88.99.0/24",    // 6to4 relays
	"192.168.0.0/16",    // private
	"192.175.48.0/24",   // AS112
	"198.18.0.0/15",     // benchmarking
	"198.51.100.0/24",   // documentation
	"203.0.113.0/24",    // documentation
	"224.0.0.0/4",       // multicast
	"240.0.0.0/4",       // reserved, with broadcast
	"2001::/23",         // protocol assignments, with Teredo, ORCHID and benchmarking
	"2001:db8::/32",     // documentation
	"2620:4f:8000::/48", // AS112
	"3fff::/20",         // documentation
)

var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052
	sixToFour = netip.MustParsePrefix("2002::/16")    // RFC 3056
)

var everywhere = prefixes("0.0.0.0/0", "::/0")

func prefixes(ss ...string) []netip.Prefix {
	ps := make([]netip.Prefix, len(ss))
	for i, s := range ss {
		ps[i] = netip.MustParsePrefix(s)
	}
	return ps
}

// IsPublic reports whether ip is a public unicast address. A Forwarder connects to others only if
// Config allows it, and checks each connection. A program that stores customers' URLs can use
// IsPublic to refuse addresses in them at once.
//
// An IPv6 address that carries an IPv4 address is public if that is. A NAT64 prefix that a network
// has taken from its own addresses (RFC 6052) looks like any other, so a NAT64 gateway with such a
// prefix must itself refuse private addresses.
func IsPublic(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	if ip.Is6() {
		b := ip.As16()
		switch {
		case nat64.Contains(ip):
			return IsPublic(netip.AddrFrom4([4]byte(b[12:16])))
		case !globalUnicast.Contains(ip):
			return false
		case sixToFour.Contains(ip):
			return IsPublic(netip.AddrFrom4([4]byte(b[2:6])))
		case b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe: // ISATAP, RFC 5214
			if !IsPublic(netip.AddrFrom4([4]byte(b[12:16]))) {
				return false
			}
		}
	}
	return ip.IsValid() && !contains(special, ip)
}
