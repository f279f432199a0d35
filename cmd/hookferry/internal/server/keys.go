package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
)

// serveKeys answers with the public keys of a destination, with which receivers verify signatures. It
// returns false, without an answer, if r does not ask for keys. The answer is the same for an unknown
// destination as for one without keys, so that nobody can find out which ids exist.
func (s *server) serveKeys(w http.ResponseWriter, r *http.Request) bool {
	id, ok := strings.CutPrefix(r.URL.Path, "/v1/keys/")
	if !ok || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	keys := []string{}
	d, err := s.directory.Destination(r.Context(), id)
	if err != nil && !errors.Is(err, webhook.ErrUnknownDestination) && !errors.Is(err, webhook.ErrTakesNothing) {
		s.Logger.Error("the public keys of a destination could not be read; a receiver was told to ask again", "error", err)
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	for _, secret := range d.StandardSecrets {
		// A shared secret has no public key.
		if public, err := signature.StandardPublicKey(secret); err == nil {
			keys = append(keys, public)
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
