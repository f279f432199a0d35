package wire

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// A Target is an endpoint, with the parts that all requests to it have in common. It is
// used with one Client, and may be used concurrently.
type Target struct {
	// NetHTTP makes all requests with net/http, for a receiver whose HTTP/1.1 this package refuses.
	// It must be set before the first request.
	NetHTTP bool

	url    *url.URL
	header http.Header
	tls    *tls.Config // nil: the configuration of the Client
	key    key
	host   string // value of the header Host
	head   []byte // head of a request, up to the value of Content-Length
}

// A key identifies the connections that requests can share.
type key struct {
	secure   bool
	addr     string // host:port
	identity identity
}

// An identity stands for a TLS configuration: connections with different client certificates or
// different roots are never shared. The zero identity is that of the Client.
type identity struct {
	certificates [sha256.Size]byte // a digest of the client certificates
	roots        *x509.CertPool
}

func identityOf(c *tls.Config) identity {
	if c == nil {
		return identity{}
	}
	h := sha256.New()
	for _, certificate := range c.Certificates {
		fmt.Fprintf(h, "%x", certificate.Certificate) // the brackets and spaces keep chains and certificates apart
	}
	return identity{[sha256.Size]byte(h.Sum(nil)), c.RootCAs}
}

// NewTarget returns a Target for u, an http or https URL with a host in ASCII. header is sent with
// each request. Its names and values must be valid, and it must have User-Agent and
// Content-Type. tls replaces the Client's configuration, unless it is nil. Targets with the same
// client certificates and the same RootCAs must have configurations that are equal otherwise, too.
// The caller must not change the three arguments afterwards.
func NewTarget(u *url.URL, header http.Header, tls *tls.Config) *Target {
	t := &Target{url: u, header: header, tls: tls, key: key{secure: u.Scheme == "https", identity: identityOf(tls)}}
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	t.key.addr = net.JoinHostPort(u.Hostname(), port)
	t.host = u.Host
	if begin, rest, ok := strings.Cut(u.Host, "%"); ok { // the zone of an IPv6 address is this machine's
		t.host = begin + rest[strings.IndexByte(rest, ']'):]
	}
	var head bytes.Buffer
	fmt.Fprintf(&head, "POST %s HTTP/1.1\r\nHost: %s\r\n", u.RequestURI(), t.host)
	header.Write(&head)
	head.WriteString("Content-Length: ")
	t.head = head.Bytes()
	return t
}

// appendHead appends the head of a request with a body of length bytes and additional header lines.
func (t *Target) appendHead(dst, lines []byte, length int) []byte {
	dst = append(dst, t.head...)
	dst = strconv.AppendInt(dst, int64(length), 10)
	dst = append(dst, "\r\n"...)
	dst = append(dst, lines...)
	return append(dst, "\r\n"...)
}
