//go:build unix

package pgtest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hookferry/analytics/internal/testkit"
)

// Pool starts a PgBouncer in front of the server, until the test ends. It returns the
// connection string for clients. PgBouncer may run each transaction of a client on a
// different connection to the server. If PgBouncer is not installed, Pool skips the
// test, or fails it if CI=true.
func (s *Server) Pool(t testing.TB) (connect string) {
	t.Helper()
	program := testkit.Program(t, "pgbouncer", "apt-get install pgbouncer", "/usr/sbin/pgbouncer")
	dir, err := os.MkdirTemp("", "pgtest") // the path from t.TempDir would be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "pgbouncer.ini")
	err = os.WriteFile(file, fmt.Appendf(nil, `[databases]
* = host=%s user=test
[pgbouncer]
unix_socket_dir = %s
listen_port = 5432
auth_type = any
pool_mode = transaction
default_pool_size = 20
`, s.dir, dir), 0o644)
	if err == nil && s.as != nil {
		err = os.Chown(dir, int(s.as.Uid), int(s.as.Gid))
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, file)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	bouncer := testkit.KillAtEnd(t, cmd)
	testkit.Until(t, "PgBouncer answers", func() bool {
		select {
		case <-bouncer.Exited():
			t.Fatalf("PgBouncer has ended:\n%s", bouncer.Output())
		default:
		}
		conn, err := net.Dial("unix", filepath.Join(dir, ".s.PGSQL.5432"))
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return url(dir)
}
