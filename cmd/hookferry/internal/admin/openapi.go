package admin

import (
	_ "embed"
	"net/http"
)

// openAPI describes the API, by OpenAPI 3.1. Tests compare it with the routes,
// with the types of package api, and with answers.
//
//go:embed openapi.json
var openAPI []byte

func (h *Handler) openAPI(w http.ResponseWriter, r *http.Request) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(openAPI) // if that fails there is nobody to tell
	return nil
}
