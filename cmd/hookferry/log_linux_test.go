package main

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestServeNeedsNoReaderOfItsLog runs servers whose standard error is a pipe of 4 KB. Its reader
// stops reading, or closes the pipe. The server answers more requests than the pipe has room for,
// and its stop is orderly all the same.
func TestServeNeedsNoReaderOfItsLog(t *testing.T) {
	for _, tt := range []struct {
		name   string
		closes bool
	}{{"stops", false}, {"closes", true}} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "hookferry.yaml")
			if err := os.WriteFile(file, []byte("listen: 127.0.0.1:0\nadmin: {listen: off}\nlog: {access: 1}\nsources: [{name: web, keys: [k], destinations: []}]\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			reader, stderr, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, stderr.Fd(), 1031 /* F_SETPIPE_SZ */, 4096); errno != 0 {
				t.Fatal(errno)
			}
			cmd := exec.Command("hookferry", "serve", "--config", file, "--data", filepath.Join(dir, "data"))
			cmd.Stderr = stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			stderr.Close()
			url := ""
			for log := bufio.NewScanner(reader); url == "" && log.Scan(); {
				if _, rest, ok := strings.Cut(log.Text(), "msg=listening address="); ok {
					address, _, _ := strings.Cut(rest, " ")
					url = "http://" + address + "/v1/track"
				}
			}
			if tt.closes {
				reader.Close()
			}
			for i := range 100 {
				r, err := http.Post(url, "", strings.NewReader(`{"writeKey":"k","userId":"u1","event":"Paid"}`))
				if err != nil {
					t.Fatalf("after %d answers: %v", i, err)
				}
				if r.Body.Close(); r.StatusCode != http.StatusOK {
					t.Fatalf("the status of a call is %d, want 200", r.StatusCode)
				}
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("the server ended with %v, want status 0", err)
			}
		})
	}
}
