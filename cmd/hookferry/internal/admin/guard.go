package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// Guard returns a handler that passes requests on to next if they carry the token.
// Where there is no token it passes on those that this machine sends to itself, by a
// Host that is its own: a page of another site whose name resolves to this machine
// (DNS rebinding) sends the name of that site. In both cases it refuses what a browser
// sends for a page of another origin. Every handler of the admin listener but the page
// belongs behind it.
func (h *Handler) Guard(next http.Handler) http.Handler {
	return withHeaders(h.onlyLocal(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.admit(r); err != nil {
			if err.status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Bearer realm="hookferry admin"`)
			}
			writeError(w, err)
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})))
}

// withHeaders sets the headers of every answer of the admin listener.
func withHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("X-Frame-Options", "DENY")
		header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'") // a page sets its own
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Referrer-Policy", "no-referrer")
		next.ServeHTTP(w, r)
	})
}

// onlyLocal refuses requests that this machine did not send to itself, unless there
// is a token to tell who may send others.
func (h *Handler) onlyLocal(next http.Handler) http.Handler {
	if h.config.Token != "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := checkLocal(r); err != nil {
			writeError(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// proxied are headers that proxies add to what they pass on. To the server, a proxy
// on this machine is a local client, and may send a local Host too; one that adds none
// of these headers cannot be told from other local clients.
var proxied = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via"}

// checkLocal refuses a request that was not sent by this machine to itself, by a
// name that nobody else can have.
func checkLocal(r *http.Request) *failure {
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err != nil || !peer.Addr().Unmap().IsLoopback() {
		return refuse(api.CodeForbidden, http.StatusForbidden, "", "without a token, only this machine is answered")
	}
	if slices.ContainsFunc(proxied, func(name string) bool { return r.Header.Values(name) != nil }) {
		return refuse(api.CodeForbidden, http.StatusForbidden, "", "the request came through a proxy; that takes a token")
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	ip, err := netip.ParseAddr(host)
	if !strings.EqualFold(host, "localhost") && (err != nil || !ip.Unmap().IsLoopback()) {
		return refuse(api.CodeForbidden, http.StatusForbidden, "Host", "without a token, the Host is localhost or a loopback address")
	}
	return nil
}

// access answers whether the request would be let in. It needs no token itself, so
// that a page can ask for one before it is refused.
func (h *Handler) access(w http.ResponseWriter, r *http.Request) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	w.Header().Set("Cache-Control", "no-store")
	err := h.admit(r)
	if err != nil && err.status != http.StatusUnauthorized {
		return err
	}
	return writeJSON(w, http.StatusOK, api.Access{Granted: err == nil})
}

// admit refuses a request without the token, or of a page of another origin.
func (h *Handler) admit(r *http.Request) *failure {
	// Reading is refused to other origins too: they could not see the answers,
	// but keep streams open.
	site := r.Header.Get("Sec-Fetch-Site")
	if err := h.cross.Check(r); err != nil || site != "" && site != "same-origin" && site != "none" {
		return refuse(api.CodeForbidden, http.StatusForbidden, "", "the request is of a page of another origin")
	}
	if h.config.Token == "" {
		return nil
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	// Digests have the same length, which the comparison would tell.
	got, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(h.config.Token))
	if same := subtle.ConstantTimeCompare(got[:], want[:]) == 1; !same || !strings.EqualFold(scheme, "Bearer") {
		return refuse(api.CodeUnauthorized, http.StatusUnauthorized, "Authorization", "the token is missing or wrong; want 'Authorization: Bearer TOKEN'")
	}
	return nil
}
