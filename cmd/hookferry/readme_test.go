package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hookferry/analytics/internal/testkit"
)

// TestReadmeCommands runs what the README tells a stranger to try, with other
// ports, and the webhook arrives.
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
