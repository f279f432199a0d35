package webhook

import (
	"crypto/tls"
	"runtime"
	"testing"
)

// TestUnusedTLSConfigsAreDropped: what Lookup made and nobody uses any more is
// not kept.
func TestUnusedTLSConfigsAreDropped(t *testing.T) {
	cs := newTLSConfigs(nil)
	kept := &TLS{Certificates: []tls.Certificate{{Certificate: [][]byte{[]byte("kept")}}}}
	config := cs.of(kept)
	const rounds = 50
	for i := range rounds {
		cs.of(&TLS{Certificates: []tls.Certificate{{Certificate: [][]byte{{byte(i)}}}}})
		runtime.GC()
	}
	if cs.n > rounds/2 || len(cs.own) > rounds/2 {
		t.Errorf("%d of %d configurations are kept", cs.n, rounds)
	}
	if cs.of(kept) != config {
		t.Error("a configuration in use was forgotten")
	}
	runtime.KeepAlive(config)
}

// TestDestinationTLSDropsTheClientIdentityOfConfig: what Config says about client
// certificates and sessions is not used with others.
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
		t.Error("the certificates are not the destination's own")
	}
	if c.ClientSessionCache != nil {
		t.Error("sessions are shared with others")
	}
	if c.ServerName != "x" {
		t.Error("ServerName is lost")
	}
	if c := (*TLS)(nil).config(base); c.GetClientCertificate == nil || c.ClientSessionCache != base.ClientSessionCache {
		t.Error("the settings of all are not used where there are no others")
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
