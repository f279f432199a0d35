package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
)

// TestScripts runs the scripts in testdata/script, one for each feature. Besides the commands
// of testscript, the scripts have these:
//
//	start NAME REGEXP [VAR=VALUE...] PROGRAM [ARG...]
//		starts a program and waits until its output matches REGEXP; the group
//		of the match becomes the variable NAME
//	await NAME REGEXP
//		waits until the output of the program matches REGEXP
//	signal NAME, hangup NAME
//		sends SIGINT or SIGHUP
//	interrupt NAME, terminate NAME
//		sends SIGINT or SIGTERM and waits for exit status 0, with ! for another
//		status; the output of the program is then in the file NAME.out
//	post STATUS URL FILE [SIGNATURE]
//		posts the file without its last newline, and expects the status STATUS
//	address NAME
//		sets the variable NAME to an address that nothing listens on
//
// The condition [missing:PROGRAM] holds if the program is not in PATH. With CI=true a
// missing program is an error.
//
// The program "hang" is a receiver that does not answer.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			// The scripts run in parallel, so no server may use the default address of the
			// admin API. The long timeout keeps send from giving up on a busy machine.
			e.Vars = append(e.Vars, "HOOKFERRY_ADMIN_LISTEN=off", "HOOKFERRY_TIMEOUT=24h")
			s := &script{env: e.Vars, dir: e.WorkDir, address: func() string { return freeAddress(t) }, children: map[string]*testkit.Child{}}
			e.Values[scriptKey{}] = s
			e.Defer(func() {
				for _, c := range s.children {
					c.Kill()
				}
			})
			return nil
		},
		Condition: func(condition string) (bool, error) {
			name, ok := strings.CutPrefix(condition, "missing:")
			if !ok {
				return false, fmt.Errorf("there is no condition %q", condition)
			}
			_, err := exec.LookPath(name)
			if err != nil && os.Getenv("CI") == "true" {
				return true, err
			}
			return err != nil, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"start":     cmdStart,
			"await":     cmdAwait,
			"signal":    func(ts *testscript.TestScript, neg bool, args []string) { cmdSignal(ts, neg, args, os.Interrupt) },
			"hangup":    func(ts *testscript.TestScript, neg bool, args []string) { cmdSignal(ts, neg, args, syscall.SIGHUP) },
			"interrupt": func(ts *testscript.TestScript, neg bool, args []string) { cmdStop(ts, neg, args, os.Interrupt) },
			"terminate": func(ts *testscript.TestScript, neg bool, args []string) { cmdStop(ts, neg, args, syscall.SIGTERM) },
			"post":      cmdPost,
			"address":   cmdAddress,
		},
	})
}

type script struct {
	env      []string
	dir      string
	address  func() string // returns an address that nothing listens on
	children map[string]*testkit.Child
}

type scriptKey struct{}

func (s *script) child(ts *testscript.TestScript, name string) *testkit.Child {
	c := s.children[name]
	if c == nil {
		ts.Fatalf("no program %q was started", name)
	}
	return c
}

func cmdStart(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: start NAME REGEXP [VAR=VALUE...] PROGRAM [ARG...]")
	}
	s := ts.Value(scriptKey{}).(*script)
	name, re := args[0], regexp.MustCompile(args[1])
	args = args[2:]
	env := append([]string(nil), s.env...)
	for len(args) > 1 && strings.Contains(args[0], "=") {
		env = append(env, args[0])
		args = args[1:]
	}
	if old := s.children[name]; old != nil {
		old.Kill()
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env = s.dir, env
	c, err := testkit.StartChild(cmd)
	ts.Check(err)
	s.children[name] = c
	found, err := c.Await(re)
	ts.Check(err)
	ts.Setenv(name, found)
}

func cmdAwait(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: await NAME REGEXP")
	}
	s := ts.Value(scriptKey{}).(*script)
	_, err := s.child(ts, args[0]).Await(regexp.MustCompile(args[1]))
	ts.Check(err)
}

func cmdSignal(ts *testscript.TestScript, neg bool, args []string, signal os.Signal) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: signal|hangup NAME")
	}
	s := ts.Value(scriptKey{}).(*script)
	ts.Check(s.child(ts, args[0]).Cmd.Process.Signal(signal))
}

func cmdStop(ts *testscript.TestScript, neg bool, args []string, signal os.Signal) {
	if len(args) != 1 {
		ts.Fatalf("usage: [!] interrupt|terminate NAME")
	}
	s := ts.Value(scriptKey{}).(*script)
	c := s.child(ts, args[0])
	status, err := c.Stop(signal)
	ts.Check(err)
	text := c.Output()
	ts.Check(os.WriteFile(filepath.Join(s.dir, args[0]+".out"), []byte(text), 0o600))
	if (status == 0) == neg {
		ts.Fatalf("%s: exit status %d, want another; printed:\n%s", args[0], status, text)
	}
}

func cmdPost(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 || len(args) > 4 {
		ts.Fatalf("usage: post STATUS URL FILE [SIGNATURE]")
	}
	body := strings.TrimSuffix(ts.ReadFile(args[2]), "\n")
	r, err := http.NewRequest(http.MethodPost, args[1], strings.NewReader(body))
	ts.Check(err)
	if len(args) > 3 {
		r.Header.Set(signature.Header, args[3])
	}
	answer, err := http.DefaultClient.Do(r)
	ts.Check(err)
	answer.Body.Close()
	if got := strconv.Itoa(answer.StatusCode); got != args[0] {
		ts.Fatalf("%s answered %s, want %s", args[1], got, args[0])
	}
}

func cmdAddress(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: address NAME")
	}
	ts.Setenv(args[0], ts.Value(scriptKey{}).(*script).address())
}
