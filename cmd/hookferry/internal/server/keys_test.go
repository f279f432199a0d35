package server

import (
	"net/http/httptest"
	"testing"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

// keyServer returns a server with these destinations in its settings, and none in its store.
func keyServer(t *testing.T, list ...config.Destination) *server {
	settings := &config.Settings{Destinations: list}
	directory := testkit.Must(tenants.New(testkit.Must(memqueue.Open(memqueue.Config{})), tenants.Config{}))
	return &server{directory: config.Directory{Settings: func() *config.Settings { return settings }, Tenants: directory}}
}

// TestServeKeysServesPublicKeysOnly shows that the server publishes the public keys of a
// destination, and nothing of a shared secret.
func TestServeKeysServesPublicKeysOnly(t *testing.T) {
	private := signature.NewStandardPrivateKey()
	public, err := signature.StandardPublicKey(private)
	if err != nil {
		t.Fatal(err)
	}
	of := func(id string, secrets ...signature.Secret) config.Destination {
		return config.Destination{ID: id, Webhook: &webhook.Destination{ID: id, StandardSecrets: secrets}}
	}
	s := keyServer(t, of("a", signature.NewStandardSecret(), private), of("b/c", private), of("shared", signature.NewStandardSecret()))
	const none = `{"keys":[]}` + "\n"
	one := `{"keys":["` + public + `"]}` + "\n"
	for _, tt := range []struct {
		method, path string
		status       int // 0 if serveKeys leaves the request to others
		want         string
	}{
		{"GET", "/v1/keys/a", 200, one},
		{"HEAD", "/v1/keys/a", 200, one},
		{"GET", "/v1/keys/b%2Fc", 200, one},
		{"GET", "/v1/keys/shared", 404, none},
		{"GET", "/v1/keys/other", 404, none},
		{"GET", "/v1/keys/", 404, none},
		{"POST", "/v1/keys/a", 0, ""},
		{"GET", "/v1/keys", 0, ""},
	} {
		w := httptest.NewRecorder()
		served := s.serveKeys(w, httptest.NewRequest(tt.method, tt.path, nil))
		if served != (tt.status != 0) || served && (w.Code != tt.status || w.Body.String() != tt.want) {
			t.Errorf("serveKeys of %s %s = %v, status %d, body %s, want status %d (0: not served), body %s", tt.method, tt.path, served, w.Code, w.Body, tt.status, tt.want)
		}
	}
}
