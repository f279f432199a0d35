//go:build unix

package pgqueue

import (
	"context"
	"fmt"
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

	"github.com/hookferry/analytics/webhook"
)

// A cutter passes connections on to the server, and while it is on ends each of
// them after a few thousand bytes of answers: often when the server has done what
// it was asked, and before it is heard of.
type cutter struct {
	dir string
	on  atomic.Bool
	n   atomic.Int64 // connections that were cut
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
		io.Copy(to, from)
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
		if _, err := from.Write(buf[:n]); err != nil {
			break
		}
	}
	from.Close()
	<-done
}

// Whatever answer of the server is lost: each delivery that was accepted ends once
// in the accounts, and nothing stays claimed in nobody's memory.
func TestCutConnections(t *testing.T) {
	c := newCutter(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
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
	c.on.Store(true)

	const puts, each = 150, 4
	var wg sync.WaitGroup
	for half := range 2 {
		wg.Go(func() {
			for i := range puts / 2 {
				ds := deliveries(fmt.Sprint("d", i%3), (half*puts+i)*each, each)
				for {
					_, err := q.Put(ctx, ds...)
					if err == nil {
						break
					}
					if ctx.Err() != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	ended := make(map[string]int) // by how often that was settled without an error
	buried := 0
	quiet := time.Now()
	for len(ended) < puts*each && ctx.Err() == nil {
		ds, _, err := q.Lease(ctx, webhook.LeaseRequest{Max: 10, Until: time.Now().Add(30 * time.Second)}, nil)
		if err != nil || len(ds) == 0 {
			select {
			case <-q.Wake():
			case <-time.After(10 * time.Millisecond):
			}
			// The last are not cut off, so that it comes to an end.
			c.on.Store(time.Since(quiet) < 3*time.Second)
			continue
		}
		quiet = time.Now()
		ss := make([]webhook.Settlement, len(ds))
		for i, d := range ds {
			ss[i] = webhook.Settlement{Verdict: webhook.Done, Delivery: d}
			switch {
			case d.Tries == 0 && rand.IntN(3) == 0:
				ss[i].Verdict = webhook.Retry
				ss[i].Delivery.Tries = 1
			case rand.IntN(3) == 0:
				ss[i].Verdict, ss[i].Reason, ss[i].At = webhook.Bury, webhook.ReasonExpired, time.Now()
			}
		}
		for q.Settle(ctx, ss...) != nil && ctx.Err() == nil {
		}
		for i := range ss {
			if ss[i].Verdict == webhook.Retry {
				continue
			}
			ended[ds[i].Destination+"/"+ds[i].ID]++
			if ss[i].Verdict == webhook.Bury {
				buried++
			}
		}
	}
	wg.Wait()
	c.on.Store(false)
	counts := webhook.Counts{Waiting: -1}
	for counts.Waiting != 0 && ctx.Err() == nil {
		if counts, err = q.Count(ctx); err == nil && counts.Waiting == 0 {
			break
		}
		select {
		case <-q.Wake():
		case <-time.After(50 * time.Millisecond):
		}
		for _, d := range leaseSome(q) {
			t.Errorf("%s/%s is handed out after its end", d.Destination, d.ID)
		}
	}
	if len(ended) != puts*each || counts.Waiting != 0 || counts.Dead != buried {
		t.Errorf("%d of %d ended; Count = %+v, want %d dead", len(ended), puts*each, counts, buried)
	}
	for id, n := range ended {
		if n > 1 {
			t.Errorf("%s ended %d times", id, n)
		}
	}
	if c.n.Load() < 10 {
		t.Errorf("only %d connections were cut", c.n.Load())
	}
	t.Logf("%d connections were cut", c.n.Load())
}

func leaseSome(q *Queue) []webhook.Delivery {
	ds, _, err := q.Lease(context.Background(), webhook.LeaseRequest{Max: 10, Until: time.Now().Add(time.Hour)}, nil)
	if err != nil {
		return nil
	}
	return ds
}
