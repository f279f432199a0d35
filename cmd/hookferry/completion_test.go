package main

import (
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

func TestCandidates(t *testing.T) {
	var asked []string
	server := fakeAPI(t, &asked, map[string]any{
		"GET /api/v1/destinations": api.Destinations{Destinations: []api.Destination{{ID: "acme", State: "ok"}, {ID: "a\nb"}, {ID: "crm", State: "paused"}}},
		"GET /api/v1/sources":      api.Sources{Sources: []api.Source{{Name: "web"}}},
		"GET /api/v1/audiences":    api.Audiences{Audiences: []api.Audience{{Destination: "acme", Name: "Big Spenders"}}},
		"GET /api/v1/dead":         api.Dead{Dead: []api.DeadLetter{{Key: "0019c5", Destination: "acme", Reason: "refused"}}},
	})
	for _, tt := range []struct {
		name  string
		words []string
		want  []string // words, or what they are as well, as "acme: destination, ok"
		file  bool
	}{
		{"commands", []string{"de"}, []string{"dead", "delete-user"}, false},
		{"commands of a command", []string{"dead", "re"}, []string{"replay"}, false},
		{"commands to explain", []string{"help", "dead", "re"}, []string{"replay"}, false},
		{"no command", []string{"mend", ""}, nil, false},
		{"flags", []string{"dead", "ls", "-t"}, []string{"-to", "-type"}, false},
		{"flags behind arguments", []string{"pause", "acme", "-j"}, []string{"-json"}, false},
		{"values", []string{"dead", "ls", "-reason", "re"}, []string{"redirect", "refused"}, false},
		{"values of what is repeated", []string{"events", "-kind", "dead", "-kind", "a"}, []string{"accepted", "attempt"}, false},
		{"the value of a flag without values", []string{"dead", "ls", "-to", ""}, nil, false},
		{"behind a flag without a value", []string{"pause", "-json", "a"}, []string{"acme"}, false},
		{"behind a flag with its value", []string{"dead", "ls", "-type=track", "-rea"}, []string{"-reason"}, false},
		{"destinations", []string{"pause", "crm", "a"}, []string{"acme"}, false},
		{"a destination by a flag", []string{"dead", "ls", "-destination", ""}, []string{"acme: destination, ok", "crm: destination, paused"}, false},
		{"a destination to test", []string{"test", "c"}, []string{"crm"}, false},
		{"nothing behind the last argument", []string{"test", "crm", "c"}, nil, false},
		{"sources", []string{"delete-user", "u1", "-source", ""}, []string{"web: source"}, false},
		{"audiences", []string{"audience", "sync", "B"}, []string{"Big Spenders: audience of acme"}, false},
		{"keys", []string{"dead", "replay", ""}, []string{"0019c5: acme: refused"}, false},
		{"a file behind a name", []string{"audience", "sync", "VIP", ""}, nil, true},
		{"a file by a flag", []string{"delete-user", "-file", "us"}, nil, true},
		{"a folder", []string{"store", "check", "-data", ""}, nil, true},
		{"arguments that look like flags", []string{"pause", "--", "-"}, nil, false},
		{"a server that is not there", []string{"pause", "-admin", "127.0.0.1:1", ""}, nil, false},
		{"an address that is none", []string{"pause", "-admin", "ftp://x", ""}, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inMemory(t, server, func(t *testing.T, url string, p process) { // as it has a second
				p.getenv = func(name string) string { return map[string]string{"HOOKFERRY_ADMIN": url}[name] }
				list, err := candidates(t.Context(), tt.words, p)
				if errors.Is(err, errAnyFile) != tt.file || err != nil && !tt.file {
					t.Errorf("candidates(%q): %v", tt.words, err)
				}
				var got []string
				for _, c := range list {
					word := c.word
					if slices.ContainsFunc(tt.want, func(w string) bool { return strings.Contains(w, ": ") }) {
						word += ": " + c.what
					}
					got = append(got, word)
				}
				if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("candidates(%q) (-want +got):\n%s", tt.words, diff)
				}
			})
		})
	}
}

// Every command and flag is a candidate, and says what it is.
func TestCandidatesNameAllThereIs(t *testing.T) {
	p := process{getenv: func(string) string { return "" }}
	var walk func(words []string, list []command)
	walk = func(words []string, list []command) {
		offered, err := candidates(t.Context(), append(slices.Clone(words), ""), p)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			i := slices.IndexFunc(offered, func(o candidate) bool { return o.word == c.name })
			if i < 0 || offered[i].what == "" {
				t.Errorf("%q is not offered behind %q, or without a word about it", c.name, words)
			}
			path := append(slices.Clone(words), c.name)
			if c.define == nil {
				walk(path, c.commands)
				continue
			}
			o := newOptions(c.name, c.help)
			c.define(o)
			flags, err := candidates(t.Context(), append(path, "-"), p)
			if err != nil {
				t.Fatal(err)
			}
			o.set.VisitAll(func(f *flag.Flag) {
				i := slices.IndexFunc(flags, func(o candidate) bool { return o.word == "-"+f.Name })
				if i < 0 || flags[i].what == "" {
					t.Errorf("-%s is not offered behind %q, or without a word about it", f.Name, path)
				}
			})
		}
	}
	walk(nil, commands())
}
