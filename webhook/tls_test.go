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

// clientCertificate returns one for name, signed by itself.
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

// TestDestinationsShareConnectionsOnlyIfTLSSettingsAreEqual: destinations at the same host do not use
// each other's connections, even one after another, unless their settings are
// equal.
func TestDestinationsShareConnectionsOnlyIfTLSSettingsAreEqual(t *testing.T) {
	const url = "https://crm.example/hook"
	for _, h2 := range []bool{false, true} {
		inBubble(t, func(t *testing.T, r *rig) {
			crm := r.network.Receiver(url, "")
			crm.SetTLS(webhooktest.TLS{HTTP2: h2})
			acme, beta := clientCertificate(t, "acme"), clientCertificate(t, "beta")
			settings := map[string]*webhook.TLS{
				"none":       nil,
				"empty":      {},
				"acme":       {Certificates: []tls.Certificate{acme}},
				"acme again": {Certificates: []tls.Certificate{acme}},
				"beta":       {Certificates: []tls.Certificate{beta}},
				"acme, with roots": {
					Certificates: []tls.Certificate{acme},
					RootCAs:      r.network.TLSClientConfig().RootCAs,
				},
				"acme, with roots again": {
					Certificates: []tls.Certificate{acme},
					RootCAs:      r.network.TLSClientConfig().RootCAs,
				},
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
					t.Errorf("h2 %v: destination %q shows the certificate of %q, want %q", h2, id, got, want)
				}
			}
			share := map[string]string{"acme again": "acme", "acme, with roots again": "acme, with roots"}
			for a := range settings {
				for b := range settings {
					shared := slices.ContainsFunc(conns[a], func(c int) bool { return slices.Contains(conns[b], c) })
					want := a == b || share[a] == b || share[b] == a
					if shared != want {
						t.Errorf("h2 %v: %q on connections %v and %q on %v share: %v, want %v", h2, a, conns[a], b, conns[b], shared, want)
					}
				}
				if len(conns[a]) != 1 {
					t.Errorf("h2 %v: %q used the connections %v, want one", h2, a, conns[a])
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
			{ID: "those of all", Endpoints: endpoints},
			{ID: "the right ones", Endpoints: endpoints, TLS: &webhook.TLS{RootCAs: trusted}},
			{ID: "others", Endpoints: endpoints, TLS: &webhook.TLS{RootCAs: other.TLSClientConfig().RootCAs}},
			{ID: "none", Endpoints: endpoints, TLS: &webhook.TLS{RootCAs: x509.NewCertPool()}},
		}})
		for _, id := range []string{"those of all", "the right ones", "others", "none"} {
			must(t, r.Forward(t.Context(), id, call(id)))
		}
		requests, err := crm.Wait(t.Context(), 2)
		must(t, err)
		for _, q := range requests {
			if id := q.JSON["messageId"]; id != "those of all" && id != "the right ones" {
				t.Errorf("the delivery of %q arrived", id)
			}
		}
		time.Sleep(time.Second)
		for _, d := range r.dead() {
			if d.Reason != webhook.ReasonCertificate {
				t.Errorf("the delivery of %q died of %q, want %q", d.ID, d.Reason, webhook.ReasonCertificate)
			}
		}
		if n := len(r.dead()); n != 2 {
			t.Errorf("%d dead letters, want 2", n)
		}
	})
}

// TestReplacedClientCertificateIsUsedByTheNextRequest: with Lookup, a certificate that was replaced is shown
// by the next request, and one that was read afresh keeps its connection.
func TestReplacedClientCertificateIsUsedByTheNextRequest(t *testing.T) {
	const url = "https://crm.example/hook"
	inBubble(t, func(t *testing.T, r *rig) {
		crm := r.network.Receiver(url, "")
		first, second := clientCertificate(t, "first"), clientCertificate(t, "second")
		var current atomic.Pointer[tls.Certificate]
		current.Store(&first)
		r.start(webhook.Config{Lookup: func(context.Context, string) (*webhook.Destination, error) {
			return &webhook.Destination{
				ID:        "crm",
				Endpoints: []webhook.Endpoint{{URL: url}},
				TLS:       &webhook.TLS{Certificates: []tls.Certificate{*current.Load()}},
			}, nil
		}})
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
		{"none", nil, ""},
		{"good", []tls.Certificate{good, other}, ""},
		{"six", slices.Repeat([]tls.Certificate{good}, 6), "TLS.Certificates"},
		{"empty", []tls.Certificate{good, {}}, "TLS.Certificates[1]"},
		{"garbage", []tls.Certificate{{Certificate: [][]byte{[]byte("garbage")}, PrivateKey: good.PrivateKey}}, "TLS.Certificates[0]"},
		{"no key", []tls.Certificate{{Certificate: good.Certificate}}, "TLS.Certificates[0]"},
		{"key of another", []tls.Certificate{{Certificate: good.Certificate, PrivateKey: other.PrivateKey}}, "TLS.Certificates[0]"},
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
