package server

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/signature"
)

// keysPath is where receivers find the public keys of a destination, whose id comes behind it.
const keysPath = "/v1/keys/"

// serveKeys answers a read of the public keys that the requests to a destination are signed by,
// and reports whether r is one. A destination that has none is answered as one that is not
// there, so that nobody finds out ids by it.
func serveKeys(w http.ResponseWriter, r *http.Request, settings *config.Settings) bool {
	id, ok := strings.CutPrefix(r.URL.Path, keysPath)
	if !ok || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	keys := []string{}
	if d := settings.Destination(id); d != nil && d.Webhook != nil {
		for _, secret := range d.Webhook.StandardSecrets {
			if public, err := signature.StandardPublicKey(secret); err == nil { // else it is shared
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
