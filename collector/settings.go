package collector

import (
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/hookferry/analytics/internal/esjson"
)

// serveSettings answers the first request of the browser library, which asks for the URL
// to send its calls to.
func (h *Handler) serveSettings(w http.ResponseWriter, r *http.Request, key string, a *Answered) {
	source, err := h.source(r.Context(), key)
	if a.Source = source.Name; err != nil {
		a.error(w, err)
		return
	}
	base := h.base
	if base == nil {
		base = &url.URL{Scheme: "http", Host: r.Host}
		if r.TLS != nil {
			base.Scheme = "https"
		}
	}
	b := append([]byte(nil), `{"integrations":{"Segment.io":{"apiKey":`...)
	b = esjson.AppendString(b, key)
	b = append(b, `,"apiHost":`...)
	b = esjson.AppendString(b, base.Host+strings.TrimRight(base.EscapedPath(), "/")+"/v1")
	b = append(b, `,"protocol":`...)
	b = esjson.AppendString(b, base.Scheme)
	// The answer depends on the Host of this request, so a cache must not give it to
	// other requests.
	w.Header().Set("Cache-Control", "no-store")
	a.json(w, http.StatusOK, append(b, "}}}\n"...))
}

// maxMetrics bounds how many bytes of a client's metrics are read. They are dropped, but after a
// body that was read to its end, the connection can be used again.
const maxMetrics = 64 << 10

func (h *Handler) serveMetrics(w http.ResponseWriter, r *http.Request, a *Answered) {
	body, done := watchPace(w, r)
	_, _ = io.CopyN(io.Discard, body, maxMetrics)
	done()
	a.success(w, nil)
}
