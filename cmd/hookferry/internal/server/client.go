package server

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// maxHops bounds the addresses of X-Forwarded-For that are looked at.
const maxHops = 32

// clientIP returns the address of whoever sent a request: the peer's or, as long
// as that is a trusted proxy, the one which the proxy says it got the request
// from. What is left of the first that is not trusted anybody may have written.
func clientIP(r *http.Request, trusted []netip.Prefix) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	ip := peer.Addr().Unmap().WithZone("")
	if !contains(trusted, ip) {
		return ip.String()
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	slices.Reverse(hops)
	for _, hop := range hops[:min(len(hops), maxHops)] {
		next, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			break
		}
		if ip = next.Unmap().WithZone(""); !contains(trusted, ip) {
			break
		}
	}
	return ip.String()
}

func contains(prefixes []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(ip) })
}
