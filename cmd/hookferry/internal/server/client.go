package server

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// clientIP returns the address of a request's client: that of the peer or, if it is a trusted proxy,
// the last of up to 32 in X-Forwarded-For that is none. Anybody may have written the rest.
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
