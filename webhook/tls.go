package webhook

import (
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"weak"
)

// MaxCertificates is how many client certificates a destination may have.
const MaxCertificates = 5

// TLS holds the TLS settings of one destination.
type TLS struct {
	// Certificates are shown to an endpoint that asks for a client certificate: at most
	// MaxCertificates, as tls.LoadX509KeyPair reads them. Empty means the certificates of
	// Config.TLSClientConfig.
	Certificates []tls.Certificate
	// RootCAs are the only authorities that may have signed the certificates of the endpoints. Nil
	// means the authorities of Config.TLSClientConfig.
	RootCAs *x509.CertPool
}

// check refuses certificates that cannot be used, and those without their private key. Destinations
// with the same certificates share connections, and a certificate is public.
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

// config returns a copy of base with the settings of t, and at least TLS 1.2. It drops the session
// cache, because TLS would resume sessions that began with other certificates.
func (t *TLS) config(base *tls.Config) *tls.Config {
	c := base.Clone()
	if c == nil {
		c = new(tls.Config)
	}
	c.MinVersion = max(c.MinVersion, tls.VersionTLS12)
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
	c.ClientSessionCache = nil // package wire makes a session cache for each host
	return c
}

// hash returns a digest of the client certificates.
func (t *TLS) hash() [sha256.Size]byte {
	h := sha256.New()
	for _, c := range t.Certificates {
		fmt.Fprintf(h, "%x", c.Certificate) // the brackets and spaces keep chains and certificates apart
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// tlsConfigs holds the TLS configurations of destinations that set TLS. Destinations with equal
// settings share one configuration, and only they share connections.
type tlsConfigs struct {
	base *tls.Config

	mu  sync.Mutex
	own map[[sha256.Size]byte][]ownConfig // by TLS.hash
}

// An ownConfig is the configuration for one combination of settings. Its pointer is weak: the
// configuration lives only as long as a target or an open connection refers to it. With Lookup,
// destinations come and go, and may be compiled again for each attempt.
type ownConfig struct {
	roots  *x509.CertPool
	config weak.Pointer[tls.Config]
}

func newTLSConfigs(base *tls.Config) *tlsConfigs {
	return &tlsConfigs{base: base, own: map[[sha256.Size]byte][]ownConfig{}}
}

// of returns the configuration for t. For a nil t it returns nil, which stands for the
// configuration of the forwarder.
func (cs *tlsConfigs) of(t *TLS) *tls.Config {
	if t == nil {
		return nil
	}
	key := t.hash()
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, o := range cs.own[key] {
		if o.roots.Equal(t.RootCAs) {
			if config := o.config.Value(); config != nil {
				return config
			}
		}
	}
	config := t.config(cs.base)
	cs.own[key] = append(cs.own[key], ownConfig{t.RootCAs, weak.Make(config)})
	runtime.AddCleanup(config, cs.drop, key)
	return config
}

// drop removes the configurations with this hash that nothing refers to any more.
func (cs *tlsConfigs) drop(key [sha256.Size]byte) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.own[key] = slices.DeleteFunc(cs.own[key], func(o ownConfig) bool { return o.config.Value() == nil })
	if len(cs.own[key]) == 0 {
		delete(cs.own, key)
	}
}
