package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hookferry/analytics/internal/testkit"
)

// TestReadmeCommands runs the commands that the README tells newcomers to try, on other ports.
// The webhook arrives.
func TestReadmeCommands(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^go run \./cmd/hookferry (\w+)(.*)$`).FindAllStringSubmatch(string(readme), -1)
	if len(lines) != 3 {
		t.Fatalf("the README has %d commands, want listen, serve, send", len(lines))
	}
	dir := t.TempDir()
	var receiver, server string
	var listener *testkit.Child
	for i, want := range []string{"listen", "serve", "send"} {
		name, rest := lines[i][1], lines[i][2]
		if name != want {
			t.Fatalf("command %d of the README is %q, want %q", i, name, want)
		}
		args := []string{name}
		for _, word := range regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(rest, -1) {
			word = strings.Trim(word, `"`)
			args = append(args, strings.Replace(word, "http://localhost:9000", receiver, 1))
		}
		switch name {
		case "listen":
			listener, receiver = start(t, dir, nil, `listening on (\S+)`, "hookferry", append(args, "--listen", "127.0.0.1:0")...)
		case "serve":
			_, server = start(t, dir, []string{"HOOKFERRY_LISTEN=127.0.0.1:0", "HOOKFERRY_ADMIN_LISTEN=127.0.0.1:0"}, `msg=listening address=(\S+)`, "hookferry", args...)
		case "send":
			start(t, dir, []string{"HOOKFERRY_ENDPOINT=http://" + server, "HOOKFERRY_TIMEOUT=24h"}, `^accepted \S+\n$`, "hookferry", args...)
		}
	}
	await(t, listener, `track  "Signed Up"  user u1  unsigned\n\{\n  "version": 1,\n  "type": "track",`)
}

// TestReadmeTranscriptIsWhatCommandsPrint runs the commands of the README's transcript. They
// print the lines of the transcript in the same order, with other numbers.
func TestReadmeTranscriptIsWhatCommandsPrint(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```text\n(\\$ hookferry .*?)```").FindSubmatch(readme)
	if found == nil {
		t.Fatal("the README has no transcript")
	}

	dir := t.TempDir()
	_, mended := start(t, dir, nil, `listening on (\S+)`, "hookferry", "listen", "--listen", "127.0.0.1:0")
	_, refuses := start(t, dir, nil, `listening on (\S+)`, "hookferry", "listen", "--listen", "127.0.0.1:0", "--status", "422")
	settings := fmt.Sprintf(`{"sources": [{"name": "shop", "keys": ["k"], "destinations": ["acme", "initech"]}], "destinations": [
		{"id": "acme", "endpoints": [{"url": %q}]}, {"id": "initech", "endpoints": [{"url": %q}]}]}`, mended, refuses)
	file := filepath.Join(dir, "hookferry.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	admin := freeAddress(t)
	_, server := start(t, dir, nil, `msg=listening address=(\S+)`, "hookferry", "serve", "--config", file, "--listen", "127.0.0.1:0", "--admin-listen", admin)
	env := []string{"HOOKFERRY_ADMIN=" + admin, "HOOKFERRY_ENDPOINT=http://" + server, "HOOKFERRY_WRITE_KEY=k", "HOOKFERRY_TIMEOUT=24h"}
	events, _ := start(t, dir, env, `(What happens on)`, "hookferry", "events", "--kind", "dead", "--kind", "delivered")
	for _, user := range []string{"u1", "u2"} {
		start(t, dir, env, `^accepted (\S+)\n$`, "hookferry", "send", "track", "--user", user, "--event", "Order Placed")
	}
	await(t, events, `(?:(?s:.*?)\n[^\n]*(?:  dead  |  delivered  )){4}`)

	var printed []string // rest of the output of the current command
	for line := range strings.Lines(string(found[1])) {
		if command, ok := strings.CutPrefix(line, "$ hookferry "); ok {
			cmd := exec.Command("hookferry", strings.Fields(command)...)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", command, err, out)
			}
			printed = strings.Split(string(out), "\n")
			continue
		}
		at := slices.IndexFunc(printed, func(p string) bool { return withoutNumbers(p) == withoutNumbers(line) })
		if at < 0 {
			t.Fatalf("the command does not print %q, or not in this order; the rest of its output is\n%s", line, strings.Join(printed, "\n"))
		}
		printed = printed[at+1:]
	}
}

// numbers matches numbers with their units, and ? for an unknown number.
var numbers = regexp.MustCompile(`<?\b[0-9][0-9.,hmsµ]*\b| \? `)

// withoutNumbers returns a line without the parts that differ from run to run: it replaces
// numbers, and joins spaces.
func withoutNumbers(line string) string {
	line = numbers.ReplaceAllString(" "+strings.Join(strings.Fields(line), " ")+" ", " N ")
	return strings.Join(strings.Fields(line), " ")
}
