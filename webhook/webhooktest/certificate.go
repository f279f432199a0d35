package webhooktest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"time"
)

// A Certificate is a kind of certificate that a receiver of an https URL presents.
type Certificate uint8

// The certificates.
const (
	// Trusted is valid for the receiver's host, and signed by the network's
	// authority; see [Network.TLSClientConfig].
	Trusted Certificate = iota
	// SelfSigned is valid for the receiver's host, and signed by itself.
	SelfSigned
	// Expired is like Trusted, but expired in 1999. That is before the time at
	// which a synctest bubble starts.
	Expired
	// WrongHost is like Trusted, but for another host.
	WrongHost
)

// TLS says how a receiver of an https URL uses TLS. The zero value means a
// Trusted certificate, any version from TLS 1.2 on, and HTTP/1.1.
type TLS struct {
	Certificate Certificate
	// MaxVersion is the latest version that the receiver speaks, such as tls.VersionTLS11. If it is
	// set, the earliest version is TLS 1.0. Zero means no limit.
	MaxVersion uint16
	// HTTP2 makes the receiver also speak HTTP/2, with clients that do.
	HTTP2 bool
}

// An authority signs certificates.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority() *authority {
	a := &authority{key: newKey()}
	template := newTemplate("webhooktest authority")
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign
	a.cert = sign(template, template, &a.key.PublicKey, a.key)
	return a
}

// pool returns a pool with the authority's certificate.
func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// issue returns a certificate of the kind c for hosts, which are names or IP addresses.
func (a *authority) issue(c Certificate, hosts ...string) *tls.Certificate {
	if c == WrongHost {
		hosts = []string{"elsewhere.invalid"}
	}
	template := newTemplate(hosts[0])
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if c == Expired {
		template.NotAfter = time.Date(1999, time.June, 1, 0, 0, 0, 0, time.UTC)
	}
	key := newKey()
	parent, signer := a.cert, a.key
	if c == SelfSigned {
		parent, signer = template, key
	}
	leaf := sign(template, parent, &key.PublicKey, signer)
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
}

// newTemplate returns a template with the fields that all certificates share. It is valid both now
// and at the time at which a synctest bubble starts.
func newTemplate(name string) *x509.Certificate {
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: name},
		NotBefore: time.Date(1990, time.January, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:  time.Date(2190, time.January, 1, 0, 0, 0, 0, time.UTC),
	}
}

func newKey() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) }

func sign(template, parent *x509.Certificate, public *ecdsa.PublicKey, signer *ecdsa.PrivateKey) *x509.Certificate {
	return must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, template, parent, public, signer))))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
