package webhook

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/internal/dial"
	"github.com/hookferry/analytics/internal/weburl"
)

// An addressError says that the address guard refused to connect to an address.
type addressError struct {
	Addr netip.Addr // that the endpoint's host stands for
}

func (e *addressError) Error() string { return fmt.Sprintf("address %v is not public", e.Addr) }

// A guard opens connections to public addresses only. It checks the addresses that it then dials,
// because a name that is checked earlier may resolve to another address at the dial.
type guard struct {
	allow []netip.Prefix
	// operator says that the operator wrote all hosts, so that addresses and "localhost" are allowed.
	// The operator does not decide what other names resolve to.
	operator bool
	dialer   dial.Dialer
}

// dial connects to addr, but never to an address that the guard refuses. The error is an
// *addressError only if the guard refuses all addresses of the host.
func (g *guard) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return g.dialer.Dial(ctx, network, addr, g.allowed)
}

// allowed returns the addresses of a host that the guard does not refuse, at least one.
func (g *guard) allowed(host string, ips []netip.Addr) ([]netip.Addr, error) {
	var refused netip.Addr
	localhost := g.operator && strings.EqualFold(host, "localhost")
	_, err := netip.ParseAddr(host)
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
		return nil, &addressError{Addr: refused}
	}
	return ips, nil
}

func contains(ps []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(ps, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// CheckAddresses returns a *ConfigError for each URL that the guard refuses for sure: its host is an
// IP address, or "localhost", that is neither public nor in allow. What other names resolve to is only
// known when the forwarder connects. The caller has checked the URLs by Validate.
func (d *Destination) CheckAddresses(allow []netip.Prefix) error {
	var wrong check.Faults
	for i, e := range d.Endpoints {
		u, err := weburl.Parse(e.URL)
		if err != nil {
			continue
		}
		host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
		if host == "localhost" || strings.HasSuffix(host, ".localhost") { // RFC 6761, section 6.3
			host = "127.0.0.1"
		}
		ip, err := netip.ParseAddr(host)
		ip = ip.Unmap().WithZone("")
		wrong.Refuse(err == nil && !IsPublic(ip) && !contains(allow, ip), fmt.Sprintf("Endpoints[%d].URL", i), "has the host %s, which is not a public address", ip)
	}
	return configError(wrong)
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
// An IPv6 address that carries an IPv4 address is public if the IPv4 address is. A NAT64 prefix
// that a network has taken from its own addresses (RFC 6052) looks like any other, so a NAT64
// gateway with such a prefix must itself refuse private addresses.
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
