//go:build unix

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// A Pooler is a PgBouncer before a Server, which gives each transaction a
// connection of its own.
type Pooler struct {
	dir string
	cmd *exec.Cmd
}

// Pool starts a PgBouncer (apt-get install pgbouncer), which Close ends.
func (s *Server) Pool(ctx context.Context) (*Pooler, error) {
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer" // not in everybody's PATH on Debian
	}
	dir, err := os.MkdirTemp("", "pgtest")
	if err != nil {
		return nil, err
	}
	settings := fmt.Sprintf(`[databases]
postgres = host=%s user=test dbname=postgres
[pgbouncer]
unix_socket_dir = %s
listen_port = 5432
auth_type = any
pool_mode = transaction
default_pool_size = 20
logfile = %s/log
`, s.dir, dir, dir)
	file := filepath.Join(dir, "pgbouncer.ini")
	err = os.WriteFile(file, []byte(settings), 0o644)
	if err == nil && s.as != nil {
		err = os.Chown(dir, int(s.as.Uid), int(s.as.Gid))
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	p := &Pooler{dir, exec.Command(program, "-q", file)}
	p.cmd.Dir = dir
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("pgtest: %w", err), os.RemoveAll(dir))
	}
	for {
		conn, err := net.Dial("unix", filepath.Join(dir, ".s.PGSQL.5432"))
		if err == nil {
			conn.Close()
			return p, nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			return nil, errors.Join(fmt.Errorf("pgtest: pgbouncer does not answer: %w\n%s", err, log), p.Close())
		}
	}
}

// URL is what clients connect to.
func (p *Pooler) URL() string { return "host=" + p.dir + " user=test dbname=postgres" }

// Close stops the pooler and removes what it has left.
func (p *Pooler) Close() error {
	err := p.cmd.Process.Kill()
	p.cmd.Wait() // killed
	return errors.Join(err, os.RemoveAll(p.dir))
}
