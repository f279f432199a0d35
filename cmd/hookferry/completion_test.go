package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/cobra"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

func TestCompletionCandidates(t *testing.T) {
	var asked []string
	server := fakeAPI(t, &asked, map[string]any{
		"GET /api/v1/destinations": api.Destinations{Page: api.Page[api.Destination]{Items: []api.Destination{{ID: "acme", State: "ok"}, {ID: "a\nb"}, {ID: "crm", State: "paused"}}}},
		"GET /api/v1/sources":      api.Page[api.Source]{Items: []api.Source{{Name: "web"}}},
		"GET /api/v1/audiences":    api.Page[api.Audience]{Items: []api.Audience{{Destination: "acme", Name: "Big Spenders"}}},
		"GET /api/v1/deliveries":   api.Page[api.Delivery]{Items: []api.Delivery{{Key: "acme:19c5", State: "dead", Reason: "refused"}}},
	})
	for _, tt := range []struct {
		name  string
		words []string
		want  []string // words, or words with descriptions such as "acme: destination, ok"
		file  bool
	}{
		{"commands", []string{"de"}, []string{"delete-user", "deliveries", "destination"}, false},
		{"commands of a command", []string{"deliveries", "re"}, []string{"retry"}, false},
		{"commands to explain", []string{"help", "deliveries", "re"}, []string{"retry"}, false},
		{"no command", []string{"mend", ""}, nil, false},
		{"flags", []string{"deliveries", "ls", "--t"}, []string{"--tenant", "--to", "--type"}, false},
		{"flags behind arguments", []string{"pause", "acme", "--j"}, []string{"--json"}, false},
		{"values", []string{"deliveries", "ls", "--reason", "re"}, []string{"redirect", "refused"}, false},
		{"values of a repeated flag", []string{"events", "--kind", "dead", "--kind", "a"}, []string{"accepted", "attempt"}, false},
		{"the value of a flag without values", []string{"deliveries", "ls", "--to", ""}, nil, false},
		{"behind a flag without a value", []string{"pause", "--json", "a"}, []string{"acme"}, false},
		{"behind a flag with its value", []string{"deliveries", "ls", "--type=track", "--rea"}, []string{"--reason"}, false},
		{"destinations", []string{"pause", "crm", "a"}, []string{"acme"}, false},
		{"a destination by a flag", []string{"deliveries", "ls", "--destination", ""}, []string{"acme: destination, ok", "crm: destination, paused"}, false},
		{"a destination to test", []string{"test", "c"}, []string{"crm"}, false},
		{"nothing behind the last argument", []string{"test", "crm", "c"}, nil, false},
		{"sources", []string{"delete-user", "u1", "--source", ""}, []string{"web: source"}, false},
		{"audiences", []string{"audience", "sync", "B"}, []string{"Big Spenders: audience of acme"}, false},
		{"keys", []string{"deliveries", "retry", ""}, []string{"acme:19c5: dead, refused"}, false},
		{"a file behind a name", []string{"audience", "sync", "VIP", ""}, nil, true},
		{"a file by a flag", []string{"delete-user", "--file", "us"}, nil, true},
		{"a folder", []string{"store", "check", "--data", ""}, nil, true},
		{"arguments that look like flags", []string{"pause", "--", "-"}, nil, false},
		{"a server that is not there", []string{"pause", "--admin", "127.0.0.1:1", ""}, nil, false},
		{"an address that is not valid", []string{"pause", "--admin", "ftp://x", ""}, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inMemory(t, server, func(t *testing.T, url string, p process) { // completion waits a second, of the bubble's clock
				p.getenv = func(name string) string { return map[string]string{"HOOKFERRY_ADMIN": url}[name] }
				list, directive := completions(t, p, tt.words...)
				if anyFile := directive&cobra.ShellCompDirectiveNoFileComp == 0; anyFile != tt.file {
					t.Errorf("completions(%q): offers files: %t, want %t", tt.words, anyFile, tt.file)
				}
				var got []string
				for _, c := range list {
					word, what, _ := strings.Cut(c, "\t")
					if slices.ContainsFunc(tt.want, func(w string) bool { return strings.Contains(w, ": ") }) {
						word += ": " + what
					}
					got = append(got, word)
				}
				if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("completions(%q) (-want +got):\n%s", tt.words, diff)
				}
			})
		})
	}
}

// TestCompletionOffersEveryCommand shows that completion offers every command, with its
// summary.
func TestCompletionOffersEveryCommand(t *testing.T) {
	eachCommand(noEnvironment.commands(), func(words string, c *cobra.Command) {
		offered, _ := completions(t, noEnvironment, append(strings.Fields(words), "")...)
		for _, below := range c.Commands() {
			if !slices.Contains(offered, below.Name()+"\t"+below.Short) {
				t.Errorf("completion does not offer %q after %q", below.Name(), words)
			}
		}
	})
}

// completions asks for the candidates of the last word, as the completion scripts of shells do.
func completions(t *testing.T, p process, words ...string) (list []string, directive cobra.ShellCompDirective) {
	t.Helper()
	var out bytes.Buffer
	p.stdin, p.stdout, p.stderr = strings.NewReader(""), &out, io.Discard
	if status := run(t.Context(), append([]string{cobra.ShellCompRequestCmd}, words...), p); status != exitOK {
		t.Errorf("completions(%q): exit status %d, want %d", words, status, exitOK)
	}
	list = strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	last := list[len(list)-1]
	if _, err := fmt.Sscanf(last, ":%d", &directive); err != nil {
		t.Fatalf("completions(%q) prints no directive at its end:\n%s", words, out.String())
	}
	list = slices.DeleteFunc(list[:len(list)-1], func(word string) bool { return !strings.HasPrefix(word, words[len(words)-1]) }) // shells filter, too
	return list, directive
}
