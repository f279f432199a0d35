// Package testkit has helpers for the tests of several packages: waiting for an event in
// another process, child processes, ports, and programs that may be missing.
//
// Its waits have no time limit of their own. The only limit is that of the test binary (go
// test -timeout). So a busy machine makes a test slow, but does not make it fail.
package testkit

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// Must returns v, and panics if err is not nil.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Until waits for a condition. It calls the function so every few milliseconds, until that
// returns true. Use Until for events outside the test's process. Within a synctest bubble
// Until waits in virtual time, but synctest.Wait is the better choice there. If the time
// limit of the test binary is near, Until fails the test. The string want describes the event.
func Until(t testing.TB, want string, so func() bool) {
	t.Helper()
	limit := deadline(t)
	for !so() {
		if !limit.IsZero() && time.Now().After(limit) {
			t.Fatalf("waited until the end of the test's time: %s", want)
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("the test ended: %s", want)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// deadline returns when a wait must give up so that its message is still printed: shortly
// before the time limit of the test binary. It returns the zero time if there is no limit,
// and in a synctest bubble. There, the test's Deadline method panics, because the limit is
// in real time.
func deadline(t testing.TB) (limit time.Time) {
	defer func() { _ = recover() }()
	if d, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if at, ok := d.Deadline(); ok {
			return at.Add(-10 * time.Second)
		}
	}
	return time.Time{}
}

// Program returns the path of a program that is in PATH or is one of the given paths. If
// the program is missing, it skips the test with a line that contains the argument install,
// such as "apt-get install postgresql". If CI=true, it fails the test instead.
func Program(t testing.TB, name, install string, paths ...string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return path
		}
	}
	Missing(t, name+" is not installed: "+install)
	return ""
}

// Missing skips the test because the machine lacks something. If CI=true, it fails the
// test, because such a machine must have everything.
func Missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}
