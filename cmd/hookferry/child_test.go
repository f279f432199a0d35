package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets the test binary be run as hookferry: under that name it calls
// main. So the tests start real processes, with real signals.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"hookferry": main, "slow": slow, "null": null})
}

// slow is a receiver that takes as long to answer as its argument says.
func slow() {
	pause, err := time.ParseDuration(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println("begun")
		// Only once the body is read is it noticed when the sender leaves.
		io.Copy(io.Discard, r.Body)
		select {
		case <-time.After(pause):
			fmt.Println("answered")
		case <-r.Context().Done():
		}
	}))
	fmt.Println("listening on", server.URL)
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	<-interrupted.Done()
}

// patience bounds every wait for a child process, on a machine that may be busy with the tests of others.
const patience = time.Minute

// A child is a process that a test started, with all it has printed.
type child struct {
	cmd    *exec.Cmd
	out    output
	exited chan struct{} // closed once status is set
	status int           // -1: ended by a signal
}

// startChild starts a program. Variables in env hide earlier ones of the same
// name.
func startChild(dir string, env []string, name string, args ...string) (*child, error) {
	c := &child{cmd: exec.Command(name, args...), exited: make(chan struct{})}
	c.cmd.Dir, c.cmd.Env = dir, env
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		c.cmd.Wait()
		c.status = c.cmd.ProcessState.ExitCode()
		close(c.exited)
	}()
	return c, nil
}

// await waits until the child has printed what matches re, and returns the
// last group of it.
func (c *child) await(re *regexp.Regexp) (string, error) {
	timeout := time.After(patience)
	for {
		text, more := c.out.read()
		if m := re.FindStringSubmatch(text); m != nil {
			return m[len(m)-1], nil
		}
		select {
		case <-more:
		case <-timeout:
			return "", fmt.Errorf("waited %v for %q; printed so far:\n%s", patience, re, text)
		case <-c.exited:
			// Wait returned, so all output is there.
			text, _ := c.out.read()
			if m := re.FindStringSubmatch(text); m != nil {
				return m[len(m)-1], nil
			}
			return "", fmt.Errorf("exited with status %d without printing %q:\n%s", c.status, re, text)
		}
	}
}

// stop sends a signal and returns the exit status. Windows has no signals to
// send: there it kills the process, and the status is 0.
func (c *child) stop(signal os.Signal) (int, error) {
	if runtime.GOOS == "windows" {
		c.kill()
		return 0, nil
	}
	if err := c.cmd.Process.Signal(signal); err != nil {
		return 0, err
	}
	select {
	case <-c.exited:
		return c.status, nil
	case <-time.After(patience):
		text, _ := c.out.read()
		return 0, fmt.Errorf("still running %v after signal %v; printed:\n%s", patience, signal, text)
	}
}

// kill ends the child, if it still runs, and waits for that.
func (c *child) kill() {
	c.cmd.Process.Kill()
	<-c.exited
}

// An output collects what a process prints.
type output struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{} // closed at the next write; nil if nobody waits
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more != nil {
		close(o.more)
		o.more = nil
	}
	return o.buf.Write(b)
}

// read returns what there is, and a channel that is closed when there is more.
func (o *output) read() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more == nil {
		o.more = make(chan struct{})
	}
	return o.buf.String(), o.more
}
