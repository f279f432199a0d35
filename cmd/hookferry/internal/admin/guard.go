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

// Guard lets requests through to next that carry the token. Without a token it
// lets those through that come from this machine and name it in their Host
// header: a page of another site that has its name resolved to this machine
// sends that name. Neither way it lets requests through that a browser sends for
// a page of another origin. Other handlers of the admin listener belong behind it.
func (h *Handler) Guard(next http.Handler) http.Handler {
	return h.local(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.admit(r); err != nil {
			if err.status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Bearer realm="hookferry admin"`)
			}
			writeError(w, err)
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	}))
}

// local sets the headers of every answer and, without a token, refuses requests
// that are not for this machine.
func (h *Handler) local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("X-Frame-Options", "DENY")
		header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'") // a page sets its own
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Referrer-Policy", "no-referrer")
		if h.config.Token == "" {
			if err := checkLocal(r); err != nil {
				writeError(w, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// proxied are headers of requests that a proxy sends for somebody else. A proxy
// on this machine has its address, and may well send a Host of it; one that sets
// none of these cannot be told from a local client.
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
