package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/soakenv"
)

// startSuspended starts a command at the terminal, as a shell does. It suspends the command
// once the command has opened the file.
func (term *terminal) startSuspended(file string, args ...string) *exec.Cmd {
	term.t.Helper()
	cmd := exec.Command("hookferry", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = term.tty, term.tty, term.tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		term.t.Fatal(err)
	}
	term.t.Cleanup(func() { _ = cmd.Process.Kill() })
	for end := time.Now().Add(time.Minute); !hasOpen(cmd.Process.Pid, file); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			term.t.Fatalf("%q has not opened %s within a minute; the terminal shows %q", args, file, term.shown.String())
		}
	}
	term.signal(cmd, syscall.SIGSTOP)
	return cmd
}

func (term *terminal) signal(cmd *exec.Cmd, s syscall.Signal) {
	if err := cmd.Process.Signal(s); err != nil {
		term.t.Error(err)
	}
}

func hasOpen(pid int, file string) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == file {
			return true
		}
	}
	return false
}

// TestTerminalStore interrupts the store commands from the keyboard: the store stays as it
// was. Without an interrupt, the commands show their progress. The store is so large that a
// command notices the interrupt before it has read everything.
func TestTerminalStore(t *testing.T) {
	soakenv.Only(t, "terminal")
	data, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	folder := makeStore(t, data, 8_000)
	before := filesOf(t, folder)
	segments, err := filepath.Glob(filepath.Join(folder, "*.log"))
	if err != nil || len(segments) < 2 {
		t.Fatal(segments, err)
	}
	file := segments[len(segments)-1] // the commands read the last segment first
	rescued := filepath.Join(t.TempDir(), "rescued")
	for _, tt := range []struct {
		args        []string
		interrupted string
		bar         string
		ended       string
	}{
		{[]string{"check"}, `hookferry store check: interrupted\r\n$`, `% read [\d.]+ MB of [\d.]+ MB, `, `\r\x1b\[Kwaiting: 8,000, `},
		{[]string{"rescue", "--to", rescued}, `hookferry store rescue: interrupted; there is no new store, and the old one is as it was\r\n$`,
			`% read [\d.]+ MB of [\d.]+ MB, `, `\r\x1b\[Kwaiting: 8,000, .*\r\nTo use it: `},
	} {
		args := append([]string{"store", tt.args[0], "--data", data}, tt.args[1:]...)
		t.Run(tt.args[0]+" interrupted", func(t *testing.T) {
			term := newTerminal(t, 80, 24)
			cmd := term.startSuspended(file, args...)
			term.typeKeys("\x03")
			term.signal(cmd, syscall.SIGCONT)
			_ = cmd.Wait()
			if status := cmd.ProcessState.ExitCode(); status != exitFailure {
				t.Errorf("exit status %d, want %d", status, exitFailure)
			}
			term.await(tt.interrupted)
			if now := filesOf(t, folder); !slices.Equal(now, before) {
				t.Errorf("the folder has the files %q, want %q as before", now, before)
			}
			if _, err := os.Stat(rescued); tt.args[0] == "rescue" && err == nil {
				t.Errorf("the interrupted rescue left %s behind", rescued)
			}
		})
		t.Run(tt.args[0], func(t *testing.T) {
			term := newTerminal(t, 80, 24)
			cmd := term.startSuspended(file, args...)
			// The command draws its bar once its work has taken longer than meterRedraw.
			timer := time.NewTimer(2 * meterRedraw)
			defer timer.Stop()
			<-timer.C
			term.signal(cmd, syscall.SIGCONT)
			term.await(`\r\x1b\[K\[#*-*\] +\d+` + tt.bar)
			term.await(`(?s)` + tt.ended)
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}
