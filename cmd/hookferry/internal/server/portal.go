package server

import (
	"context"
	_ "embed"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/internal/ui"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook/portal"
)

// A customers is the portal, for customers who have a link of tenants.Directory.CreateLink.
//
// The text of a link is the fragment of its URL, which browsers send to nobody: it is in no log of this
// server or of a proxy. The page at the link sends it in a body, and gets it back as a cookie, which
// ends with the link. The path has the id of the link, and the cookie is for that path only. So pages of
// several tenants may be open in one browser, and each request is for the tenant of its own page.
type customers struct {
	server *server
	portal http.Handler
	open   http.Handler  // the page at a link
	checks chan struct{} // has an element for each link that is read from the store now
}

const (
	portalPath   = "/portal/"
	portalCookie = "hookferry_portal"
	maxLink      = 2 << 10 // bytes of the text of a link
	maxChecks    = 4       // links that are read from the store at the same time
)

//go:embed open.html
var openHTML []byte

//go:embed open.js
var openJS []byte

//go:embed open.svg
var openSVG []byte

func newCustomers(s *server) (*customers, error) {
	c := &customers{server: s, checks: make(chan struct{}, maxChecks), open: ui.Serve(map[string][]byte{"open": openHTML, "open.js": openJS, "open.svg": openSVG})}
	var err error
	c.portal, err = portal.Handler(portal.Config{
		Forwarder: s.forwarder, Tenants: s.tenants, Tenant: c.tenant, Logger: s.Logger, Schemes: []string{"https", "http"},
		Words: map[string]string{"Sign in to see your webhooks.": "This link has ended. Ask for a new one."},
	})
	return c, err
}

// serve answers a request for the portal. For any other path it returns false, without an answer.
func (c *customers) serve(w http.ResponseWriter, r *http.Request) bool {
	rest, ok := strings.CutPrefix(r.URL.Path, portalPath)
	id, path, below := strings.Cut(rest, "/")
	if !ok || id == "" || !below {
		return false
	}
	switch path {
	case "open", "open.js", "open.svg":
		w.Header().Set("Referrer-Policy", "no-referrer")
		w.Header().Set("X-Frame-Options", "DENY")
		http.StripPrefix(portalPath+id, c.open).ServeHTTP(w, r)
	case "session":
		c.begin(w, r, id)
	default:
		if cookie, err := r.Cookie(portalCookie); err != nil || api.LinkID(cookie.Value) != id {
			r.Header.Del("Cookie") // that of another page
		}
		http.StripPrefix(portalPath+id, c.portal).ServeHTTP(w, r)
	}
	return true
}

// begin sets the cookie of a link, whose text is the body.
func (c *customers) begin(w http.ResponseWriter, r *http.Request, id string) {
	w.Header().Set("Cache-Control", "no-store")
	if r.Method != http.MethodPost || http.NewCrossOriginProtection().Check(r) != nil {
		http.Error(w, "want POST, from the page at the link", http.StatusForbidden)
		return
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxLink))
	if err != nil {
		http.Error(w, "the body is no link", http.StatusBadRequest)
		return
	}
	if api.LinkID(string(text)) != id {
		http.Error(w, "the link has ended", http.StatusUnauthorized)
		return
	}
	link, err := c.check(r.Context(), string(text))
	switch {
	case errors.Is(err, tenants.ErrUnknown):
		http.Error(w, "the link has ended", http.StatusUnauthorized)
	case err != nil:
		c.server.Logger.Error("the link of a tenant could not be checked; the customer may try it again", "error", err)
		http.Error(w, "the store cannot be read; try again later", http.StatusServiceUnavailable)
	default:
		http.SetCookie(w, &http.Cookie{
			Name: portalCookie, Value: string(text), Path: portalPath + id + "/", Expires: link.Ends,
			HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil || strings.HasPrefix(c.server.Settings.BaseURL, "https://"),
		})
		w.WriteHeader(http.StatusNoContent)
	}
}

// check returns the link with a text. Anybody may ask, so it reads few links from the store at the same
// time: deliveries need its connections, too.
func (c *customers) check(ctx context.Context, text string) (tenants.Link, error) {
	select {
	case c.checks <- struct{}{}:
		defer func() { <-c.checks }()
		return c.server.tenants.CheckLink(ctx, text)
	case <-ctx.Done():
		return tenants.Link{}, tenants.ErrUnknown // to nobody
	}
}

// tenant is portal.Config.Tenant. A cookie is that of the page in the path; see serve.
func (c *customers) tenant(r *http.Request) (tenant, actor string, err error) {
	cookie, err := r.Cookie(portalCookie)
	if err != nil {
		return "", "", err
	}
	link, err := c.check(r.Context(), cookie.Value)
	if err != nil && !errors.Is(err, tenants.ErrUnknown) {
		c.server.Logger.Error("the link of a tenant could not be checked; the customer was told to sign in", "error", err)
	}
	return link.Tenant, link.Actor, err
}
