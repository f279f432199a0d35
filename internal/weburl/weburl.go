// Package weburl parses URLs that people enter.
package weburl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Parse parses s as url.Parse does, and maps an international host to its ASCII form, the form for
// requests, TLS handshakes and look-ups. It refuses characters that cannot be seen: they get into
// copied text, and the URL is then not the one that the reader sees. An error is the end of a
// sentence about the URL, such as "is no URL". It quotes no part of s, which may hold a password.
func Parse(s string) (*url.URL, error) {
	if i := strings.IndexFunc(s, isInvisible); i >= 0 {
		c, _ := utf8.DecodeRuneInString(s[i:])
		return nil, fmt.Errorf("has a space or an invisible character, %U, at byte %d; remove it, or percent-encode it", c, i)
	}
	if c, size := utf8.DecodeLastRuneInString(s); isJoiner(c) {
		return nil, fmt.Errorf("has an invisible character, %U, at byte %d; remove it, or percent-encode it", c, len(s)-size)
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, errors.New("is no URL")
	}
	if host := u.Hostname(); !isASCII(host) && !strings.HasPrefix(u.Host, "[") {
		mapped := toASCII(host)
		if !isASCII(mapped) || !utf8.ValidString(host) {
			return nil, errors.New("has a host that is no valid international name")
		}
		u.Host = mapped + u.Host[len(host):]
	}
	return u, nil
}

// ParseBase parses an http or https URL with a host, perhaps a path, and nothing else. Its errors
// have the form of those of Parse.
func ParseBase(s string) (*url.URL, error) {
	u, err := Parse(s)
	switch {
	case err != nil:
		return nil, err
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("is not an http or https URL")
	case u.Hostname() == "":
		return nil, errors.New("has no host")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, errors.New("has a user name, a query or a fragment; a scheme, a host and a path are allowed")
	}
	return u, nil
}

// isInvisible reports whether c is a space, a control character, or an invisible character that no
// language needs inside a word.
func isInvisible(c rune) bool {
	const blank = '\u2800' // BRAILLE PATTERN BLANK
	return unicode.IsSpace(c) || c == blank || !unicode.IsGraphic(c) && !isJoiner(c) ||
		unicode.In(c, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) && !isJoiner(c)
}

// isJoiner reports whether c is the joiner or the non-joiner, which names in some scripts have.
func isJoiner(c rune) bool { return c == '\u200c' || c == '\u200d' }

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return c >= utf8.RuneSelf })
}

// toASCII maps a host by UTS #46, as idna.Lookup.ToASCII of golang.org/x/net does. It returns an
// invalid name as it is. net/http does the mapping, but shows the result only as the address that
// it dials. A dependency would add the tables of x/net and x/text, 500 KB, to every program.
func toASCII(host string) string {
	dialled := ""
	t := http.Transport{DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
		dialled, _, _ = net.SplitHostPort(addr)
		return nil, net.ErrClosed // ends the request
	}}
	t.RoundTrip(&http.Request{URL: &url.URL{Scheme: "http", Host: host}, Header: http.Header{}})
	return dialled
}
