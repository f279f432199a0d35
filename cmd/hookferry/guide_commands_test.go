package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
)

// scriptOf returns the shell blocks of a guide as one script, and their number. A block below
// "<!-- without end -->" is one command that runs until it is stopped. The script stops it after its
// first line. Blocks below "<!-- ... runs this -->" are left out.
func scriptOf(text string) (script string, blocks int) {
	var b strings.Builder
	text = regexp.MustCompile("<!-- \\S+ runs this -->\n```sh\n").ReplaceAllString(text, "")
	for _, m := range regexp.MustCompile("(?s)\n(<!-- without end -->\n)?```sh\n(.*?)```\n").FindAllStringSubmatch(text, -1) {
		blocks++
		if m[1] == "" {
			b.WriteString(m[2] + "echo\n")
			continue
		}
		// With exec, the signal is for the program. A function of the script cannot be run by exec.
		command := strings.Replace("\n"+m[2], "\nhookferry ", "\nexec hookferry ", 1)
		b.WriteString("exec 3< <(" + strings.TrimRight(command, "\n") + " 2>&1)\nread -r line <&3\necho \"$line\"\nkill $!\nwait $! || [ $? = 143 ]\nexec 3<&-\n")
	}
	return b.String(), blocks
}

// runScript runs a script with bash in a folder. It returns all that was printed. The script must
// succeed, and stops at the first command that fails.
func runScript(t *testing.T, dir string, env []string, script string) string {
	t.Helper()
	cmd := exec.Command("bash", "-c", "set -exo pipefail\n"+script)
	// The output goes to a file. Run would wait for the end of a pipe, and the commands that
	// do not end would hold the pipe open.
	printed, err := os.Create(filepath.Join(dir, "printed"))
	if err != nil {
		t.Fatal(err)
	}
	defer printed.Close()
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), env...), printed, printed
	failed := cmd.Run()
	out, err := os.ReadFile(printed.Name())
	if err != nil {
		t.Fatal(err)
	}
	if failed != nil {
		t.Errorf("%v:\n%s", failed, out)
	}
	return string(out)
}

// needShell skips the test on systems on which the commands of the guides do not run.
func needShell(t *testing.T, programs ...string) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the commands of the guides are for a Unix shell")
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			testkit.Missing(t, "the commands of the guides need "+program+": "+err.Error())
		}
	}
}

// TestAdminGuide runs the curl commands of docs/admin.md in order. The server has an admin
// token and one dead letter. Every command must succeed.
func TestAdminGuide(t *testing.T) {
	needShell(t, "bash", "curl")
	dir := t.TempDir()
	_, receiver := start(t, dir, nil, `listening on (\S+)`, "hookferry", "listen", "--listen", "127.0.0.1:0", "--status", "400")
	env := guideServer(t, dir, fmt.Sprintf(`, "destinations": [{"id": "acme", "endpoints": [{"url": %q}]}]`, receiver), "acme")
	events, _ := start(t, dir, env, `(What happens on)`, "hookferry", "events", "--kind", "dead")
	start(t, dir, env, `^(accepted) `, "hookferry", "send", "track", "--user", "u1", "--event", "Paid", "--message-id", "order-1")
	await(t, events, `(dead) +acme +track +order-1`)

	script, blocks := scriptOf(guide(t, "admin.md"))
	if blocks < 10 {
		t.Errorf("found %d blocks of commands in docs/admin.md, want at least 10", blocks)
	}
	out := runScript(t, dir, env, script)
	for _, want := range []string{`"reason":"refused"`, `"state":"refusing"`, `"joined":2`, `"event":"Paid"`} {
		if !strings.Contains(out, want) {
			t.Errorf("the commands do not print %s; they print:\n%s", want, out)
		}
	}
}

