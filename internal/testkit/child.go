package testkit

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"sync"
	"testing"
)

// A Child is a process that a test has started, with all its output so far.
type Child struct {
	Cmd *exec.Cmd

	out    Output
	exited chan struct{} // closed after status is set
	status int           // exit status; -1 if a signal ended the process
}

// StartChild starts cmd and collects its output on both streams. The caller must call Stop,
// Kill or Exit, which wait for the end of the child. The end of the test does not kill the
// child; see KillAtEnd.
func StartChild(cmd *exec.Cmd) (*Child, error) {
	c := &Child{Cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &c.out, &c.out
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the process
		cmd.Wait()
		c.status = cmd.ProcessState.ExitCode()
		close(c.exited)
	}()
	return c, nil
}

// KillAtEnd starts cmd as StartChild does, and kills it when the test ends.
func KillAtEnd(t testing.TB, cmd *exec.Cmd) *Child {
	t.Helper()
	c, err := StartChild(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	return c
}

// Await waits until the output of the child matches re, and returns the text of the last
// capture group of the first match. If the child exits before that, Await returns an
// error.
func (c *Child) Await(re *regexp.Regexp) (string, error) {
	if found, ok := c.out.Await(re, c.exited); ok {
		return found, nil
	}
	return "", fmt.Errorf("%s exited with status %d and did not print %q:\n%s", c.Cmd.Path, c.status, re, c.out.String())
}

// Output returns the output of the child so far.
func (c *Child) Output() string { return c.out.String() }

// Stop sends a signal and waits for the end of the child. It returns the exit status, or -1
// if a signal ended the child. Windows has no such signals. There Stop kills the child and
// returns 0.
func (c *Child) Stop(signal os.Signal) (int, error) {
	if runtime.GOOS == "windows" {
		c.Kill()
		return 0, nil
	}
	if err := c.Cmd.Process.Signal(signal); err != nil {
		return 0, err
	}
	return c.Exit(), nil
}

// Exit waits for the end of the child. It returns the exit status, or -1 if a signal ended
// the child.
func (c *Child) Exit() int {
	<-c.exited
	return c.status
}

// Exited returns a channel that is closed when the child has ended.
func (c *Child) Exited() <-chan struct{} { return c.exited }

// Kill kills the child if it is still running, and waits for its end.
func (c *Child) Kill() {
	c.Cmd.Process.Kill()
	<-c.exited
}

// An Output collects all bytes written to it. Its zero value is ready to use. It may be
// used concurrently.
type Output struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{} // closed at the next write; nil if nobody waits
}

// Write implements io.Writer.
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more != nil {
		close(o.more)
		o.more = nil
	}
	return o.buf.Write(b)
}

// String returns everything written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// Await waits until the text written so far matches re, and returns the text of the last
// capture group of the first match. If ended closes before that, it returns false.
func (o *Output) Await(re *regexp.Regexp, ended <-chan struct{}) (string, bool) {
	for last := false; ; {
		o.mu.Lock()
		text := o.buf.String()
		if o.more == nil {
			o.more = make(chan struct{})
		}
		more := o.more
		o.mu.Unlock()
		if m := re.FindStringSubmatch(text); m != nil {
			return m[len(m)-1], true
		}
		if last {
			return "", false
		}
		select {
		case <-more:
		case <-ended:
			last = true // check the complete text once more
		}
	}
}
