package webhook

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

const maxHost = 255 // bytes of a URL's host

// checkHost refuses hosts that are neither a name nor an address in its usual form. Resolvers and
// proxies may take them for an address: some read 2130706433, 0x7f.1 and 017700000001 as 127.0.0.1. An
// international host must have been mapped to ASCII.
func checkHost(u *url.URL) (problem string) {
	host := u.Hostname()
	if len(host) > maxHost {
		return fmt.Sprintf("has a host of %d bytes, the limit is %d", len(host), maxHost)
	}
	if strings.HasPrefix(u.Host, "[") {
		ip, err := netip.ParseAddr(host)
		if err != nil || !ip.Is6() {
			return "has something in brackets that is no IPv6 address"
		}
		for _, c := range ip.Zone() {
			if !isHostChar(c) {
				return "has a zone with a character other than letters, digits, - . and _"
			}
		}
		return ""
	}
	for _, c := range host {
		if !isHostChar(c) {
			return fmt.Sprintf("has a host with the character %q", c)
		}
	}
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	if slices.Contains(labels, "") {
		return "has a host with an empty label"
	}
	if !isNumber(labels[len(labels)-1]) {
		return ""
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.Is4() {
		return "has a host that ends in a number; an IPv4 address is four decimal numbers"
	}
	return ""
}

// isHostChar reports whether c may be in an ASCII host name. Some hosts have an underscore.
func isHostChar(c rune) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '.' || c == '_'
}

// isNumber reports whether a label reads as a number: digits, or "0x" and zero or more hexadecimal
// digits (WHATWG URL, "ends in a number"). No top-level domain is a number, so a host whose last
// label is one is meant as an address.
func isNumber(label string) bool {
	digits := "0123456789"
	if len(label) > 1 && label[0] == '0' && label[1]|0x20 == 'x' {
		label, digits = label[2:], "0123456789abcdefABCDEF"
	}
	return strings.Trim(label, digits) == ""
}
