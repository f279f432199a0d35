// Package client_test has the soaks of package analytics that need another process: a collector, or
// a client that is killed.
package client_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/testkit"
)

// childOf is the environment variable that makes the test binary one of children.
const childOf = "CLIENT_SOAK_CHILD"

var children = map[string]func() error{
	"collect": collectChild,
	"track":   trackChild,
}

func TestMain(m *testing.M) {
	if child := children[os.Getenv(childOf)]; child != nil {
		fmt.Println(child()) // a child ends only with an error
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// start starts a child process, with settings in its environment.
func start(t *testing.T, child string, env ...string) *testkit.Child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childOf+"="+child), env...)
	return testkit.KillAtEnd(t, cmd)
}

// sums reports whether the counters of a client account for every message.
func sums(s analytics.Stats) bool {
	return s.Queued+s.Recovered == s.Delivered+s.Dropped+uint64(s.Pending)+uint64(s.Spooled)
}
