//go:build unix

// Package pgtest runs PostgreSQL servers for tests.
package pgtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/testkit"
)

// ErrMissing is the error of Start if the programs of PostgreSQL are neither in PATH nor in
// the folder where Debian installs them.
var ErrMissing = errors.New("PostgreSQL is not installed: apt-get install postgresql")

// A Server is a PostgreSQL server that listens on a Unix socket in a folder of its own.
type Server struct {
	bin, dir string
	settings []string
	as       *syscall.Credential // user that runs the server; nil: the user of this process
}

// New starts a server for a test, and closes it when the test ends. If PostgreSQL is not
// installed, it skips the test, or fails it if CI=true.
func New(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := Start(settings...)
	if err == ErrMissing {
		testkit.Missing(t, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Start makes a database cluster and starts a server for it. Close stops the server. Each
// setting is a PostgreSQL setting such as "fsync=off".
func Start(settings ...string) (*Server, error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pgtest")
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, dir: dir, settings: settings}
	if os.Getuid() == 0 { // PostgreSQL refuses to run as root
		u, err := user.Lookup("postgres")
		if err != nil {
			return nil, fmt.Errorf("pgtest: PostgreSQL does not run as root: %w", err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		s.as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(dir, uid, gid); err != nil {
			return nil, err
		}
	}
	if err := s.run("initdb", "-D", filepath.Join(dir, "data"), "-U", "test", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	if err := s.Up(); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

// Standby starts a server that follows s, and is read-only until Promote. A test closes it when it ends.
func (s *Server) Standby(t testing.TB) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgtest")
	if err != nil {
		t.Fatal(err)
	}
	standby := &Server{bin: s.bin, dir: dir, settings: s.settings, as: s.as}
	if s.as != nil {
		err = os.Chown(dir, int(s.as.Uid), int(s.as.Gid))
	}
	if err == nil {
		err = standby.run("pg_basebackup", "-h", s.dir, "-U", "test", "-D", filepath.Join(dir, "data"), "-R", "-c", "fast")
	}
	if err == nil {
		err = standby.Up()
	}
	t.Cleanup(func() { standby.Close() })
	if err != nil {
		t.Fatal(err)
	}
	return standby
}

// Promote makes a standby writable.
func (s *Server) Promote() error {
	return s.run("pg_ctl", "promote", "-w", "-t", "100000", "-D", filepath.Join(s.dir, "data"))
}

// Dump writes what pg_dump prints of a schema to a file in Dir, and returns its name. The caller removes it.
func (s *Server) Dump(schema string) (name string, err error) {
	name = filepath.Join(s.dir, "dump")
	return name, s.run("pg_dump", "-h", s.dir, "-U", "test", "-n", schema, "-f", name, "postgres")
}

// Dir returns the folder of the socket, which is the host in URL.
func (s *Server) Dir() string { return s.dir }

// programs returns the folder with the programs of PostgreSQL.
func programs() (string, error) {
	if p, err := exec.LookPath("initdb"); err == nil {
		p, err := filepath.EvalSymlinks(p) // the other programs may not be in PATH
		return filepath.Dir(p), err
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		return "", ErrMissing
	}
	slices.Sort(found)
	return filepath.Dir(found[len(found)-1]), nil
}

// URL returns the connection string for clients.
func (s *Server) URL() string { return url(s.dir) }

// url returns the connection string for a server whose socket is in dir.
func url(dir string) string { return "host=" + dir + " user=test dbname=postgres" }

// Up starts the server and waits until it answers.
func (s *Server) Up() error {
	options := "-c listen_addresses='' -c unix_socket_directories='" + s.dir + "' -c max_connections=200"
	for _, setting := range s.settings {
		options += " -c " + setting
	}
	// The time limit is large because pg_ctl would otherwise give up after a minute.
	return s.run("pg_ctl", "start", "-w", "-t", "100000", "-D", filepath.Join(s.dir, "data"), "-l", filepath.Join(s.dir, "log"), "-o", options)
}

// Down stops the server at once, without a clean shutdown.
func (s *Server) Down() error {
	return s.run("pg_ctl", "stop", "-w", "-t", "100000", "-m", "immediate", "-D", filepath.Join(s.dir, "data"))
}

// Close stops the server and removes its files.
func (s *Server) Close() error {
	err := s.Down()
	return errors.Join(err, os.RemoveAll(s.dir))
}

// CPU returns the processor time that the server has used, or 0 on systems without /proc.
func (s *Server) CPU() time.Duration {
	ticks := 0
	for _, p := range s.processes() {
		ticks += p.ticks
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// Freeze suspends all processes of the server with SIGSTOP, until Thaw lets them
// continue. It needs /proc.
func (s *Server) Freeze() error { return s.signal(syscall.SIGSTOP) }

// Thaw lets the processes of the server continue.
func (s *Server) Thaw() error { return s.signal(syscall.SIGCONT) }

func (s *Server) signal(signal syscall.Signal) error {
	// After the first round the postmaster is suspended and starts no more processes.
	// The second round reaches the processes that the postmaster started during the first.
	for range 2 {
		ps := s.processes()
		if len(ps) == 0 {
			return errors.New("pgtest: the server has no processes")
		}
		for _, p := range ps {
			if err := syscall.Kill(p.id, signal); err != nil && err != syscall.ESRCH {
				return fmt.Errorf("pgtest: sending %v: %w", signal, err)
			}
		}
	}
	return nil
}

// A process is a process of the server. ticks is the processor time of the process and
// of its children that have ended, in hundredths of a second.
type process struct{ id, ticks int }

// processes returns the postmaster and its children, or nil on systems without /proc.
func (s *Server) processes() (ps []process) {
	pid, err := os.ReadFile(filepath.Join(s.dir, "data", "postmaster.pid"))
	if err != nil {
		return nil
	}
	postmaster, _, _ := strings.Cut(string(pid), "\n")
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // the process has ended
		}
		// After the name of the program, fields[0] is the state and fields[1] the parent.
		// fields[11:15] are the processor times of the process and of its children that
		// have ended.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		id := filepath.Base(filepath.Dir(name))
		if fields[1] != postmaster && id != postmaster {
			continue
		}
		var p process
		p.id, _ = strconv.Atoi(id)
		for _, f := range fields[11:15] {
			n, _ := strconv.Atoi(f)
			p.ticks += n
		}
		ps = append(ps, p)
	}
	return ps
}

func (s *Server) run(name string, args ...string) error {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	log, err := os.CreateTemp("", "pgtest")
	if err != nil {
		return err
	}
	defer os.Remove(log.Name())
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log // not pipes: the server would keep them open
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("pgtest: %s: %w\n%s", name, err, text)
	}
	return nil
}
