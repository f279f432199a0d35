package webhook

import (
	"crypto/tls"
	"testing"
)

// If a destination has TLS settings, the client certificates and the session cache of Config are
// not used for it. Otherwise its connections could have the identity of another destination.
func TestDestinationTLSDropsTheClientIdentityOfConfig(t *testing.T) {
	base := &tls.Config{
		ServerName:           "x",
		Certificates:         []tls.Certificate{{Certificate: [][]byte{[]byte("base")}}},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return nil, nil },
		ClientSessionCache:   tls.NewLRUClientSessionCache(1),
	}
	own := &TLS{Certificates: []tls.Certificate{{Certificate: [][]byte{[]byte("own")}}}}
	c := own.config(base)
	if c.GetClientCertificate != nil || len(c.Certificates) != 1 || string(c.Certificates[0].Certificate[0]) != "own" {
		t.Error("got other client certificates, want only that of the destination")
	}
	if c.ClientSessionCache != nil {
		t.Error("got the session cache of Config, want none")
	}
	if c.ServerName != "x" {
		t.Errorf("ServerName = %q, want x, from Config", c.ServerName)
	}
	if c := (*TLS)(nil).config(base); c.GetClientCertificate == nil || c.ClientSessionCache != base.ClientSessionCache {
		t.Error("without TLS of the destination: the settings of Config are not used, want them unchanged")
	}
	for name, base := range map[string]*tls.Config{"nil": nil, "old": {MinVersion: tls.VersionTLS10}, "new": {MinVersion: tls.VersionTLS13}} {
		for _, own := range []*TLS{nil, own} {
			got := own.config(base).MinVersion
			if want := map[string]uint16{"nil": tls.VersionTLS12, "old": tls.VersionTLS12, "new": tls.VersionTLS13}[name]; got != want {
				t.Errorf("%s: MinVersion = %#x, want %#x", name, got, want)
			}
		}
	}
}
