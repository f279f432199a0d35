package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/hookferry/analytics/internal/testkit"
)

// TestAdminGuide runs the curl commands of docs/admin.md in order. The server has an admin
// token and one dead letter. Every command must succeed.
func TestAdminGuide(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the commands of docs/admin.md are for a Unix shell")
	}
	for _, program := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			testkit.Missing(t, "the commands of docs/admin.md need bash and curl: "+err.Error())
		}
	}
	dir := t.TempDir()
	_, receiver := start(t, dir, nil, `listening on (\S+)`, "hookferry", "listen", "--listen", "127.0.0.1:0", "--status", "400")
	admin, token := freeAddress(t), "a-token-that-nobody-guesses"
	settings := fmt.Sprintf(`{"sources": [{"name": "shop", "keys": ["k"], "destinations": ["acme"]}], "admin": {"listen": %q, "token": %q},
		"webhooks": {"allow": ["127.0.0.1"]}, "destinations": [{"id": "acme", "endpoints": [{"url": %q}]}]}`, admin, token, receiver)
	file := filepath.Join(dir, "hookferry.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	_, server := start(t, dir, nil, `msg=listening address=(\S+)`, "hookferry", "serve", "--config", file, "--listen", "127.0.0.1:0")
	env := []string{"HOOKFERRY_ADMIN=" + admin, "HOOKFERRY_ADMIN_TOKEN=" + token, "HOOKFERRY_ENDPOINT=http://" + server,
		"HOOKFERRY_WRITE_KEY=k", "HOOKFERRY_TIMEOUT=24h"}
	events, _ := start(t, dir, env, `(What happens on)`, "hookferry", "events", "--kind", "dead")
	start(t, dir, env, `^(accepted) `, "hookferry", "send", "track", "--user", "u1", "--event", "Paid", "--message-id", "order-1")
	await(t, events, `(dead) +acme +track +order-1`)

	text := guide(t, "admin.md")
	var script strings.Builder
	blocks := regexp.MustCompile("(?s)\n(<!-- without end -->\n)?```sh\n(.*?)```\n").FindAllStringSubmatch(text, -1)
	for _, b := range blocks {
		commands := b[2]
		if b[1] != "" { // the command runs until the server stops; one line is enough
			commands = "read -r line < <(" + strings.TrimSuffix(commands, "\n") + ")\n"
		}
		script.WriteString(commands + "echo\n")
	}
	if len(blocks) < 10 {
		t.Errorf("found %d blocks of commands in docs/admin.md, want at least 10", len(blocks))
	}
	cmd := exec.Command("bash", "-c", "set -exo pipefail\n"+script.String())
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
	for _, want := range []string{`"reason":"refused"`, `"state":"refusing"`, `"joined":2`, `"event":"Paid"`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the commands do not print %s; they print:\n%s", want, out)
		}
	}
}
