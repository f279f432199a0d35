package webhook

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"

	"github.com/hookferry/analytics/check"
)

const maxCertificates = 5 // client certificates of a destination

// TLS holds the TLS settings of one destination.
type TLS struct {
	// Certificates are client certificates, at most five, as tls.LoadX509KeyPair reads
	// them. Empty means those of Config.TLSClientConfig.
	Certificates []tls.Certificate
	// RootCAs are the only authorities that may have signed certificates of the endpoints, nil
	// means those of Config.TLSClientConfig. Only destinations with the same pointer share
	// connections.
	RootCAs *x509.CertPool
}

// check refuses certificates that cannot be used, and those without their private key: destinations
// with the same certificates share connections, and a certificate is public.
func (t *TLS) check(wrong *check.Faults) {
	n := len(t.Certificates)
	wrong.Refuse(n > maxCertificates, "TLS.Certificates", "%d given; at most %d are allowed", n, maxCertificates)
	for i := range t.Certificates {
		wrong.Add(fmt.Sprintf("TLS.Certificates[%d]", i), checkCertificate(&t.Certificates[i]))
	}
}

func checkCertificate(c *tls.Certificate) (problem string) {
	if len(c.Certificate) == 0 {
		return "has no certificate"
	}
	leaf, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil {
		return "cannot be parsed"
	}
	signer, ok := c.PrivateKey.(crypto.Signer)
	if !ok {
		return "has no private key"
	}
	public, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(signer.Public()) {
		return "has a private key that is not that of the certificate"
	}
	return ""
}

// PEM has the texts of TLS in a document.
type PEM struct {
	Certificate string `json:"certificate,omitempty"` // of the client; empty for none
	Key         string `json:"key,omitempty"`         // of the Certificate, a secret
	CA          string `json:"ca,omitempty"`          // the authorities; empty for those of Config.TLSClientConfig
}

// Parse returns what the texts say, nil for nil. The error joins a *ConfigError for each fault. With an
// error, the result is one that no destination can have.
func (p *PEM) Parse() (*TLS, error) {
	if p == nil {
		return nil, nil
	}
	t, wrong := new(TLS), check.Faults(nil)
	if p.Certificate != "" || p.Key != "" {
		pair, err := tls.X509KeyPair([]byte(p.Certificate), []byte(p.Key))
		wrong.Refuse(p.Certificate == "", "TLS.Certificate", "is required")
		wrong.Refuse(p.Key == "", "TLS.Key", "is required")
		wrong.Refuse(wrong == nil && err != nil, "TLS.Certificate", "is no certificate in PEM to which the key belongs")
		t.Certificates = []tls.Certificate{pair}
	}
	if p.CA != "" {
		t.RootCAs = x509.NewCertPool()
		wrong.Refuse(!t.RootCAs.AppendCertsFromPEM([]byte(p.CA)), "TLS.CA", "holds no certificate in PEM")
	}
	if wrong != nil {
		t.Certificates = make([]tls.Certificate, 1)
	}
	return t, configError(wrong)
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
