package webhook

import (
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/internal/dial"
	"github.com/hookferry/analytics/webhook/internal/wire"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// spellings are hosts that some parser or resolver takes for 127.0.0.1 or another non-public
// address.
var spellings = []string{
	"127.0.0.1", "127.0.0.1.", "127.1", "127.0.1", "2130706433", "2130706433.", "0x7f000001", "0x7f.1", "0X7F.0.0.1", "0x7f.0x0.0x0.0x1",
	"017700000001", "0177.0.0.1", "0177.0.0.01", "127.0.0.010", "00127.0.0.1", "127.0.0.1:80", "0", "0x", "0x0", "0.0.0.0", "000.000.000.000",
	"4294967295", "0xffffffff", "255.255.255.255", "99999999999999999999", "256.256.256.256", "127.0.0.1.1", "1.2.3", "127.0.0.0x1",
	"169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "0xA9.254.0251.254",
	"100.100.100.200", "192.0.0.192", "168.63.129.16",
	"[::]", "[::1]", "[0:0:0:0:0:0:0:1]", "[0000:0000:0000:0000:0000:0000:0000:0001]", "[::127.0.0.1]", "[::7f00:1]",
	"[::ffff:127.0.0.1]", "[::FFFF:7F00:1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[::ffff:0:127.0.0.1]", "[::ffff:169.254.169.254]",
	"[64:ff9b::127.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::10.0.0.1]", "[2002:7f00:1::]", "[2002:a9fe:a9fe::1]", "[2001:0:7f00:1::]",
	"[fd00:ec2::254]", "[fe80::1]", "[fe80::1%25lo]", "[fe80::1%25eth0]", "[::1%25lo]", "[fec0::1]", "[ff02::1]",
	"[127.0.0.1]", "[::1", "[]", "[::1]x", "[v1.127.0.0.1]",
	"localhost", "LOCALHOST", "LocalHost", "localhost.", "LOCALHOST.", "a.localhost", "a.b.localhost.", "ip6-localhost",
	"%31%32%37.0.0.1", "127%2e0%2e0%2e1", "%6cocalhost", "127.0.0.1%00", "127.0.0.1%0d%0a", "127.0.0.1%20", "127.0.0.1%23x", "%",
	"１２７.０.０.１", "127。0。0。1", "127．0．0．1", "127｡0｡0｡1", "①②⑦.⓪.⓪.①", "𝟏𝟐𝟕.𝟎.𝟎.𝟏", "²¹³⁰⁷⁰⁶⁴³³", "２１３０７０６４３３", "０ｘ７ｆ.1",
	"127.0.0.1\ufe0f", "١٢٧.٠.٠.١", "ｌｏｃａｌｈｏｓｔ", "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "localhoﬆ", "LOCALHOſT", "%EF%BC%91%EF%BC%92%EF%BC%97.0.0.1",
	"\u00ad127.0.0.1", "127.0.0.1\u200b", "127.0.0.1\u0000", "127.0.0.1\u2028",
	"user@127.0.0.1", "public.example@127.0.0.1", "127.0.0.1\\@public.example", "public.example\\127.0.0.1", "127.0.0.1#@public.example",
	"127.0.0.1?@public.example", "127.0.0.1 public.example", "127.0.0.1\tx", "127.0.0.1;public.example", "127.0.0.1,public.example",
	".", "..", ".127.0.0.1", "127..0.0.1", "127.0.0.1..", ":80",
	"private.example", "PRIVATE.example", "private.example.",
}

// lenientLookup resolves a name like a resolver that accepts every spelling of an IPv4 address. It
// resolves all other names to loopback addresses.
func lenientLookup(name string) []netip.Addr {
	if ip, ok := inetAton(name); ok {
		return []netip.Addr{ip}
	}
	return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}
}

