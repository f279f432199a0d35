package wire

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// A Target is an endpoint with what its requests have in common, made once. It
// is used with one Client, and may be used concurrently.
type Target struct {
	url     *url.URL
	header  http.Header
	key     key
	foreign bool   // for net/http alone
	head    []byte // of a request, up to the value of Content-Length

	host atomic.Pointer[host]
}

// A key names what connections have in common. Those of different TLS
// configurations are never shared.
type key struct {
	secure bool
	addr   string      // host:port
	tls    *tls.Config // the Target's own
}

// NewTarget returns a Target for u, an http or https URL with a host. header is
// sent with each request; its names and values are valid, and User-Agent and
// Content-Type are among them. tls, unless nil, stands in for the Client's
// configuration. All three belong to the Target from then on.
func NewTarget(u *url.URL, header http.Header, tls *tls.Config) *Target {
	t := &Target{url: u, header: header, key: key{secure: u.Scheme == "https", tls: tls}}
	port := u.Port()
	if port == "" {
		port = "80"
		if t.key.secure {
			port = "443"
		}
	}
	t.key.addr = net.JoinHostPort(u.Hostname(), port)
	// Names in other scripts are spelled in punycode, and zones of IPv6
	// addresses left out, by tables and rules that net/http has.
	if t.foreign = strings.Trim(u.Host, hostBytes) != ""; t.foreign {
		return t
	}
	t.head = append(t.head, "POST "...)
	t.head = append(t.head, u.RequestURI()...)
	t.head = append(t.head, " HTTP/1.1\r\nHost: "...)
	t.head = append(t.head, u.Host...)
	names := make([]string, 0, len(header))
	for name := range header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, value := range header[name] {
			t.head = append(t.head, "\r\n"...)
			t.head = append(t.head, name...)
			t.head = append(t.head, ": "...)
			t.head = append(t.head, value...)
		}
	}
	t.head = append(t.head, "\r\nContent-Length: "...)
	t.head = slices.Clip(t.head)
	return t
}

// hostBytes are the bytes of host names and addresses that are sent as they
// are.
const hostBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:[]"

// appendHead appends the head of a request.
func (t *Target) appendHead(dst, lines []byte, length int) []byte {
	dst = append(dst, t.head...)
	dst = strconv.AppendInt(dst, int64(length), 10)
	dst = append(dst, "\r\n"...)
	dst = append(dst, lines...)
	return append(dst, "\r\n"...)
}
