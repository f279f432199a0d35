package server

import (
	"strings"
	"syscall"
	"testing"
)

// TestFileLimit starts a server under a limit of open files. The server warns if its settings need
// one file more than the limit, and not if they just fit.
func TestFileLimit(t *testing.T) {
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	now := was
	now.Cur = 700
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was) })
	// The endpoints need 192 files, and everything but connections needs 128.
	const settings = `
sources: [{name: web, keys: [k1]}]
destinations:
  - {id: a, endpoints: [{url: "http://a.example/"}, {url: "http://b.example/"}]}
  - {id: b, maxConcurrent: 64, endpoints: [{url: "http://a.example/"}]}
`
	for connections, warned := range map[string]bool{"380": false, "381": true} {
		bubble(t, func(t *testing.T, w *world) {
			s := w.start("limits: {connections: " + connections + "}\n" + settings)
			if got := strings.Contains(s.text(), "limit=700 needed=701"); got != warned {
				t.Errorf("with %s connections: warned %v, want %v; the log:\n%s", connections, got, warned, s.text())
			}
		})
	}
}
