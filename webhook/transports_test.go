package webhook

import (
	"context"
	"crypto/tls"
	"net/http"
	"runtime"
	"testing"
)

// TestOwnTransportsAreForgotten: what Lookup made and nobody uses any more is
// not kept.
func TestOwnTransportsAreForgotten(t *testing.T) {
	ts := newTransports(func(*TLS) *http.Transport { return new(http.Transport) })
	kept := &TLS{Certificates: []tls.Certificate{{Certificate: [][]byte{[]byte("kept")}}}}
	transport := ts.of(kept)
	const rounds = 200
	for i := range rounds {
		ts.of(&TLS{Certificates: []tls.Certificate{{Certificate: [][]byte{{byte(i)}}}}})
		runtime.GC()
	}
	if ts.n > rounds/2 || len(ts.own) > rounds/2 {
		t.Errorf("%d of %d transports are kept", ts.n, rounds)
	}
	if ts.of(kept) != transport {
		t.Error("a transport in use was forgotten")
	}
	runtime.KeepAlive(transport)
}

// TestOwnTLSTakesNothingThatTellsWhoElse: what Config says about client
// certificates and sessions is not used with others.
func TestOwnTLSTakesNothingThatTellsWhoElse(t *testing.T) {
	base := &tls.Config{
		ServerName:           "x",
		Certificates:         []tls.Certificate{{Certificate: [][]byte{[]byte("base")}}},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return nil, nil },
		ClientSessionCache:   tls.NewLRUClientSessionCache(1),
	}
	own := &TLS{Certificates: []tls.Certificate{{Certificate: [][]byte{[]byte("own")}}}}
	for range 2 {
		c := own.config(base)
		if c.GetClientCertificate != nil || len(c.Certificates) != 1 || string(c.Certificates[0].Certificate[0]) != "own" {
			t.Error("the certificates are not the destination's own")
		}
		if c.ClientSessionCache == nil || c.ClientSessionCache == base.ClientSessionCache {
			t.Error("sessions are shared with others")
		}
		if c.ServerName != "x" {
			t.Error("ServerName is lost")
		}
		base.ClientSessionCache = own.config(base).ClientSessionCache
	}
	if c := (*TLS)(nil).config(base); c.GetClientCertificate == nil || c.ClientSessionCache != base.ClientSessionCache {
		t.Error("the settings of all are not used where there are no others")
	}
	for name, base := range map[string]*tls.Config{"nil": nil, "old": {MinVersion: tls.VersionTLS10}, "new": {MinVersion: tls.VersionTLS13}} {
		for _, own := range []*TLS{nil, own} {
			got := newTransport(&Config{TLSClientConfig: base}, own, &guard{}, context.Background()).TLSClientConfig.MinVersion
			if want := map[string]uint16{"nil": tls.VersionTLS12, "old": tls.VersionTLS12, "new": tls.VersionTLS13}[name]; got != want {
				t.Errorf("%s: MinVersion = %#x, want %#x", name, got, want)
			}
		}
	}
}
