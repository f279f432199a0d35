package server

import (
	"encoding/json"
	"net/http"
	"runtime"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/signature"
)

// serveKeys answers with the public keys of a destination, with which receivers verify signatures. It
// returns false, without an answer, if r does not ask for keys. The answer is the same for an unknown
// destination as for one without keys, so that nobody can find out which ids exist.
func serveKeys(w http.ResponseWriter, r *http.Request, settings *config.Settings) bool {
	id, ok := strings.CutPrefix(r.URL.Path, "/v1/keys/")
	if !ok || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	runtime.Gosched() // lets other connections run first, as the collector does
	keys := []string{}
	if d := settings.Destination(id); d != nil && d.Webhook != nil {
		for _, secret := range d.Webhook.StandardSecrets {
			// A shared secret has no public key.
			if public, err := signature.StandardPublicKey(secret); err == nil {
				keys = append(keys, public)
			}
		}
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "max-age=60")
	h.Set("X-Content-Type-Options", "nosniff")
	if len(keys) == 0 {
		w.WriteHeader(http.StatusNotFound)
	}
	_ = json.NewEncoder(w).Encode(map[string][]string{"keys": keys})
	return true
}
