package webhook

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

// An AddressError is the error of a connection that the guard refused. No
// connection was made.
type AddressError struct {
	// Addr is the address that the endpoint's host stands for.
	Addr netip.Addr
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("address %v is not public", e.Addr)
}

// A guard opens connections to public addresses only. It looks at each
// address when it is dialled, after the name was resolved, so that a name
// which resolves to something else the second time does not get past it.
type guard struct {
	allow    []netip.Prefix
	literals map[string]bool // hosts the operator wrote out: addresses and "localhost"
}

func (g *guard) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	host = strings.ToLower(host)
	written := g.literals[host]
	d := net.Dialer{
		KeepAlive: 30 * time.Second,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			ip := ap.Addr().Unmap().WithZone("")
			switch {
			case g.allowed(ip):
			case written && (host != "localhost" || ip.IsLoopback()):
			case !public(ip):
				return &AddressError{Addr: ip}
			}
			return nil
		},
	}
	return d.DialContext(ctx, network, addr)
}

func (g *guard) allowed(ip netip.Addr) bool {
	for _, p := range g.allow {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// special are the blocks that are not public unicast (IANA special-purpose
// address registries for IPv4 and IPv6, of RFC 6890 and later).
var special = prefixes(
	"0.0.0.0/8",        // this network
	"10.0.0.0/8",       // private
	"100.64.0.0/10",    // carrier-grade NAT
	"127.0.0.0/8",      // loopback
	"168.63.129.16/32", // Azure's host, in public space
	"169.254.0.0/16",   // link local, with the clouds' metadata services
	"172.16.0.0/12",    // private
	"192.0.0.0/24",     // protocol assignments
	"192.0.2.0/24",     // documentation
	"192.88.99.0/24",   // 6to4 relays
	"192.168.0.0/16",   // private
	"198.18.0.0/15",    // benchmarking
	"198.51.100.0/24",  // documentation
	"203.0.113.0/24",   // documentation
	"224.0.0.0/4",      // multicast
	"240.0.0.0/4",      // reserved, with broadcast
	"::/96",            // unspecified, loopback, IPv4-compatible
	"::ffff:0:0:0/96",  // IPv4-translated
	"64:ff9b:1::/48",   // local NAT64
	"100::/64",         // discard
	"2001::/23",        // protocol assignments, with Teredo and ORCHID
	"2001:db8::/32",    // documentation
	"3fff::/20",        // documentation
	"5f00::/16",        // segment routing
	"fc00::/7",         // unique local
	"fe80::/10",        // link local
	"fec0::/10",        // site local
	"ff00::/8",         // multicast
)

var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

func prefixes(ss ...string) []netip.Prefix {
	ps := make([]netip.Prefix, len(ss))
	for i, s := range ss {
		ps[i] = netip.MustParsePrefix(s)
	}
	return ps
}

// public reports whether ip is a public unicast address. An IPv6 address that
// carries an IPv4 one is what the latter is.
func public(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	if ip.Is6() {
		b := ip.As16()
		switch {
		case nat64.Contains(ip):
			return public(netip.AddrFrom4([4]byte(b[12:16])))
		case sixToFour.Contains(ip):
			return public(netip.AddrFrom4([4]byte(b[2:6])))
		}
	}
	for _, p := range special {
		if p.Contains(ip) {
			return false
		}
	}
	return ip.IsValid()
}
