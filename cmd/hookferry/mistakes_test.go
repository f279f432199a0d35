package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrongCalls makes mistakes that people make. For each, the command prints one sentence
// that says what is wrong, and if possible what would be right. It prints nothing on standard
// output. If the call itself is wrong, the command also names the help, exits with status 2,
// and sends no request. Mistakes with serve and send are in testdata/script.
func TestWrongCalls(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	empty := file("empty", "")
	missing := filepath.Join(dir, "missing")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("the server got a request for %s, want none", r.URL)
	}))
	defer server.Close()

	for _, tt := range []struct {
		call string // words, separated by |
		want string // the beginning of the sentence
		exit int
	}{
		{"status|acme", `unexpected argument "acme"`, exitUsage},
		{"status|--watch=often", `invalid argument "often" for "--watch" flag: must be true or false`, exitUsage},
		{"status|--jsno", "no flag --jsno; did you mean --json?", exitUsage},
		{"status|--admin", "flag needs an argument: --admin", exitUsage},
		{"statsu", `no command "statsu"; did you mean status?`, exitUsage},
		{"pause", "want DESTINATION, as in 'hookferry pause DESTINATION...'; 'hookferry status' lists them", exitUsage},
		{"pause|a|", "DESTINATION is empty", exitUsage},
		{"resume|", "DESTINATION is empty", exitUsage},
		{"deliveries", "want a command: discard, ls, retry, show", exitUsage},
		{"deliveries|list", `no command "list"; did you mean ls?`, exitUsage},
		{"deliveries|list|--state|dead", `no command "list"; did you mean ls?`, exitUsage},
		{"deliveries|ls|m1", `unexpected argument "m1"`, exitUsage},
		{"deliveries|ls|--reason|odd", `invalid argument "odd" for "--reason" flag: want one of timeout, dns`, exitUsage},
		{"deliveries|ls|--state|failing", `invalid argument "failing" for "--state" flag: want one of behind, waiting, claimed, delivered, dead`, exitUsage},
		{"deliveries|ls|--limit|0", `invalid argument "0" for "--limit" flag: want a number from 1 to 1000000`, exitUsage},
		{"deliveries|ls|--limit|many", `invalid argument "many" for "--limit" flag: want a number from 1 to`, exitUsage},
		{"deliveries|ls|--from|noon", `invalid argument "noon" for "--from" flag: want a time such as`, exitUsage},
		{"deliveries|show", "want KEY, as in 'hookferry deliveries show KEY'; 'hookferry deliveries ls' lists them", exitUsage},
		{"deliveries|show|a|b", `unexpected argument "b"`, exitUsage},
		{"deliveries|retry", "want keys, flags that select, or --all", exitUsage},
		{"deliveries|discard", "want keys, flags that select, or --all", exitUsage},
		{"deliveries|discard|--yes", "want keys, flags that select, or --all", exitUsage},
		{"deliveries|discard|a|--type|track", "want keys, flags that select, or --all; one of them", exitUsage},
		{"deliveries|discard|--all|--type|track", "want keys, flags that select, or --all; one of them", exitUsage},
		{"deliveries|discard|a|--all", "want keys, flags that select, or --all; one of them", exitUsage},
		{"destination", "want a command: change, delete, disable, enable, rotate, set, show", exitUsage},
		{"destination|set|acme", "want FILE, as in 'hookferry destination set DESTINATION FILE'", exitUsage},
		{"destination|set|acme|" + missing, "open " + missing + ": no such file", exitFailure},
		{"destination|set|acme|" + empty, empty + " is not YAML or JSON with keys and values", exitFailure},
		{"destination|delete|acme", "--waiting: want one of keep, discard", exitUsage},
		{"destination|delete|acme|--waiting|maybe", `invalid argument "maybe" for "--waiting" flag: want one of keep, discard`, exitUsage},
		{"destination|delete|acme|--yes", "--waiting: want one of keep, discard", exitUsage},
		{"destination|delete|acme|--waiting|keep", "delete acme, and keep its waiting deliveries? There is no terminal to answer on: add --yes", exitUsage},
		{"destination|rotate", "want DESTINATION, as in 'hookferry destination rotate DESTINATION'; 'hookferry status' lists them", exitUsage},
		{"test|acme|globex", `unexpected argument "globex"`, exitUsage},
		{"test|acme|--type|order", `invalid argument "order" for "--type" flag: want one of`, exitUsage},
		{"audience|sync|vips", "want FILE, as in 'hookferry audience sync AUDIENCE FILE'", exitUsage},
		{"audience|members", "want AUDIENCE, as in 'hookferry audience members AUDIENCE'; 'hookferry audience ls' lists them", exitUsage},
		{"audience|sync|vips|" + missing, "open " + missing + ": no such file", exitFailure},
		{"audience|create", "want NAME, as in 'hookferry audience create NAME [FILE]'", exitUsage},
		{"audience|ls|vips", `unexpected argument "vips"`, exitUsage},
		{"delete-user", "want ids of users, or --file; one of them", exitUsage},
		{"delete-user|u1|--file|" + empty, "want ids of users, or --file; one of them", exitUsage},
		{"erase-user", "want USER, as in 'hookferry erase-user USER...'", exitUsage},
		{"erase-user||--yes", "USER is empty", exitUsage},
		{"erase-user|u1", "erase what is stored of 1 user? There is no terminal to answer on: add --yes", exitUsage},
		{"config|check", "want FILE, as in 'hookferry config check FILE'", exitUsage},
		{"config|example|acme", `unexpected argument "acme"`, exitUsage},
		{"store|check|" + dir, fmt.Sprintf("unexpected argument %q; the data folder is a flag: --data %s", dir, dir), exitUsage},
		{"store|check|--data|" + missing, "filequeue: open " + missing, exitFailure},
		{"store|rescue|--data|" + missing, "--to: want", exitUsage},
		{"key|new", "want FILE, as in 'hookferry key new FILE'", exitUsage},
		{"key|new|" + empty, "open " + empty + ": file exists", exitFailure},
		{"key|make|k", `no command "make"; there are new, public`, exitUsage},
		{"key|public|" + empty, `the file has no private key: "whsk_" and the base64 of an Ed25519 key`, exitFailure},
		{"listen|--status|99", `invalid argument "99" for "--status" flag: want a number from 200 to 599`, exitUsage},
		{"listen|--listen|9000", `--listen: "9000" is not an address; want host:port or :port`, exitUsage},
		{"health|:8080", `unexpected argument ":8080"`, exitUsage},
		{"completion", "want a command: bash, fish, powershell, zsh", exitUsage},
		{"completion|tcsh", `no command "tcsh"; did you mean bash or fish or zsh?`, exitUsage},
		{"completion|bash|now", `unexpected argument "now"`, exitUsage},
	} {
		t.Run(tt.call, func(t *testing.T) {
			args := strings.Split(tt.call, "|")
			env := map[string]string{"HOOKFERRY_ADMIN": server.URL}
			out, said, exit := runCommand(t.Context(), "", env, args...)
			lines := strings.SplitAfter(said, "\n")
			_, sentence, _ := strings.Cut(lines[0], ": ")
			if exit != tt.exit || out != "" || !strings.HasPrefix(sentence, tt.want) {
				t.Errorf("exit status %d, %q on standard output, and\n%swant %d, nothing on standard output, and: %s", exit, out, said, tt.exit, tt.want)
			}
			help := len(lines) == 3 && strings.HasPrefix(lines[1], "Run 'hookferry") && lines[2] == ""
			if alone := len(lines) == 2; exit == exitUsage && !help || exit != exitUsage && !alone {
				t.Errorf("printed %q, want one sentence, and a second line that names the help if the call is wrong", said)
			}
		})
	}
}
