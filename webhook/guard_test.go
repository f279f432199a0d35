package webhook

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/hookferry/analytics/internal/dial"
)

func TestIsPublic(t *testing.T) {
	for _, tt := range []struct {
		name  string
		want  bool
		addrs []string
	}{
		{"public", true, []string{"1.1.1.1", "8.8.8.8", "93.184.215.14", "2606:4700:4700::1111", "2a00:1450:4001::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1", "2000::", "2606:4700::5efe:808:808"}},
		{"unspecified and this network", false, []string{"0.0.0.0", "0.1.2.3", "::"}},
		{"loopback", false, []string{"127.0.0.1", "127.1.2.3", "127.255.255.255", "::1", "::ffff:127.0.0.1"}},
		{"private", false, []string{"10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "192.168.0.0", "10.255.255.255", "fc00::1", "fd12:3456::1", "::ffff:10.0.0.1", "::ffff:c0a8:0101"}},
		{"link local and metadata", false, []string{"169.254.0.1", "169.254.169.254", "fe80::1", "fe80::1%eth0", "febf::1", "fec0::1", "::ffff:169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "192.0.0.192", "168.63.129.16", "::ffff:168.63.129.16"}},
		{"carrier-grade NAT", false, []string{"100.64.0.1", "100.127.255.255", "100.100.100.200"}},
		{"multicast and reserved", false, []string{"224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "ff02::1"}},
		{"protocol, documentation, benchmarking", false, []string{"192.0.0.1", "192.0.0.170", "192.0.2.1", "192.31.196.1", "192.52.193.1", "192.88.99.2", "192.175.48.1", "198.19.255.255", "198.18.0.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1", "100::1", "100:0:0:1::1", "5f00::1", "2001:1::1", "2001:2::1", "2001:20::1", "2001:1ff:ffff::", "2620:4f:8000::1"}},
		{"IPv4 inside IPv6", false, []string{"64:ff9b::10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::1", "2002:a00:1::", "2002:a9fe:a9fe::1", "::10.0.0.1", "::7f00:1", "::ffff:0:10.0.0.1", "2001::1", "64:ff9b::100.100.100.200", "2606:4700::5efe:10.0.0.1", "fe80::5efe:8.8.8.8", "2606:4700::200:5efe:a9fe:a9fe"}},
		{"not in use", false, []string{"1::1", "1fff:ffff::1", "4000::1", "64:ff9b:2::1", "8000::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, s := range tt.addrs {
				if got := IsPublic(netip.MustParseAddr(s)); got != tt.want {
					t.Errorf("IsPublic(%s) = %v, want %v", s, got, tt.want)
				}
			}
		})
	}
	if IsPublic(netip.Addr{}) {
		t.Error("IsPublic(netip.Addr{}) = true, want false")
	}
}

// The guard checks the address that it dials, whatever the host was.
func TestGuardChecksTheResolvedAddress(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

	resolver := newResolver(t, func(string) []netip.Addr { return []netip.Addr{netip.MustParseAddr("127.0.0.1")} })
	for _, tt := range []struct {
		name  string
		guard *guard
		host  string
		ok    bool
	}{
		{"address", &guard{}, "127.0.0.1", false},
		{"mapped address", &guard{}, "::ffff:127.0.0.1", false},
		{"unspecified, which dials loopback", &guard{}, "0.0.0.0", false},
		{"name", &guard{}, "localhost", false},
		{"address in the allow-list", &guard{allow: loopback}, "127.0.0.1", true},
		{"name in the allow-list", &guard{allow: loopback}, "localhost", true},
		{"address, the operator wrote all URLs", &guard{operator: true}, "127.0.0.1", true},
		{"mapped address, the operator wrote all URLs", &guard{operator: true}, "::FFFF:127.0.0.1", true},
		{"localhost, the operator wrote all URLs", &guard{operator: true}, "LOCALHOST", true},
		{"name, the operator wrote all URLs", &guard{operator: true, dialer: dial.Dialer{Lookup: resolver.LookupNetIP}}, "a.example", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := tt.guard.dial(t.Context(), "tcp", net.JoinHostPort(tt.host, port))
			if c != nil {
				c.Close()
			}
			var ae *addressError
			if tt.ok && err != nil || !tt.ok && !errors.As(err, &ae) {
				t.Errorf("dial(%s) = %v, want ok %v, else an *addressError", tt.host, err, tt.ok)
			}
		})
	}
}
