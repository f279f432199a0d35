//go:build unix

package pgqueue

import (
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook/internal/chaos"
)

// A cutter passes connections on to the server, and while it is on ends each of
// them after a few thousand bytes of answers: often when the server has done what
// it was asked, and before it is heard of.
type cutter struct {
	dir string
	on  atomic.Bool
	n   atomic.Int64 // connections that were cut
	// While gate is locked nothing passes, and nobody is told.
	gate sync.RWMutex
}

func newCutter(t *testing.T) *cutter {
	t.Helper()
	dir, err := os.MkdirTemp("", "cut") // a socket's path is to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	const socket = ".s.PGSQL.5432"
	ln, err := net.Listen("unix", filepath.Join(dir, socket))
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{dir: dir}
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(func() { ln.Close() })
	target := filepath.Join(strings.TrimPrefix(strings.Fields(server.URL())[0], "host="), socket)
	running.Go(func() {
		for {
			from, err := ln.Accept()
			if err != nil {
				return
			}
			running.Go(func() { c.pass(from, target) })
		}
	})
	return c
}

func (c *cutter) pass(from net.Conn, target string) {
	defer from.Close()
	to, err := net.Dial("unix", target)
	if err != nil {
		return
	}
	defer to.Close()
	done := make(chan struct{})
	go func() { // ends with the connections, which pass waits for
		io.Copy(gated{to, &c.gate}, from)
		to.Close()
		close(done)
	}()
	left := 500 + rand.IntN(4000)
	buf := make([]byte, 4096)
	for {
		n, err := to.Read(buf)
		if err != nil {
			break
		}
		if left -= n; left < 0 && c.on.Load() {
			c.n.Add(1)
			break
		}
		if _, err := (gated{from, &c.gate}).Write(buf[:n]); err != nil {
			break
		}
	}
	from.Close()
	<-done
}

// A gated writer waits while the gate is locked.
type gated struct {
	w    io.Writer
	gate *sync.RWMutex
}

func (g gated) Write(b []byte) (int, error) {
	g.gate.RLock()
	defer g.gate.RUnlock()
	return g.w.Write(b)
}

// Whatever answer of the server is lost: each delivery that was accepted ends once
// in the accounts, and nothing stays claimed in nobody's memory.
func TestCutConnections(t *testing.T) {
	c := newCutter(t)
	ctx := t.Context()
	p, err := pgxpool.New(ctx, "host="+c.dir+" user=test dbname=postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	q, err := Open(ctx, p, &Config{Schema: schemaOf(t.TempDir()), Claim: 5 * time.Second, Poll: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	chaos.Cut(t, q, c.on.Store)
	if c.n.Load() < 10 {
		t.Errorf("only %d connections were cut", c.n.Load())
	}
	t.Logf("%d connections were cut", c.n.Load())
}
