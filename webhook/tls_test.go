package webhook_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// clientCertificate returns a self-signed client certificate for name.
func clientCertificate(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().AddDate(1, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// clientName returns the name in the client certificate of q, or "" if there is none.
func clientName(q *webhooktest.Request) string {
	if q.TLS == nil || len(q.TLS.PeerCertificates) == 0 {
		return ""
	}
	return q.TLS.PeerCertificates[0].Subject.CommonName
}

// Destinations at the same host share connections only if their TLS settings are equal. Otherwise
// one destination would send requests on a connection with the client certificate of another.
func TestDestinationsShareConnectionsOnlyIfTLSSettingsAreEqual(t *testing.T) {
	const url = "https://crm.example/hook"
	for _, h2 := range []bool{false, true} {
		inBubble(t, func(t *testing.T, r *rig) {
			crm := r.network.Receiver(url, "")
			crm.SetTLS(webhooktest.TLS{HTTP2: h2})
			acme, beta := clientCertificate(t, "acme"), clientCertificate(t, "beta")
			roots := r.network.TLSClientConfig().RootCAs
			settings := map[string]*webhook.TLS{
				"none":                   nil,
				"empty":                  {},
				"acme":                   {Certificates: []tls.Certificate{acme}},
				"acme again":             {Certificates: []tls.Certificate{acme}},
				"beta":                   {Certificates: []tls.Certificate{beta}},
				"acme, with roots":       {Certificates: []tls.Certificate{acme}, RootCAs: roots},
				"acme, with roots again": {Certificates: []tls.Certificate{acme}, RootCAs: roots},
			}
			var c webhook.Config
			for id, s := range settings {
				c.Destinations = append(c.Destinations, webhook.Destination{
					ID: id, TLS: s, Endpoints: []webhook.Endpoint{{URL: url, Headers: map[string]string{"X-Destination": id}}},
				})
			}
			r.start(c)
			n := 0
			for range 3 {
				for id := range settings {
					must(t, r.Forward(t.Context(), id, call(fmt.Sprint(n))))
					n++
					if _, err := crm.Wait(t.Context(), n); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Millisecond) // until the connection is idle
				}
			}
			conns := make(map[string][]int)
			for _, q := range crm.Requests() {
				id := q.Header.Get("X-Destination")
				if !slices.Contains(conns[id], q.Conn) {
					conns[id] = append(conns[id], q.Conn)
				}
				want := ""
				if s := settings[id]; s != nil && len(s.Certificates) > 0 {
					want = id[:4]
				}
				if got := clientName(q); got != want {
					t.Errorf("HTTP/2 %v: destination %q sent the certificate of %q, want %q", h2, id, got, want)
				}
			}
			share := map[string]string{"acme again": "acme", "acme, with roots again": "acme, with roots"}
			for a := range settings {
				for b := range settings {
					shared := slices.ContainsFunc(conns[a], func(c int) bool { return slices.Contains(conns[b], c) })
					want := a == b || share[a] == b || share[b] == a
					if shared != want {
						t.Errorf("HTTP/2 %v: %q on the connections %v and %q on %v: shared is %v, want %v", h2, a, conns[a], b, conns[b], shared, want)
					}
				}
				if len(conns[a]) != 1 {
					t.Errorf("HTTP/2 %v: %q used the connections %v, want one", h2, a, conns[a])
				}
			}
		})
	}
}

func TestRootCAsOfADestinationReplaceThoseOfConfig(t *testing.T) {
	const url = "https://crm.example/hook"
	inBubble(t, func(t *testing.T, r *rig) {
		crm := r.network.Receiver(url, "")
		other := webhooktest.NewNetwork()
		defer other.Close()
		trusted := r.network.TLSClientConfig().RootCAs
		endpoints := []webhook.Endpoint{{URL: url}}
		r.start(webhook.Config{Destinations: []webhook.Destination{
			{ID: "roots of Config", Endpoints: endpoints},
			{ID: "roots of the receiver", Endpoints: endpoints, TLS: &webhook.TLS{RootCAs: trusted}},
			{ID: "other roots", Endpoints: endpoints, TLS: &webhook.TLS{RootCAs: other.TLSClientConfig().RootCAs}},
			{ID: "no roots", Endpoints: endpoints, TLS: &webhook.TLS{RootCAs: x509.NewCertPool()}},
		}})
		for _, id := range []string{"roots of Config", "roots of the receiver", "other roots", "no roots"} {
			must(t, r.Forward(t.Context(), id, call(id)))
		}
		requests, err := crm.Wait(t.Context(), 2)
		must(t, err)
		for _, q := range requests {
			if id := q.JSON["messageId"]; id != "roots of Config" && id != "roots of the receiver" {
				t.Errorf("the delivery of %q arrived, want it refused", id)
			}
		}
		time.Sleep(time.Second)
		for _, d := range r.dead() {
			if d.Reason != webhook.ReasonCertificate {
				t.Errorf("the dead letter of %q has the reason %q, want %q", d.ID, d.Reason, webhook.ReasonCertificate)
			}
		}
		if n := len(r.dead()); n != 2 {
			t.Errorf("got %d dead letters, want 2", n)
		}
	})
}

// If Lookup returns another client certificate, the next request uses it, on a new connection. If
// Lookup returns the same certificate and authorities in a new TLS value, requests keep their
// connection.
func TestReplacedClientCertificateIsUsedByTheNextRequest(t *testing.T) {
	const url = "https://crm.example/hook"
	inBubble(t, func(t *testing.T, r *rig) {
		crm := r.network.Receiver(url, "")
		first, second := clientCertificate(t, "first"), clientCertificate(t, "second")
		var current atomic.Pointer[tls.Certificate]
		current.Store(&first)
		r.start(webhook.Config{Directory: lookup(func(context.Context, string) (*webhook.Destination, error) {
			return &webhook.Destination{
				ID:        "crm",
				Endpoints: []webhook.Endpoint{{URL: url}},
				TLS: &webhook.TLS{
					Certificates: []tls.Certificate{*current.Load()},
					RootCAs:      r.network.TLSClientConfig().RootCAs.Clone(),
				},
			}, nil
		})})
		for i := range 4 {
			if i == 2 {
				current.Store(&second)
			}
			r.track(fmt.Sprint(i))
			if _, err := crm.Wait(t.Context(), i+1); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond) // until the connection is idle
		}
		var got []string
		for _, q := range crm.Requests() {
			got = append(got, fmt.Sprint(q.Conn, " ", clientName(q)))
		}
		if want := []string{"1 first", "1 first", "2 second", "2 second"}; !slices.Equal(got, want) {
			t.Errorf("connections and certificates are %q, want %q", got, want)
		}
	})
}

