package main

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/cobra"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
)

// loadFlags returns the settings that serve reads from flags and environment variables.
func loadFlags(t *testing.T, args []string, env map[string]string) *config.Settings {
	t.Helper()
	var s *config.Settings
	p := process{getenv: func(name string) string { return env[name] }}
	c := &cobra.Command{Use: "serve"}
	p.define(c, func(c *command) action {
		serve(c)
		return func(context.Context) (err error) {
			s, err = serveSettings(c)
			return err
		}
	})
	c.SetArgs(args)
	err := c.Execute()
	if err != nil {
		t.Fatalf("serve %q: %v", args, err)
	}
	return s
}

var settingsAsWritten = cmp.Options{
	cmpopts.EquateComparable(netip.Prefix{}), cmpopts.IgnoreFields(config.Destination{}, "Webhook"),
	cmpopts.IgnoreFields(config.Settings{}, "Loaded", "Files"),
}

func TestServeFlags(t *testing.T) {
	// fromFlags returns the settings that serve makes of its flags, with a change.
	fromFlags := func(change func(*config.Settings), urls ...string) *config.Settings {
		s := config.Default()
		s.Sources = []config.Source{{Name: "default", Destinations: []string{"default"}}}
		d := config.Destination{ID: "default"}
		for _, u := range urls {
			d.Endpoints = append(d.Endpoints, webhook.Endpoint{URL: u, Headers: map[string]string{}})
		}
		s.Destinations = []config.Destination{d}
		change(s)
		return s
	}
	for _, tt := range []struct {
		name string
		args []string
		env  map[string]string
		want *config.Settings
	}{
		{
			name: "defaults",
			args: []string{"--webhook", "http://a.example"},
			want: fromFlags(func(*config.Settings) {}, "http://a.example"),
		},
		{
			name: "all from the environment",
			env: map[string]string{
				"HOOKFERRY_LISTEN": "localhost:1", "HOOKFERRY_DATA": "d", "HOOKFERRY_WRITE_KEY": "k", "HOOKFERRY_GRACE": "2s",
				"HOOKFERRY_WEBHOOK": " http://a.example\thttp://b.example\n", "HOOKFERRY_SECRET": "s", "HOOKFERRY_NAME": "N",
				"HOOKFERRY_HEADER": "A: one, two\r\nB:3\n", "HOOKFERRY_ALLOW": "10.0.0.0/8 fd00::1",
				"HOOKFERRY_ADMIN_LISTEN": ":2", "HOOKFERRY_ADMIN_TOKEN": "0123456789abcdef", "HOOKFERRY_LOG_FORMAT": "json", "HOOKFERRY_LOG_LEVEL": "error",
			},
			want: fromFlags(func(s *config.Settings) {
				s.Listen, s.Data, s.Grace = "localhost:1", "d", 2*time.Second
				s.Admin = config.Admin{Listen: ":2", Token: "0123456789abcdef"}
				s.Log.Format, s.Log.Level = "json", slog.LevelError
				s.Sources[0].Keys = []signature.Secret{"k"}
				s.Webhooks.Name = "N"
				s.Webhooks.Allow = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::1/128")}
				d := &s.Destinations[0]
				d.Secret = "s"
				for i := range d.Endpoints {
					d.Endpoints[i].Headers = map[string]string{"A": "one, two", "B": "3"}
				}
			}, "http://a.example", "http://b.example"),
		},
		{
			name: "a flag wins over a variable, even a flag that may be repeated",
			args: []string{"--webhook", "http://c.example", "--listen", ":2", "--grace", "3s"},
			env: map[string]string{
				"HOOKFERRY_LISTEN": "localhost:1", "HOOKFERRY_GRACE": "nonsense",
				"HOOKFERRY_WEBHOOK": "http://a.example http://b.example",
			},
			want: fromFlags(func(s *config.Settings) { s.Listen, s.Grace = ":2", 3*time.Second }, "http://c.example"),
		},
		{
			name: "an empty variable is not set",
			args: []string{"--webhook", "http://a.example"},
			env:  map[string]string{"HOOKFERRY_LISTEN": "", "HOOKFERRY_HEADER": ""},
			want: fromFlags(func(*config.Settings) {}, "http://a.example"),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, loadFlags(t, tt.args, tt.env), settingsAsWritten); diff != "" {
				t.Errorf("serve %q (-want +got):\n%s", tt.args, diff)
			}
		})
	}
}

// TestServeFlagsWinOverTheFile shows that the flags that are given win over the file. The
// defaults of the other flags do not.
func TestServeFlagsWinOverTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hookferry.yaml")
	if err := os.WriteFile(path, []byte("listen: :1\ngrace: 1s\ndata: here\nlog: {level: warn}\n"+
		"sources: [{name: a, keys: [k], destinations: []}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := loadFlags(t, []string{"--config", path, "--grace", "3s"}, map[string]string{"HOOKFERRY_ADMIN_LISTEN": "off", "HOOKFERRY_DATA": "there"})
	want := config.Default()
	want.Path, want.Listen, want.Grace, want.Data, want.Admin.Listen, want.Log.Level = path, ":1", 3*time.Second, "there", "off", slog.LevelWarn
	want.Sources = []config.Source{{Name: "a", Keys: []signature.Secret{"k"}, Destinations: []string{}}}
	if diff := cmp.Diff(want, got, settingsAsWritten); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
