package webhook

import (
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"weak"
)

// MaxCertificates is how many client certificates a destination may have.
const MaxCertificates = 5

// TLS is how the connections to one destination differ from those to others.
type TLS struct {
	// Certificates are what the forwarder shows to an endpoint that asks for
	// a client certificate, as tls.LoadX509KeyPair reads them: at most
	// MaxCertificates. Empty means those of Config.TLSClientConfig.
	Certificates []tls.Certificate
	// RootCAs are the authorities that may have signed the certificates of the
	// endpoints, and no others. Nil means those of Config.TLSClientConfig.
	RootCAs *x509.CertPool
}

// check refuses certificates that cannot be used. That a certificate has its
// key matters beyond this destination: destinations with the same certificates
// share connections, and certificates are public.
func (t *TLS) check() error {
	if n := len(t.Certificates); n > MaxCertificates {
		return refuse("TLS.Certificates", "%d given; at most %d are allowed", n, MaxCertificates)
	}
	for i := range t.Certificates {
		field := fmt.Sprintf("TLS.Certificates[%d]", i)
		c := &t.Certificates[i]
		if len(c.Certificate) == 0 {
			return refuse(field, "has no certificate")
		}
		leaf, err := x509.ParseCertificate(c.Certificate[0])
		if err != nil {
			return refuse(field, "cannot be parsed")
		}
		signer, ok := c.PrivateKey.(crypto.Signer)
		if !ok {
			return refuse(field, "has no private key")
		}
		public, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
		if !ok || !public.Equal(signer.Public()) {
			return refuse(field, "has a private key that is not that of the certificate")
		}
	}
	return nil
}

// config returns base with what differs. Sessions are not taken from base: one
// that was begun with other certificates would be resumed with them.
func (t *TLS) config(base *tls.Config) *tls.Config {
	c := base.Clone()
	if c == nil {
		c = new(tls.Config)
	}
	if t == nil {
		return c
	}
	if len(t.Certificates) > 0 {
		c.Certificates = slices.Clone(t.Certificates)
		c.GetClientCertificate = nil
	}
	if t.RootCAs != nil {
		c.RootCAs = t.RootCAs
	}
	if c.ClientSessionCache != nil {
		c.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	}
	return c
}

// hash is the same for equal certificates.
func (t *TLS) hash() [sha256.Size]byte {
	h := sha256.New()
	for _, c := range t.Certificates {
		binary.Write(h, binary.BigEndian, uint64(len(c.Certificate)))
		for _, der := range c.Certificate {
			binary.Write(h, binary.BigEndian, uint64(len(der)))
			h.Write(der)
		}
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// transports has the transports of a forwarder: one for the destinations
// without TLS settings, and one for each that is different of the others.
// Requests with different settings never share a connection.
type transports struct {
	shared *http.Transport
	make   func(*TLS) *http.Transport

	mu  sync.Mutex
	own map[[sha256.Size]byte][]ownTransport // by TLS.hash
	n   int                                  // in own
	max int                                  // of n, before what is gone is looked for
}

// An ownTransport is kept for as long as a target or an open connection refers
// to it: with Lookup, destinations come and go, and may be made afresh for each
// attempt.
type ownTransport struct {
	roots     *x509.CertPool
	transport weak.Pointer[http.Transport]
}

func newTransports(make func(*TLS) *http.Transport) *transports {
	return &transports{
		shared: make(nil),
		make:   make,
		own:    map[[sha256.Size]byte][]ownTransport{},
		max:    16,
	}
}

// of returns the transport for t, which may be nil.
func (ts *transports) of(t *TLS) *http.Transport {
	if t == nil {
		return ts.shared
	}
	key := t.hash()
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, o := range ts.own[key] {
		if o.roots.Equal(t.RootCAs) {
			if transport := o.transport.Value(); transport != nil {
				return transport
			}
		}
	}
	if ts.n >= ts.max {
		ts.sweep()
	}
	transport := ts.make(t)
	ts.own[key] = append(ts.own[key], ownTransport{t.RootCAs, weak.Make(transport)})
	ts.n++
	return transport
}

// sweep forgets what is gone.
func (ts *transports) sweep() {
	ts.n = 0
	for key, os := range ts.own {
		os = slices.DeleteFunc(os, func(o ownTransport) bool { return o.transport.Value() == nil })
		ts.n += len(os)
		if len(os) == 0 {
			delete(ts.own, key)
		} else {
			ts.own[key] = os
		}
	}
	ts.max = max(16, 2*ts.n)
}

// CloseIdleConnections closes those of all transports.
func (ts *transports) CloseIdleConnections() {
	all := []*http.Transport{ts.shared}
	ts.mu.Lock()
	for _, os := range ts.own {
		for _, o := range os {
			if transport := o.transport.Value(); transport != nil {
				all = append(all, transport)
			}
		}
	}
	ts.mu.Unlock()
	for _, transport := range all {
		transport.CloseIdleConnections()
	}
}
