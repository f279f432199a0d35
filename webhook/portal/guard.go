package portal

import (
	"errors"
	"html"
	"net/http"
	"strings"
)

// refuse answers a request that Config.Tenant has refused.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	f := &failure{http.StatusUnauthorized, "unauthorized", "Sign in to see your webhooks.", nil}
	if errors.Is(err, ErrForbidden) {
		f = &failure{http.StatusForbidden, "forbidden", "You may not see these webhooks.", nil}
	}
	if strings.HasPrefix(r.URL.Path, "/api/") {
		f.write(w)
		return
	}
	text := f.Message
	if own, ok := h.config.Words[text]; ok {
		text = own
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(f.status)
	w.Write([]byte(`<!doctype html><html lang="` + h.config.Language + `"><meta name="color-scheme" content="light dark"><meta name="viewport" content="width=device-width">` +
		"<title>" + html.EscapeString(h.config.title()) + "</title><h1>" + html.EscapeString(text) + "</h1>\n"))
}
