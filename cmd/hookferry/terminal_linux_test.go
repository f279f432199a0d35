package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/internal/testkit"
)

// A terminal is a pseudo-terminal. The test is its keyboard and its screen.
type terminal struct {
	t     *testing.T
	tty   *os.File // the program's end
	glass *os.File // the test's end
	shown testkit.Output
}

func newTerminal(t *testing.T, columns, rows uint16) *terminal {
	t.Helper()
	glass, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(glass.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(glass.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(glass.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows})
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{t: t, tty: tty, glass: glass}
	read := make(chan struct{})
	go func() { // runs until the program's end is closed
		defer close(read)
		io.Copy(&term.shown, glass)
	}()
	t.Cleanup(func() {
		tty.Close()
		<-read
		glass.Close()
	})
	return term
}

func (term *terminal) typeKeys(keys string) {
	if _, err := io.WriteString(term.glass, keys); err != nil {
		term.t.Error(err)
	}
}

// await waits until the screen matches. It may be called from any goroutine.
func (term *terminal) await(pattern string) {
	if _, ok := term.shown.Await(regexp.MustCompile(pattern), term.t.Context().Done()); !ok {
		term.t.Errorf("the terminal shows\n%[2]q\nwant text that matches %[1]q", pattern, term.shown.String())
	}
}

// run runs a command at the terminal and returns its exit status. It calls meanwhile at the
// same time, in another goroutine.
func (term *terminal) run(ctx context.Context, env map[string]string, meanwhile func(), args ...string) int {
	done := make(chan struct{})
	go func() {
		defer close(done)
		meanwhile()
	}()
	status := run(ctx, args, process{getenv: func(name string) string { return env[name] }, stdin: term.tty, stdout: term.tty, stderr: term.tty})
	<-done
	return status
}

func TestTerminalColours(t *testing.T) {
	var asked []string
	v := exampleOverview()
	server := fakeAdmin(t, &asked, map[string]any{
		"GET /api/v1/status": v.Status, "GET /api/v1/nodes": v.Nodes, "GET /api/v1/sources": api.Page[api.Source]{}, "GET /api/v1/destinations": v.Destinations,
	})
	for _, tt := range []struct {
		name  string
		env   map[string]string
		shown string
	}{
		{"colours", nil, `^\x1b\[1mhookferry v1\.2\.0 on web1/k4m7tq\x1b\[0m  \x1b\[32mready\x1b\[0m`},
		{"NO_COLOR", map[string]string{"NO_COLOR": "1"}, `^hookferry v1\.2\.0 on web1/k4m7tq  ready`},
		{"a dumb terminal", map[string]string{"TERM": "dumb"}, `^hookferry v1\.2\.0 on web1/k4m7tq  ready`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			term := newTerminal(t, 80, 24)
			env := map[string]string{"HOOKFERRY_ADMIN": server, "NO_COLOR": tt.env["NO_COLOR"], "TERM": tt.env["TERM"]}
			if status := term.run(t.Context(), env, func() { term.await(tt.shown + `(?s).*next attempt in 12s`) }, "status"); status != exitOK {
				t.Errorf("exit status %d, want %d", status, exitOK)
			}
		})
	}
}

// TestTerminalWatchFitsTheScreen shows that status --watch redraws the screen until it is
// interrupted, and that its text fits the screen.
func TestTerminalWatchFitsTheScreen(t *testing.T) {
	var asked []string
	v := exampleOverview()
	server := fakeAdmin(t, &asked, map[string]any{
		"GET /api/v1/status": v.Status, "GET /api/v1/nodes": v.Nodes, "GET /api/v1/sources": api.Page[api.Source]{}, "GET /api/v1/destinations": v.Destinations,
	})
	term := newTerminal(t, 60, 10)
	ctx, interrupt := context.WithCancel(t.Context())
	status := term.run(ctx, map[string]string{"HOOKFERRY_ADMIN": server, "NO_COLOR": "1"}, func() {
		term.await(`(?s)(\x1b\[Hhookferry .*and \d+ more lines\x1b\[K\r\n\x1b\[J.*){3}`)
		interrupt()
	}, "status", "--watch", "--every", "1ms")
	if status != exitOK {
		t.Errorf("exit status %d, want %d", status, exitOK)
	}
	frame, _, _ := strings.Cut(term.shown.String(), "\x1b[J")
	if lines := strings.Count(frame, "\n"); lines > 9 {
		t.Errorf("one redraw has %d lines, want at most 9 in 10 rows:\n%s", lines, frame)
	}
}

func TestTerminalAsksBeforeDiscarding(t *testing.T) {
	ended := []api.Progress{{Done: 3, Total: 3, Ended: true}}
	answers := map[string]any{"GET /api/v1/deliveries/count": api.Count{Count: 3}, "POST /api/v1/deliveries/discard": ended}
	for _, tt := range []struct {
		name   string
		answer string // "" interrupts
		status int
		shown  string
		asked  int
	}{
		{"yes", "y\n", exitOK, `3 dead letters discarded`, 2},
		{"yes in full", "Yes\n", exitOK, `3 dead letters discarded`, 2},
		{"no", "n\n", exitFailure, `nothing was done`, 1},
		{"an empty line", "\n", exitFailure, `nothing was done`, 1},
		{"the end of input", "\x04", exitFailure, `nothing was done`, 1},
		{"an interrupt", "", exitFailure, `interrupted; nothing was done`, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var asked []string
			server := fakeAdmin(t, &asked, answers)
			term := newTerminal(t, 80, 24)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			status := term.run(ctx, map[string]string{"HOOKFERRY_ADMIN": server}, func() {
				term.await(`^discard 3 dead letters\? \[y/N\] $`)
				if tt.answer == "" {
					interrupt()
				}
				term.typeKeys(tt.answer)
				term.await(tt.shown)
			}, "deliveries", "discard", "--all")
			if status != tt.status || len(asked) != tt.asked {
				t.Errorf("exit status %d and %d requests, want %d and %d", status, len(asked), tt.status, tt.asked)
			}
			if tt.answer == "" {
				term.typeKeys("\n") // lets the goroutine end that still reads the terminal
			}
		})
	}
}

func TestTerminalShowsProgressBar(t *testing.T) {
	lines := make(chan string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for line := range lines {
			io.WriteString(w, line+"\n")
			http.NewResponseController(w).Flush()
		}
	}))
	defer server.Close()
	term := newTerminal(t, 80, 24)
	status := term.run(t.Context(), map[string]string{"HOOKFERRY_ADMIN": server.URL}, func() {
		lines <- `{"done":1,"total":4}`
		// The command draws at most ten times a second. It may skip any one line, so the
		// server repeats the line until the terminal shows the bar.
		drawn := make(chan struct{})
		var sending sync.WaitGroup
		sending.Go(func() {
			tick := time.NewTicker(meterRedraw / 4)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					lines <- `{"done":2,"total":4}`
				case <-drawn:
					return
				}
			}
		})
		term.await(`\r\x1b\[K\[##########----------\]  50% retried 2 of 4, \S+/s`)
		close(drawn)
		sending.Wait()
		lines <- `{"done":4,"total":4,"ended":true}`
		close(lines)
		term.await(`\r\x1b\[K4 deliveries retried\r\n$`)
	}, "deliveries", "retry", "a", "b", "c", "d")
	if status != exitOK {
		t.Errorf("exit status %d, want %d", status, exitOK)
	}
}