// guideServer starts a server for a guide, whose settings end with more, and whose source sends to
// these destinations. It returns the environment of the commands.
func guideServer(t *testing.T, dir, more string, destinations ...string) []string {
	t.Helper()
	admin, token := freeAddress(t), "a-token-that-nobody-guesses"
	settings := fmt.Sprintf(`{"sources": [{"name": "shop", "keys": ["k"], "destinations": [%s]}], "admin": {"listen": %q, "token": %q},
		"webhooks": {"allow": ["127.0.0.1"]}, "history": {"maxAge": "1h"}, "tenants": {"keys": ["publish"]}%s}`,
		strings.Trim(fmt.Sprintf("%q", destinations), "[]"), admin, token, more)
	file := filepath.Join(dir, "server.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	_, server := start(t, dir, nil, `msg=listening address=(\S+)`, "hookferry", "serve", "--config", file, "--listen", "127.0.0.1:0", "--data", "of-the-server")
	return []string{"HOOKFERRY_ADMIN=" + admin, "HOOKFERRY_ADMIN_TOKEN=" + token, "HOOKFERRY_ENDPOINT=http://" + server,
		"HOOKFERRY_WRITE_KEY=k", "HOOKFERRY_PUBLISH_KEY=publish", "HOOKFERRY_TIMEOUT=24h",
		"HOOKFERRY_LISTEN=127.0.0.1:0", "HOOKFERRY_ADMIN_LISTEN=127.0.0.1:0"} // of further servers
}

// TestGuideCommands runs the commands of the guides below in order, on a server with one dead
// letter and one delivery that arrived. Addresses, ids and keys of the guides are replaced by those
// of the test. Every command must succeed. A command that retries or discards may also find no
// delivery.
func TestGuideCommands(t *testing.T) {
	needShell(t, "bash", "curl")
	hook := &signature.Handler{Secrets: []signature.Secret{"s3cret"}, Next: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hook" {
			hook.ServeHTTP(w, r)
		} else if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), `"Broken"`) {
			w.WriteHeader(422)
		}
	}))
	defer receiver.Close()
	for _, page := range []string{"cli.md", "configuration.md", "operations.md", "portal.md", "receivers.md", "start-receiving.md", "start-tracking.md", "troubleshooting.md"} {
		t.Run(page, func(t *testing.T) {
			dir := t.TempDir()
			env := append(guideServer(t, dir, ""), "HOME="+dir)
			for name, text := range map[string]string{
				"acme.yaml":    "sources: [shop]\nendpoints: [{url: " + receiver.URL + "/acme}]\n",
				"changes.yaml": "timeout: 2s\n", "publish.key": "p", "batch.json": `{"batch": [{"type": "track", "userId": "u", "event": "E"}]}`, "spenders.txt": "u1\nu2\n", "users.txt": "u3\n",
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			runScript(t, dir, env, "hookferry destination set acme acme.yaml\nhookferry config example > hookferry.yaml\nmkdir -p .config/fish/completions")
			events, _ := start(t, dir, env, `(What happens on)`, "hookferry", "events", "--kind", "dead", "--kind", "delivered")
			start(t, dir, env, `^(accepted) `, "hookferry", "send", "track", "--user", "u1", "--event", "Order Paid", "--message-id", "invoice-1042-paid")
			start(t, dir, env, `^(accepted) `, "hookferry", "send", "track", "--user", "u1", "--event", "Broken")
			await(t, events, `(?:(?s:.*?)\n[^\n]*(?:  dead  |  delivered  )){2}`)
			_, key := start(t, dir, env, `"key":"(acme:[^"]+)"`, "hookferry", "deliveries", "ls", "--state", "dead", "--json")

			script, blocks := scriptOf(guide(t, page))
			if blocks == 0 {
				t.Fatal("the guide has no commands")
			}
			host := strings.TrimPrefix(receiver.URL, "http://")
			other := freeAddress(t) // of a further server
			script = strings.NewReplacer("acme:k3f9", key, "acme/mijnhqaa4rgykzqkzpx2mfl5", `"$id"`,
				"http://localhost:3000", receiver.URL, "localhost:3000", host, "hooks.example:8081", strings.TrimPrefix(env[0], "HOOKFERRY_ADMIN="),
				"https://example.com/hook", receiver.URL+"/acme", "https://acme.example/hook", receiver.URL+"/acme",
				"hookferry listen --s", "hookferry listen --listen 127.0.0.1:0 --s", "/var/lib/hookferry", "hookferry-data",
				// The guide has a terminal for each of these.
				"go run ./cmd/hookferry listen\n", "hookferry listen &\n", "go run ./cmd/hookferry serve", "env -u HOOKFERRY_WRITE_KEY -u HOOKFERRY_PUBLISH_KEY hookferry serve --data another",
				"http://localhost:9000/hook\ngo run ./cmd/hookferry send", receiver.URL+"/acme &\nhookferry send",
				// A measurement of seconds.
				"hookferry serve --write-key k", "env -u HOOKFERRY_PUBLISH_KEY hookferry serve --data another --listen "+other+" --write-key k",
				"listen --listen localhost:9000", "listen", "http://localhost:9000/hook", receiver.URL+"/acme",
				"seq 16", "until curl -s http://"+other+"/readyz; do :; done\nseq 16", "http://localhost:8080", "http://"+other, "[1-100000]", "[1-3]", "timeout 9 ", "", "hookferry health\n", "hookferry health --timeout 24h\n",
				"hookferry serve --config", "env -u HOOKFERRY_WRITE_KEY -u HOOKFERRY_PUBLISH_KEY hookferry serve --config", "source <(hookferry completion zsh)", "hookferry completion zsh > zsh",
				// The receiver has no database.
				" \\\n  --applied \"sqlite3 shop.db \\\"SELECT count(*) FROM paid WHERE invoice = '{id}'\\\"\"", "",
				// Later commands need the destination again, and the id of the new one.
				"--waiting discard --by alice --yes\n", "--waiting discard --by alice --yes\nhookferry destination set acme acme.yaml\n",
				"hookferry tenant portal acme --for ann@acme.example\necho", "hookferry tenant create acme\nhookferry tenant portal acme --for ann@acme.example\necho",
				"--type 'invoice.*'\n", "--type 'invoice.*'\nid=$(hookferry tenant destination ls acme --json | grep -o 'acme/[^\"]*' | head -n 1)\n",
			).Replace(script)
			script = regexp.MustCompile(`(?m)^hookferry deliveries (retry|discard) .*$`).ReplaceAllString(script, "$0 --yes || [ $$? = 3 ]")
			runScript(t, dir, env, "trap 'kill $(jobs -p) 2>/dev/null && wait || true' EXIT\n"+script)
		})
	}
}
