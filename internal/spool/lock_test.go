package spool_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/hookferry/analytics/internal/spool"
	"github.com/hookferry/analytics/internal/testkit"
)

const childFolder = "SPOOL_TEST_FOLDER"

// child returns a command that runs the test binary as a child process on a folder. kind is a key
// of children.
func child(kind, path string, env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childOf+"="+kind, childFolder+"="+path)
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// lockChild is the child process "lock". It opens a folder and keeps it open until it is killed.
func lockChild() error {
	if _, _, err := spool.Open(os.Getenv(childFolder), small()); err != nil {
		return err
	}
	fmt.Println("open")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func TestOpenReturnsErrLockedForAnOpenFolder(t *testing.T) {
	path := t.TempDir()
	refused := func(holder string) {
		t.Helper()
		_, _, err := spool.Open(path, small())
		if !errors.Is(err, spool.ErrLocked) || !strings.Contains(err.Error(), path) {
			t.Errorf("Open while %s has the folder open = %v, want ErrLocked and the folder's name", holder, err)
		}
	}
	d, _ := open(t, path, small())
	newSegment(t, d, "1")
	refused("this process")
	if out, err := child("lock", path).Output(); err == nil || !strings.Contains(string(out), spool.ErrLocked.Error()) {
		t.Errorf("Open in another process = %q, %v, want ErrLocked", out, err)
	}
	closeDir(t, d)

	cmd := child("lock", path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	other := testkit.KillAtEnd(t, cmd)
	if _, err := other.Await(regexp.MustCompile("open\n")); err != nil {
		t.Fatal(err)
	}
	refused("another process")
	other.Kill()
	_, backlog := open(t, path, small())
	equal(t, "segments after the other process was killed", len(backlog), 1)
}
