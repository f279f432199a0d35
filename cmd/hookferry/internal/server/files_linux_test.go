package server

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// limitFiles limits the open files of the process to 700 until the test ends.
func limitFiles(t *testing.T) {
	t.Helper()
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
}

// The endpoints of manyFiles need 192 files, and everything but connections needs 128.
const manyFiles = `
sources: [{name: web, keys: [k1]}]
destinations:
  - {id: a, endpoints: [{url: "http://a.example/"}, {url: "http://b.example/"}]}
  - {id: b, maxConcurrent: 64, endpoints: [{url: "http://a.example/"}]}
`

// TestFileLimit starts a server under a limit of open files. The server warns if its settings need
// one file more than the limit, and not if they just fit.
func TestFileLimit(t *testing.T) {
	limitFiles(t)
	for connections, warned := range map[string]bool{"380": false, "381": true} {
		bubble(t, func(t *testing.T, w *world) {
			s := w.start("limits: {connections: " + connections + "}\n" + manyFiles)
			if got := strings.Contains(s.text(), "limit=700 needed=701"); got != warned {
				t.Errorf("with %s connections: warned %v, want %v; the log:\n%s", connections, got, warned, s.text())
			}
		})
	}
}

// TestFileLimitCountsStoredDestinations shows that the warning counts the endpoints of destinations
// in the store, too.
func TestFileLimitCountsStoredDestinations(t *testing.T) {
	limitFiles(t)
	bubble(t, func(t *testing.T, w *world) {
		s := w.start("limits: {connections: 380}\n" + manyFiles)
		r, err := http.NewRequest("PUT", s.admin()+"/api/v1/destinations/c", strings.NewReader(`{"sources": ["web"], "maxConcurrent": 1, "endpoints": [{"url": "http://c.example/"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if status, text := w.do(w.client, r); status != 200 {
			t.Fatalf("PUT: status %d, want 200: %s", status, text)
		}
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		if s = w.start("limits: {connections: 380}\n" + manyFiles); !strings.Contains(s.text(), "limit=700 needed=764") {
			t.Errorf("the server does not warn; the log:\n%s", s.text())
		}
	})
}
