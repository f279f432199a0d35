package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHealth(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/readyz":
		case "/moved/readyz":
			http.Redirect(w, r, "/readyz", http.StatusFound)
		case "/hangs/readyz":
			<-r.Context().Done()
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	closed := httptest.NewServer(nil)
	closed.Close()
	for _, tt := range []struct {
		name   string
		args   []string
		env    string // HOOKFERRY_ADMIN
		status int
		says   string
	}{
		{"ready", []string{"-admin", server.URL}, "", exitOK, ""},
		{"host and port", []string{"-admin", host}, "", exitOK, ""},
		{"variable", nil, host, exitOK, ""},
		{"admin API switched off", nil, "off", exitOK, ""},
		{"slash", []string{"-admin", server.URL + "/"}, "", exitOK, ""},
		{"not ready", []string{"-admin", server.URL + "/busy"}, "", exitFailure, "answers 503"},
		{"elsewhere", []string{"-admin", server.URL + "/moved"}, "", exitFailure, "answers 302"},
		{"hangs", []string{"-admin", server.URL + "/hangs", "-timeout", "50ms"}, "", exitFailure, "no answer from " + host + " in time"},
		{"nobody", []string{"-admin", closed.URL}, "", exitFailure, "no server at "},
		{"no URL", []string{"-admin", "http://"}, "", exitUsage, "-admin: want a URL"},
		{"argument", []string{"x"}, "", exitUsage, "unexpected argument"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := append([]string{"health"}, tt.args...)
			out, problems, status := call(t.Context(), "", map[string]string{"HOOKFERRY_ADMIN": tt.env, "HOOKFERRY_LISTEN": host}, args...)
			if status != tt.status || out != "" || !strings.Contains(problems, tt.says) || (tt.says == "") != (problems == "") {
				t.Errorf("status %d, printed %q and %q; want %d, nothing and %q", status, out, problems, tt.status, tt.says)
			}
		})
	}
}
