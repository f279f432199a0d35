package server

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// clientIP returns the address of a request's client. This is the address of the peer. If the peer
// is a trusted proxy, it is the last of up to 32 addresses in X-Forwarded-For that is not a trusted
// proxy. Anybody may have written the addresses before that one.
func clientIP(r *http.Request, trusted []netip.Prefix) string {
	ip, _ := peerOf(r.RemoteAddr)
	if !ip.IsValid() {
		return ""
	}
	if !contains(trusted, ip) {
		return ip.String()
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	slices.Reverse(hops)
	for _, hop := range hops[:min(len(hops), 32)] {
		next, ok := parseHop(strings.TrimSpace(hop))
		if !ok {
			break
		}
		if ip = next.Unmap().WithZone(""); !contains(trusted, ip) {
			break
		}
	}
	return ip.String()
}

// parseHop parses an address in X-Forwarded-For. Some proxies add a port, or brackets around IPv6.
func parseHop(hop string) (ip netip.Addr, ok bool) {
	if ap, err := netip.ParseAddrPort(hop); err == nil {
		return ap.Addr(), true
	}
	if inner, open := strings.CutPrefix(hop, "["); open {
		hop, ok = strings.CutSuffix(inner, "]")
		if !ok {
			return ip, false
		}
	}
	ip, err := netip.ParseAddr(hop)
	return ip, err == nil
}

func contains(prefixes []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(ip) })
}
