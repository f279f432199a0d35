package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/tenants"
)

// ServeHTTP serves the page and the API. Without a token, requests must come from this machine, and
// their Host must be localhost or a loopback address. That protects against DNS rebinding: a page of
// another site can make its own name resolve to this machine, but sends that name as the Host.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	// The handler of the page replaces this policy, and that of caching, by its own.
	header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	if h.config.Token == "" {
		if err := checkLocal(r); err != nil {
			writeError(w, err)
			return
		}
	}
	h.mux.ServeHTTP(w, r)
}

// guard returns a handler that passes a request on to next only if it carries the token, and if no
// browser sends it for a page of another origin.
func (h *Handler) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.admit(r); err != nil {
			writeRefusal(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// guardTenant is guard for a route that also takes a token of the tenant in its path. With the token of
// another tenant, the answer is the same whether the tenant exists or not.
func (h *Handler) guardTenant(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := h.admit(r)
		if err == nil {
			next.ServeHTTP(w, r)
			return
		}
		token := tokenOf(r)
		if err.status != http.StatusUnauthorized || !tenants.IsToken(token) {
			writeRefusal(w, err)
			return
		}
		found, failed := h.config.Tenants.CheckToken(r.Context(), r.PathValue("tenant"), token)
		switch {
		case failed == nil:
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), actorKey{}, "token "+found.Name)))
		case errors.Is(failed, tenants.ErrUnknown):
			writeRefusal(w, err)
		default:
			h.config.Logger.Error("admin: could not check the token of a tenant; the client was told to try again", "error", failed)
			writeError(w, unavailable("the store cannot be read; try again later"))
		}
	})
}

// actorKey is a key of the context of a request. Its value is the name under which a tenant's token
// acts.
type actorKey struct{}

func writeRefusal(w http.ResponseWriter, err *failure) {
	if err.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="hookferry admin"`)
	}
	writeError(w, err)
}

// tokenOf returns the bearer token of a request, "" if it has none.
func tokenOf(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return token
}

// proxied are headers that proxies add to requests. Without them, a proxy on this machine cannot be
// told from other local clients: it may send a local Host, too.
var proxied = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via"}

// checkLocal refuses a request that does not come from this machine, or whose Host may be another.
func checkLocal(r *http.Request) *failure {
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err != nil || !peer.Addr().Unmap().IsLoopback() {
		return refuse(api.CodeForbidden, http.StatusForbidden, "", "without a token, only this machine is answered")
	}
	if slices.ContainsFunc(proxied, func(name string) bool { return r.Header.Values(name) != nil }) {
		return refuse(api.CodeForbidden, http.StatusForbidden, "", "the request came through a proxy; that needs a token")
	}
	host := (&url.URL{Host: r.Host}).Hostname()
	ip, err := netip.ParseAddr(host)
	if !strings.EqualFold(host, "localhost") && (err != nil || !ip.Unmap().IsLoopback()) {
		return refuse(api.CodeForbidden, http.StatusForbidden, "Host", "without a token, the Host must be localhost or a loopback address")
	}
	return nil
}

// getAccess needs no token, so that the page can find out that it has to ask for one.
func getAccess(q *request) (any, error) {
	err := q.handler.admit(q.http)
	if err != nil && err.status != http.StatusUnauthorized {
		return nil, err
	}
	return api.Access{Granted: err == nil}, nil
}

// admit refuses a request without the token, one with a token of a tenant, and any request of a page of another origin: the page
// could not see the answers, but it could keep streams open.
func (h *Handler) admit(r *http.Request) *failure {
	site := r.Header.Get("Sec-Fetch-Site")
	if err := h.cross.Check(r); err != nil || site != "" && site != "same-origin" && site != "none" {
		return refuse(api.CodeForbidden, http.StatusForbidden, "", "the request comes from a web page of another origin")
	}
	token := tokenOf(r)
	if h.config.Token == "" {
		if tenants.IsToken(token) { // who gives one wants to act for that tenant only
			return errUnauthorized
		}
		return nil
	}
	// Digests have the same length, so that the time of the comparison does not reveal the length
	// of the token.
	got, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(h.config.Token))
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
		return errUnauthorized
	}
	return nil
}

var errUnauthorized = refuse(api.CodeUnauthorized, http.StatusUnauthorized, "Authorization", "the token is missing or wrong; want 'Authorization: Bearer TOKEN'")
