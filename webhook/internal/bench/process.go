package bench

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A Process is a process that a benchmark has started.
type Process struct {
	b   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Start starts a process of the test binary. env, as NAME=value, tells its
// TestMain what to do. Start returns the process, and the first line that it
// prints. The end of the benchmark or test ends the process.
func Start(b testing.TB, env string) (p *Process, line string) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	p = &Process{b, cmd, in, bufio.NewReader(out)}
	b.Cleanup(p.End)
	return p, p.Line()
}

// Say writes a line to the standard input of the process.
func (p *Process) Say(line string) {
	p.b.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		p.b.Fatal(err)
	}
}

// Line returns the next line that the process prints.
func (p *Process) Line() string {
	p.b.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.b.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// End closes the standard input of the process and waits until it has ended. It
// may be called again.
func (p *Process) End() {
	p.in.Close()
	if p.cmd.ProcessState == nil {
		p.cmd.Wait()
	}
}
