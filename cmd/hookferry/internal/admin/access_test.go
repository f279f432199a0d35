package admin

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// TestAccessTellsWhetherATokenIsNeeded asks whether the API accepts requests, with and without the
// token.
func TestAccessTellsWhetherATokenIsNeeded(t *testing.T) {
	open, closed := newServer(t, nil), newServer(t, func(c *Config) { c.Token = "right-token" })
	for _, tt := range []struct {
		name   string
		server *server
		header [2]string
		status int
		answer string
	}{
		{"a server without a token", open, [2]string{}, 200, `{"granted":true}`},
		{"no token", closed, [2]string{}, 200, `{"granted":false}`},
		{"a wrong token", closed, [2]string{"Authorization", "Bearer wrong-token"}, 200, `{"granted":false}`},
		{"the token", closed, [2]string{"Authorization", "Bearer right-token"}, 200, `{"granted":true}`},
		{"a page of another origin", closed, [2]string{"Sec-Fetch-Site", "cross-site"}, 403, `{"code":"forbidden",`},
		{"another machine, and a server without a token", open, [2]string{"X-Forwarded-For", "192.0.2.1"}, 403, `{"code":"forbidden",`},
	} {
		r := httptest.NewRequest("GET", api.AccessPath, nil)
		r.Host, r.RemoteAddr = "localhost", "127.0.0.1:1"
		if tt.header[0] != "" {
			r.Header.Set(tt.header[0], tt.header[1])
		}
		w := httptest.NewRecorder()
		tt.server.handler.ServeHTTP(w, r)
		if w.Code != tt.status || !strings.HasPrefix(w.Body.String(), tt.answer) || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: status %d, %s, Cache-Control %q, want %d, %s and no-store", tt.name, w.Code, w.Body, w.Header().Get("Cache-Control"), tt.status, tt.answer)
		}
	}
}
