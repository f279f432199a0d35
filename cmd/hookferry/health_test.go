package main

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
)

func TestHealth(t *testing.T) {
	server := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/readyz":
		case "/moved/readyz":
			http.Redirect(w, r, "/readyz", http.StatusFound)
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	for _, tt := range []struct {
		name   string
		args   []string // with URL and HOST
		env    string   // variables and their values
		status int
		says   string
	}{
		{"ready", []string{"--admin", "URL"}, "", exitOK, ""},
		{"host and port", []string{"--admin", "HOST"}, "", exitOK, ""},
		{"variable", nil, "HOOKFERRY_ADMIN=HOST", exitOK, ""},
		{"address that serve listens on", nil, "HOOKFERRY_ADMIN_LISTEN=HOST", exitOK, ""},
		{"admin API switched off", nil, "HOOKFERRY_ADMIN_LISTEN=off", exitOK, ""},
		{"slash", []string{"--admin", "URL/"}, "", exitOK, ""},
		{"not ready", []string{"--admin", "URL/busy"}, "", exitFailure, "answers 503"},
		{"redirect", []string{"--admin", "URL/moved"}, "", exitFailure, "answers 302"},
		{"no server", []string{"--admin", "127.0.0.1:1"}, "", exitFailure, "no server at "},
		{"no address", []string{"--admin", "http://"}, "", exitUsage, ": --admin: want a "},
		{"no address in the variable", nil, "HOOKFERRY_ADMIN=http://", exitUsage, ": HOOKFERRY_ADMIN: want a "},
		{"another scheme in the variable", nil, "HOOKFERRY_ADMIN=ftp://HOST", exitUsage, `: HOOKFERRY_ADMIN: has the scheme "ftp"`},
		{"no address in the variable of calls", nil, "HOOKFERRY_ADMIN_LISTEN=off HOOKFERRY_LISTEN=a:b:c", exitUsage, ": HOOKFERRY_LISTEN: want a "},
		{"argument", []string{"x"}, "", exitUsage, "unexpected argument"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inMemory(t, server, func(t *testing.T, url string, p process) { // health waits three seconds, of the bubble's clock
				host := strings.TrimPrefix(url, "http://")
				here := strings.NewReplacer("URL", url, "HOST", host)
				p.getenv = func(name string) string {
					values := map[string]string{"HOOKFERRY_LISTEN": host}
					for _, v := range strings.Fields(here.Replace(tt.env)) {
						variable, value, _ := strings.Cut(v, "=")
						values[variable] = value
					}
					return values[name]
				}
				var out, problems bytes.Buffer
				p.stdout, p.stderr = &out, &problems
				args := []string{"health"}
				for _, arg := range tt.args {
					args = append(args, here.Replace(arg))
				}
				status := run(t.Context(), args, p)
				if status != tt.status || out.Len() > 0 || !strings.Contains(problems.String(), tt.says) || (tt.says == "") != (problems.Len() == 0) {
					t.Errorf("exit status %d, printed %q and %q, want %d, nothing and %q", status, &out, &problems, tt.status, tt.says)
				}
			})
		})
	}
}