// inetAton parses an address as the C function inet_aton does: up to four numbers, each decimal,
// octal or hexadecimal. The last number fills all remaining bytes.
func inetAton(s string) (netip.Addr, bool) {
	parts := strings.Split(strings.TrimSuffix(s, "."), ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var ip uint64
	for i, p := range parts {
		if strings.ContainsAny(p, "_+-") || strings.HasPrefix(strings.ToLower(p), "0b") || strings.HasPrefix(strings.ToLower(p), "0o") {
			return netip.Addr{}, false
		}
		n, err := strconv.ParseUint(p, 0, 32)
		limit := uint64(1) << 8
		if i == len(parts)-1 {
			limit = 1 << (8 * (5 - len(parts)))
		}
		if err != nil || n >= limit {
			return netip.Addr{}, false
		}
		if i == len(parts)-1 {
			ip = ip<<(8*(5-len(parts))) | n
		} else {
			ip = ip<<8 | n
		}
	}
	return netip.AddrFrom4([4]byte{byte(ip >> 24), byte(ip >> 16), byte(ip >> 8), byte(ip)}), true
}

// Each spelling is refused either when the settings are compiled or when a request dials the
// address.
func TestEverySpellingOfANonPublicAddressIsRefused(t *testing.T) {
	g := &guard{dialer: dial.Dialer{Lookup: newResolver(t, lenientLookup).LookupNetIP}}
	client := newClient(&Config{Timeout: Never, MaxInFlight: 1}, g, t.Context())
	defer client.Close()
	s := &sender{clients: &clients{client, client}}
	for _, host := range spellings {
		for _, scheme := range []string{"http://", "https://"} {
			e := compileEndpoint("", &Endpoint{URL: scheme + host + "/hook"}, "Test", new(check.Faults))
			if e == nil {
				continue
			}
			e.wire, e.target = wire.NewTarget(e.url, e.header, nil), &target{source: new(Destination), timeout: Never}
			res := s.send(t.Context(), &Delivery{ID: "id", Body: []byte("{}")}, e)
			if res.outcome != OutcomePermanent || res.attempt.Reason != ReasonAddress {
				t.Errorf("%s%s: got the error %s and the reason %q, want %q", scheme, host, res.attempt.Error, res.attempt.Reason, ReasonAddress)
			}
		}
	}
}

func TestCheckURLRefusesInvalidHosts(t *testing.T) {
	for _, tt := range []struct {
		name  string
		ok    bool
		hosts []string
	}{
		{"names", true, []string{"crm.example", "CRM.example", "crm.example.", "a_b.example", "localhost", "1.example", "0x7f.example", "127.0.0.1.example", "1e100.net", "xn--mnchen-3ya.example", "x", "example.0xg", "3com"}},
		{"international names", true, []string{"münchen.example", "例え.example", "例え。example", "नमस्ते.example", "☃.example", "пример.рф", "m%C3%BCnchen.example"}},
		{"addresses", true, []string{"93.184.215.14", "[2606:4700::1]", "[::ffff:93.184.215.14]", "127.0.0.1", "[fe80::1%25eth0]"}},
		{"numbers", false, []string{"2130706433", "0x7f.1", "017700000001", "127.1", "127.0.0.1.", "127.0.0.01", "1.2.3.4.5", "0x", "example.1", "example.0x1", "example.１", "example.①", "example.1\ufe0f"}},
		{"other characters", false, []string{"a%25b", "a,b", "a;b", "a&b", "a\"b", "a<b", "a(b", "a!b", "a*b", "a'b", "a=b", "a$b", "a+b", "a%C2%A0b", "a%E2%80%A8b", "a%80b", "a%C2%85b"}},
		{"labels", false, []string{".example", "a..b", "a..", "a。。b"}},
		{"brackets", false, []string{"[127.0.0.1]", "[crm.example]", "[]", "[fe80::1%25a b]", "[fe80::1%25a\"b]"}},
		{"length", false, []string{strings.Repeat("a.", 128)}},
		{"invisible characters", false, []string{"crm.example/ ", "crm.example/hook\u200b", " crm.example", "crm.\u00adexample", "crm.example/a\tb", "crm.example/?a=b c", "crm.example/\ufeff"}},
		{"invalid international names", false, []string{"a_ü.example", "xn--a.ü.example", "ü-.example", "\u0301a.example"}},
	} {
		for _, host := range tt.hosts {
			if _, problem := checkURL("http://" + host + "/"); (problem == "") != tt.ok {
				t.Errorf("%s: checkURL(http://%s/) finds %q, want ok %v", tt.name, host, problem, tt.ok)
			}
		}
	}
}

// International names are mapped once (UTS #46), for the look-up, the certificate, and the Host or
// :authority of the request, whatever makes the request.
func TestInternationalHostsAreMapped(t *testing.T) {
	for _, tt := range []struct{ name, host, want string }{
		{"capital", "Österreich.test", "xn--sterreich-z7a.test"},
		{"full width", "ｂüｃｈｅｒ。test", "xn--bcher-kva.test"},
		{"decomposed", "bu\u0308cher.test:8443", "xn--bcher-kva.test:8443"},
	} {
		for _, netHTTP := range []bool{false, true} {
			for _, scheme := range []string{"http", "https", "HTTP/2"} {
				synctest.Test(t, func(t *testing.T) {
					network := webhooktest.NewNetwork()
					defer network.Close()
					u := "https://"
					if scheme == "http" {
						u = "http://"
					}
					recv := network.Receiver(u+tt.want+"/", "")
					if scheme == "HTTP/2" {
						recv.SetTLS(webhooktest.TLS{HTTP2: true})
					}
					config := &Config{ServiceName: "Test", Timeout: 5 * time.Second, MaxInFlight: 1, MaxConcurrent: 1, DialContext: network.DialContext, TLSClientConfig: network.TLSClientConfig()}
					to, err := compile(&Destination{ID: "crm", Endpoints: []Endpoint{{URL: u + tt.host + "/hook"}}, NetHTTP: netHTTP}, config, nil)
					must(t, err)
					c := newClient(config, nil, t.Context())
					defer c.Close()
					s := &sender{clients: &clients{c, c}}
					for range 2 {
						if res := s.send(t.Context(), &Delivery{ID: "m1", Body: []byte("{}")}, to.endpoints[0]); res.outcome != OutcomeDelivered {
							t.Errorf("%s by %s, NetHTTP %t: send = %+v, want it delivered", tt.name, scheme, netHTTP, res.attempt)
						}
					}
					for _, r := range recv.Requests() {
						if r.Host != tt.want || (r.Proto == "HTTP/2.0") != (scheme == "HTTP/2") {
							t.Errorf("%s by %s, NetHTTP %t: got a request by %s for the host %q, want %q", tt.name, scheme, netHTTP, r.Proto, r.Host, tt.want)
						}
					}
				})
			}
		}
	}
}

// A name that resolves to several addresses is refused for good only if the guard refuses all of
// them. 127.0.0.1 is on the allow-list and stands for the public addresses.
func TestGuardRefusesANameOnlyIfAllItsAddressesAreNonPublic(t *testing.T) {
	open, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer open.Close()
	_, openPort, _ := net.SplitHostPort(open.Addr().String())
	// The local port of a connected client is a port at which nothing listens, and nothing can.
	client, err := net.Dial("tcp", open.Addr().String())
	must(t, err)
	defer client.Close()
	_, closedPort, _ := net.SplitHostPort(client.LocalAddr().String())
	for _, tt := range []struct {
		name   string
		addrs  []string
		port   string
		reason Reason // "" if a connection is made
	}{
		// Addresses of equal preference are dialed in the order of the answer.
		{"the only one refused", []string{"10.0.0.1"}, openPort, ReasonAddress},
		{"all refused", []string{"10.0.0.1", "169.254.169.254", "fd00:ec2::254"}, openPort, ReasonAddress},
		{"none refused", []string{"127.0.0.1"}, openPort, ""},
		{"first refused", []string{"127.0.0.2", "127.0.0.1"}, openPort, ""},
		{"last refused", []string{"127.0.0.1", "127.0.0.2"}, openPort, ""},
		{"other family refused", []string{"::1", "127.0.0.1"}, openPort, ""},
		{"first refused, the others fail", []string{"127.0.0.2", "127.0.0.1"}, closedPort, ReasonConnection},
		{"last refused, the others fail", []string{"127.0.0.1", "127.0.0.2", "169.254.169.254"}, closedPort, ReasonConnection},
		{"other family refused, the others fail", []string{"::1", "127.0.0.1"}, closedPort, ReasonConnection},
	} {
		g := &guard{
			allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
			dialer: dial.Dialer{Lookup: newResolver(t, func(string) []netip.Addr {
				var ips []netip.Addr
				for _, a := range tt.addrs {
					ips = append(ips, netip.MustParseAddr(a))
				}
				return ips
			}).LookupNetIP},
		}
		c, err := g.dial(t.Context(), "tcp", "many.example:"+tt.port)
		if c != nil {
			c.Close()
		}
		var reason Reason
		if err != nil {
			_, reason = errorOutcome(err)
		}
		if reason != tt.reason || (c != nil) != (err == nil) {
			t.Errorf("%s: dial of %s = %v, %v with the reason %q, want %q", tt.name, tt.addrs, c, err, reason, tt.reason)
		}
	}
}

// DNS rebinding does not get past the guard: the address of a name changes between two lookups,
// from a public to a private one and back.
func TestGuardChecksTheAddressOfEachLookup(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	good, bad := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("169.254.169.254")
	for _, tt := range []struct {
		name  string
		addrs []netip.Addr
	}{
		{"to a private address", []netip.Addr{good, bad, bad}},
		{"there and back", []netip.Addr{good, bad, good, bad, good}},
		{"private first", []netip.Addr{bad, good}},
	} {
		now := 0
		g := &guard{
			allow:  []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
			dialer: dial.Dialer{Lookup: newResolver(t, func(string) []netip.Addr { return tt.addrs[now : now+1] }).LookupNetIP},
		}
		for now = range tt.addrs {
			c, err := g.dial(t.Context(), "tcp", "rebind.example:"+port)
			if c != nil {
				c.Close()
			}
			refused := isA[*addressError](err)
			if want := tt.addrs[now] == bad; refused != want || (c == nil) != want {
				t.Errorf("%s: lookup %d, of %v: dial = %v, %v, want refused %v", tt.name, now, tt.addrs[now], c, err, want)
			}
		}
	}
}

// FuzzHost checks the hosts that checkURL accepts. No parser takes such a host for another address,
// and the host has no special characters. Formatting and parsing the URL again keeps its host.
func FuzzHost(f *testing.F) {
	for _, host := range spellings {
		f.Add(host)
	}
	f.Add("crm.example")
	f.Fuzz(func(t *testing.T, host string) {
		u, problem := checkURL("http://" + host + "/")
		if problem != "" {
			return
		}
		name := u.Hostname()
		if ip, ok := inetAton(name); ok && ip.String() != name {
			t.Fatalf("%q is accepted, and inet_aton takes it for %v", name, ip)
		}
		if strings.ContainsAny(name, "\r\n\t \x00/\\@#?,;\"<>") {
			t.Fatalf("%q is accepted as a host, want an error", name)
		}
		again, err := url.Parse(u.String())
		if err != nil || again.Host != u.Host {
			t.Fatalf("%q is formatted as %q and parsed as %v, %v; want the same host", host, u, again, err)
		}
	})
}

// FuzzPublic checks that IsPublic gives the same result for an IPv4 address and for every IPv6 form
// that embeds it.
func FuzzPublic(f *testing.F) {
	for _, s := range []string{"127.0.0.1", "8.8.8.8", "169.254.169.254"} {
		ip := netip.MustParseAddr(s).As16()
		f.Add(ip[:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != 16 {
			return
		}
		ip := netip.AddrFrom16([16]byte(b))
		if IsPublic(ip) != IsPublic(ip.Unmap()) || IsPublic(ip) != IsPublic(ip.WithZone("eth0")) {
			t.Errorf("IsPublic(%v) changes with Unmap or a zone, want the same result", ip)
		}
		if std := net.IP(b); IsPublic(ip) && (std.IsPrivate() || std.IsLoopback() || std.IsUnspecified() || std.IsLinkLocalUnicast() || std.IsMulticast() || !std.IsGlobalUnicast()) {
			t.Errorf("IsPublic(%v) = true, want false as package net says", ip)
		}
		v4 := netip.AddrFrom4([4]byte(b[12:]))
		want := IsPublic(v4)
		q := v4.As4()
		for name, ip := range map[string]netip.Addr{
			"mapped": netip.AddrFrom16(v4.As16()),
			"NAT64":  netip.AddrFrom16([16]byte{1: 0x64, 2: 0xff, 3: 0x9b, 12: q[0], 13: q[1], 14: q[2], 15: q[3]}),
			"6to4":   netip.AddrFrom16([16]byte{0x20, 2, q[0], q[1], q[2], q[3], 15: 1}),
			"ISATAP": netip.AddrFrom16([16]byte{0x26, 6, 0x47, 0, 10: 0x5e, 11: 0xfe, 12: q[0], 13: q[1], 14: q[2], 15: q[3]}),
		} {
			if got := IsPublic(ip); got != want {
				t.Errorf("IsPublic(%v), the %s form of %v: got %v, want %v", ip, name, v4, got, want)
			}
		}
	})
}
