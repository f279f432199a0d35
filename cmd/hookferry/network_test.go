package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/memnet"
)

// inMemory calls do in a synctest bubble, with the URL of a server on a network in memory, and
// with a process that uses that network. With a nil handler, nothing listens at the URL.
func inMemory(t *testing.T, handle http.Handler, do func(t *testing.T, url string, p process)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var network memnet.Network
		listener, err := network.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handle}}
		server.Start()
		defer server.Close()
		if handle == nil {
			listener.Close()
		}
		do(t, server.URL, process{getenv: func(string) string { return "" }, stdin: strings.NewReader(""), dial: network.DialContext})
	})
}

// hangs is a server that does not answer.
var hangs = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })

// TestCommandsGiveUp shows that commands give up on a server that is down, does not answer, or
// is busy.
func TestCommandsGiveUp(t *testing.T) {
	send := []string{"send", "track", "--write-key", "k", "--user", "u1", "--event", "e", "--endpoint", "$server", "--timeout", "5s"}
	for _, tt := range []struct {
		name   string
		handle http.Handler // nil if nothing listens
		args   []string
		status int
		stderr string
		took   time.Duration
	}{
		{"send to no server", nil, send, exitFailure,
			`^(hookferry send: dial tcp.*; trying again\n)+hookferry send track: not accepted within 5s\n$`, 5 * time.Second},
		{"send to a server that is busy", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }), send, exitFailure,
			`^(hookferry send: the server answered 429 Too Many Requests; trying again\n)+hookferry send track: not accepted within 5s\n$`, 5 * time.Second},
		{"send to a server with control characters in its status", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // else the client may find the connection closed while it writes
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, err = io.WriteString(c, "HTTP/1.1 503 a\x1b]0;b\x07\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			}
			if err = errors.Join(err, c.Close()); err != nil {
				panic(err)
			}
		}), send, exitFailure, `^(hookferry send: the server answered 503 a\\x1b\]0;b\\a; trying again\n)+hookferry send track: not accepted within 5s\n$`, 5 * time.Second},
		// The server may read its whole store to count.
		{"a count that takes a minute", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Minute)
			io.WriteString(w, `{"count": 0}`)
		}), []string{"deliveries", "discard", "--all", "--yes", "--admin", "$server"}, exitNothing, `^hookferry deliveries discard: no dead letter is selected\n$`, time.Minute},
		{"health", hangs, []string{"health", "--admin", "$server"}, exitFailure, `^hookferry health: no answer from 127.0.0.1:\d+ in time\n$`, 3 * time.Second},
		{"health with a time", hangs, []string{"health", "--admin", "$server", "--timeout", "50ms"}, exitFailure, `in time\n$`, 50 * time.Millisecond},
		// Completion gives up after a second, as somebody waits at the keyboard.
		{"completion", hangs, []string{"__complete", "pause", "--admin", "$server", ""}, exitOK, `NoFileComp\n$`, time.Second},
		{"completion without a server", nil, []string{"__complete", "pause", "--admin", "$server", ""}, exitOK, `NoFileComp\n$`, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inMemory(t, tt.handle, func(t *testing.T, url string, p process) {
				var out, errs bytes.Buffer
				p.stdout, p.stderr = &out, &errs
				args := slices.Clone(tt.args)
				args[slices.Index(args, "$server")] = url
				began := time.Now()
				status := run(t.Context(), args, p)
				if took := time.Since(began); status != tt.status || strings.Trim(out.String(), ":4\n") != "" || !regexp.MustCompile(tt.stderr).MatchString(errs.String()) || took != tt.took {
					t.Errorf("exit status %d after %v, printed %q and %q; want %d after %v, nothing and %s", status, took, &out, &errs, tt.status, tt.took, tt.stderr)
				}
			})
		})
	}
}

// An idleContext returns its deadline once all other goroutines of the bubble are idle.
type idleContext struct{ context.Context }

func (c idleContext) Deadline() (time.Time, bool) {
	synctest.Wait()
	return c.Context.Deadline()
}

// TestSendReportsImmediateRefusal shows that send reports a call as refused, and not as
// accepted, if the server refuses it before send begins to wait.
func TestSendReportsImmediateRefusal(t *testing.T) {
	refuse := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	inMemory(t, refuse, func(t *testing.T, url string, p process) {
		var out, errs bytes.Buffer
		p.stdout, p.stderr = &out, &errs
		// The command asks the context for its deadline after it has queued the call and before
		// it shuts the client down. So the refusal comes before the shutdown.
		status := run(idleContext{t.Context()}, []string{"send", "track", "--write-key", "k", "--user", "u1", "--event", "e", "--endpoint", url}, p)
		const want = "hookferry send track: not accepted: the server does not know the write key; see --write-key and --data\n"
		if status != exitFailure || out.Len() > 0 || errs.String() != want {
			t.Errorf("exit status %d, printed %q and %q, want %d, nothing and %q", status, &out, &errs, exitFailure, want)
		}
	})
}