func TestValidateRefusesInvalidClientCertificates(t *testing.T) {
	good, other := clientCertificate(t, "good"), clientCertificate(t, "other")
	for _, tt := range []struct {
		name  string
		certs []tls.Certificate
		field string
	}{
		{"no certificate", nil, ""},
		{"two valid certificates", []tls.Certificate{good, other}, ""},
		{"six certificates", slices.Repeat([]tls.Certificate{good}, 6), "TLS.Certificates"},
		{"empty certificate", []tls.Certificate{good, {}}, "TLS.Certificates[1]"},
		{"not a certificate", []tls.Certificate{{Certificate: [][]byte{[]byte("garbage")}, PrivateKey: good.PrivateKey}}, "TLS.Certificates[0]"},
		{"no key", []tls.Certificate{{Certificate: good.Certificate}}, "TLS.Certificates[0]"},
		{"key of another certificate", []tls.Certificate{{Certificate: good.Certificate, PrivateKey: other.PrivateKey}}, "TLS.Certificates[0]"},
	} {
		d := webhook.Destination{
			ID:        "crm",
			Endpoints: []webhook.Endpoint{{URL: "https://crm.example/"}},
			TLS:       &webhook.TLS{Certificates: tt.certs},
		}
		err := d.Validate()
		var ce *webhook.ConfigError
		if errors.As(err, &ce) != (tt.field != "") || ce != nil && ce.Field != tt.field {
			t.Errorf("%s: Validate() = %v, want it to refuse %q", tt.name, err, tt.field)
		}
	}
}
