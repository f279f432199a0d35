//go:build unix

// Package pgtest runs PostgreSQL servers of a test's own.
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
	"time"
)

// A Server is a server that listens on a socket in a folder of its own.
type Server struct {
	bin, dir string
	settings []string
	as       *syscall.Credential // nil: this process's
}

// Start makes a database cluster and starts a server for it, which Close ends.
// Each setting is one of PostgreSQL's, as in "fsync=off".
//
// It needs the programs of PostgreSQL: in PATH, or where Debian installs them
// (apt-get install postgresql).
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
	if os.Getuid() == 0 { // as which PostgreSQL does not run
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

// programs returns the folder of PostgreSQL's programs.
func programs() (string, error) {
	if p, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(p), nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		return "", errors.New("pgtest: no initdb in PATH or /usr/lib/postgresql: install PostgreSQL (apt-get install postgresql)")
	}
	slices.Sort(found)
	return filepath.Dir(found[len(found)-1]), nil
}

// URL is what clients connect to.
func (s *Server) URL() string {
	return "host=" + s.dir + " user=test dbname=postgres"
}

// Up starts the server and waits until it answers.
func (s *Server) Up() error {
	options := "-c listen_addresses='' -c unix_socket_directories='" + s.dir + "' -c max_connections=200"
	for _, setting := range s.settings {
		options += " -c " + setting
	}
	return s.run("pg_ctl", "start", "-w", "-D", filepath.Join(s.dir, "data"), "-l", filepath.Join(s.dir, "log"), "-o", options)
}

// Down stops the server at once, as a loss of power to its process would.
func (s *Server) Down() error {
	return s.run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", filepath.Join(s.dir, "data"))
}

// Close stops the server and removes what it has left.
func (s *Server) Close() error {
	err := s.Down()
	return errors.Join(err, os.RemoveAll(s.dir))
}

// CPU returns the time that the server has had of the processors, 0 where there
// is no /proc.
func (s *Server) CPU() time.Duration {
	pid, err := os.ReadFile(filepath.Join(s.dir, "data", "postmaster.pid"))
	if err != nil {
		return 0
	}
	postmaster, _, _ := strings.Cut(string(pid), "\n")
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	ticks := 0
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// After the name of the program: state, parent; 14 to 17 of all, from 1, are times.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if fields[1] != postmaster && filepath.Base(filepath.Dir(name)) != postmaster {
			continue
		}
		for _, f := range fields[11:15] {
			n, _ := strconv.Atoi(f)
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
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
	cmd.Stdout, cmd.Stderr = log, log // not pipes, which the server would hold
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("pgtest: %s: %w\n%s", name, err, text)
	}
	return nil
}
