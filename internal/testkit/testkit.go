// Package testkit has what the tests of several packages need: waiting for something that
// happens in another process, child processes, ports, and programs that may be missing.
//
// A wait ends when what is waited for happens. Nothing here has a time limit of its own:
// the limit of the test binary (go test -timeout) is the only one, so that a busy machine
// makes a test slow and not red.
package testkit

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// Until waits until so returns true. It asks every few milliseconds, so it is for what
// happens outside of the test's process. Within a synctest bubble it waits in virtual
// time, and synctest.Wait is the better choice.
// It says what it waits for if the test binary's time limit comes near.
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

// deadline returns when a wait has to give up for its message to be seen: shortly before
// the time limit of the test binary. It is zero where there is none, and in a bubble,
// where Deadline panics because the limit is one of real time.
func deadline(t testing.TB) (limit time.Time) {
	defer func() { _ = recover() }()
	if d, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if at, ok := d.Deadline(); ok {
			return at.Add(-10 * time.Second)
		}
	}
	return time.Time{}
}

// Program returns the path of a program that is in PATH or is one of the given paths.
// Where it is missing it skips the test with a line that says what to install, as in
// "apt-get install postgresql". With CI=true it fails the test instead.
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

// Missing skips the test because of something that the machine does not have, or fails it
// with CI=true, where everything has to be there.
func Missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}
