package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestErrorsNameWhereAValueCameFrom gives commands wrong values in flags, in environment
// variables, and in a file. Each error names the place of the wrong value.
func TestErrorsNameWhereAValueCameFrom(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hookferry.yaml")
	if err := os.WriteFile(file, []byte("grace: 2h\nsources: [{name: a, keys: [k]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, args string
		env        map[string]string
		want       string // begins the error
	}{
		{"flag", "serve --webhook http://a.example --listen 8080", nil, "--listen: want an address"},
		{"variable", "serve --webhook http://a.example", map[string]string{"HOOKFERRY_LISTEN": "8080"}, "HOOKFERRY_LISTEN: want an address"},
		{"one of several in a variable", "serve", map[string]string{"HOOKFERRY_WEBHOOK": "http://a.example ftp://b.example"},
			"HOOKFERRY_WEBHOOK: number 2 has the scheme"},
		{"a flag and a variable", "serve --webhook http://a.example --admin-listen nowhere", map[string]string{"HOOKFERRY_WRITE_KEY": "a:b"},
			"--admin-listen: want an address such as :8080 or localhost:8080\nHOOKFERRY_WRITE_KEY: want 1 to 255"},
		{"a variable beside a file", "serve --config " + file, map[string]string{"HOOKFERRY_ADMIN_LISTEN": "nowhere"},
			"HOOKFERRY_ADMIN_LISTEN: want an address such as :8080 or localhost:8080\n" + file + ":1:8: grace: "},
		{"a secret that a variable names", "serve --webhook http://a.example", map[string]string{"HOOKFERRY_ADMIN_TOKEN": "file:missing"},
			"HOOKFERRY_ADMIN_TOKEN: file:missing: reading the file"},
		{"a variable that does not go with a flag", "serve --config " + file, map[string]string{"HOOKFERRY_WEBHOOK": "http://a.example"},
			"HOOKFERRY_WEBHOOK does not go with --config"},
		{"variables of other commands beside a file", "serve --config " + file, map[string]string{"HOOKFERRY_WRITE_KEY": "k", "HOOKFERRY_STANDARD_SECRET": "whsec_x"},
			"HOOKFERRY_WRITE_KEY does not go with --config: the file has this setting\nHOOKFERRY_STANDARD_SECRET does not go with --config"},
		{"a variable that is no URL", "status", map[string]string{"HOOKFERRY_ADMIN": "ftp://a.example"}, `HOOKFERRY_ADMIN: has the scheme "ftp"`},
		{"serve ignores the URL of the admin API", "serve --webhook http://a.example --data ''", map[string]string{"HOOKFERRY_ADMIN": "http://a.example"}, "--data: want a folder"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var args []string
			for arg := range strings.FieldsSeq(tt.args) {
				args = append(args, strings.Trim(arg, "'"))
			}
			_, got, status := runCommand(t.Context(), "", tt.env, args...)
			if want := "hookferry " + args[0] + ": " + tt.want; status != exitUsage || !strings.HasPrefix(got, want) {
				t.Errorf("hookferry %s: exit status %d, want %d; printed\n%s\nwant at its beginning\n%s", tt.args, status, exitUsage, got, want)
			}
		})
	}
}
