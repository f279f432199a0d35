package webhook

import (
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const maxHost = 255 // bytes of a URL's host

// checkHost refuses hosts that are neither a name nor an address in its usual form. Resolvers and
// proxies may take them for an address: some read 2130706433, 0x7f.1 and 017700000001 as 127.0.0.1.
func checkHost(field string, u *url.URL) error {
	host := u.Hostname()
	if len(host) > maxHost {
		return refuse(field, "has a host of %d bytes, the limit is %d", len(host), maxHost)
	}
	if strings.HasPrefix(u.Host, "[") {
		ip, err := netip.ParseAddr(host)
		if err != nil || !ip.Is6() {
			return refuse(field, "has something in brackets that is no IPv6 address")
		}
		for _, c := range ip.Zone() {
			if !isHostChar(c) {
				return refuse(field, "has a zone with a character other than letters, digits, - . and _")
			}
		}
		return nil
	}
	if !utf8.ValidString(host) {
		return refuse(field, "has a host that is no text in UTF-8")
	}
	for _, c := range host {
		if c < utf8.RuneSelf && !isHostChar(c) || c >= utf8.RuneSelf && !isInternational(c) {
			return refuse(field, "has a host with the character %q", c)
		}
	}
	labels := strings.Split(strings.TrimSuffix(strings.Map(folded, host), "."), ".")
	if slices.Contains(labels, "") {
		return refuse(field, "has a host with an empty label")
	}
	if !isNumber(labels[len(labels)-1]) {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.Is4() {
		return refuse(field, "has a host that ends in a number; an IPv4 address is four decimal numbers")
	}
	return nil
}

// isHostChar reports whether c may be in an ASCII host name. Some hosts have an underscore.
func isHostChar(c rune) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '.' || c == '_'
}

// isInternational reports whether c may be in an internationalised name; net/http checks exactly.
func isInternational(c rune) bool {
	const nonJoiner, joiner = '\u200c', '\u200d'
	return unicode.IsGraphic(c) && !unicode.IsSpace(c) || c == nonJoiner || c == joiner
}

// folded returns the ASCII character that c stands for in a host name, or -1 if c is dropped. It
// roughly imitates UTS #46: for example, any number character outside ASCII becomes 0.
func folded(c rune) rune {
	switch {
	case c == '\u3002' || c == '\uff61': // ideographic full stops
		return '.'
	case 0xff01 <= c && c <= 0xff5e: // full-width forms of ASCII
		return c - 0xff01 + '!'
	case c >= utf8.RuneSelf && unicode.IsNumber(c):
		return '0'
	case unicode.Is(unicode.Variation_Selector, c) || c == '\u034f': // invisible
		return -1
	}
	return c
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
