package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hookferry/analytics/internal/testkit"
)

// TestMain lets the test binary run as hookferry: under that name it calls main. So the tests
// start real processes, with real signals.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"hookferry": main, "hang": hang})
}

// hang is a receiver that does not answer.
func hang() {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println("begun")
		// net/http notices that the sender is gone only after the body has been read.
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	fmt.Println("listening on", server.URL)
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	<-interrupted
}

// start starts a program in a folder. It waits until the output of the program matches
// printed, and returns the last group of the match. Variables in env win over those of the
// test process.
func start(t *testing.T, dir string, env []string, printed, name string, args ...string) (c *testkit.Child, found string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	c = testkit.KillAtEnd(t, cmd)
	return c, await(t, c, printed)
}

func await(t *testing.T, c *testkit.Child, printed string) string {
	t.Helper()
	found, err := c.Await(regexp.MustCompile(printed))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// stop interrupts a program, which must end with status 0.
func stop(t *testing.T, c *testkit.Child) {
	t.Helper()
	if status, err := c.Stop(os.Interrupt); err != nil || status != 0 {
		t.Fatalf("the program ended with status %d, %v, want 0; printed:\n%s", status, err, c.Output())
	}
}

// freeAddress returns an address that nothing listens on.
func freeAddress(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", testkit.Port(t))
}
