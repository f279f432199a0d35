package wire

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// A Target is an endpoint with the parts that its requests have in common. It is used
// with one Client, and may be used concurrently.
type Target struct {
	// NetHTTP has net/http make all requests, for a receiver whose HTTP/1.1 this
	// package refuses. It is set before the first request.
	NetHTTP bool

	url     *url.URL
	header  http.Header
	key     key
	foreign bool   // only net/http knows how to spell the host
	head    []byte // of a request, up to the value of Content-Length
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
	// net/http has the tables and rules to spell names in other scripts in punycode,
	// and to leave out zones of IPv6 addresses.
	t.foreign = strings.Trim(u.Host, hostBytes) != ""
	var head bytes.Buffer
	fmt.Fprintf(&head, "POST %s HTTP/1.1\r\nHost: %s\r\n", u.RequestURI(), u.Host)
	header.Write(&head)
	head.WriteString("Content-Length: ")
	t.head = head.Bytes()
	return t
}

// hostBytes are the bytes of host names and addresses that are sent unchanged.
const hostBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:[]"

// appendHead appends the head of a request.
func (t *Target) appendHead(dst, lines []byte, length int) []byte {
	dst = append(dst, t.head...)
	dst = strconv.AppendInt(dst, int64(length), 10)
	dst = append(dst, "\r\n"...)
	dst = append(dst, lines...)
	return append(dst, "\r\n"...)
}
