// Package filestore_test has the soaks of webhook/filequeue, the durable store in a folder. They
// run it in processes that are killed, on full disks, and behind forwarders under load. They use
// only its exported names. Tests of its internals are in its own package.
package filestore_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// openStore opens the store under test in dir.
func openStore(dir string, c filequeue.Config) (*filequeue.Store, error) {
	return filequeue.Open(storePath(dir), c)
}

func storePath(dir string) string { return filepath.Join(dir, "store") }

// storeSize returns the size of the files of a store, in bytes. The store may be in use.
func storeSize(dir string) (n int64) {
	files, _ := os.ReadDir(storePath(dir))
	for _, f := range files {
		if info, err := f.Info(); err == nil { // otherwise the store has removed the file
			n += info.Size()
		}
	}
	return n
}

// copyStore copies a store to another folder. No process may write the store meanwhile.
func copyStore(to, from string) error { return os.CopyFS(storePath(to), os.DirFS(storePath(from))) }

// checkStore reads all of a store that no process has open. It returns an error if anything is
// missing, or if the files are larger than the documentation of Config.MaxBytes promises.
func checkStore(dir string) (filequeue.Report, error) {
	r, err := filequeue.Check(context.Background(), storePath(dir), nil)
	if err == nil && r.Bytes > 2*r.Needed+50<<20 {
		err = fmt.Errorf("the segments have %d bytes, want at most 50 MB more than twice the %d needed ones", r.Bytes, r.Needed)
	}
	return r, err
}

// put puts deliveries, and returns how many were stored.
func put(ctx context.Context, s webhook.Store, ds ...webhook.Delivery) (n int, err error) {
	ps, out := make([]store.Put, len(ds)), make([]store.Result, len(ds))
	for i := range ds {
		ps[i].Delivery = ds[i]
	}
	err = s.Put(ctx, ps, out)
	for _, r := range out {
		if r.Stored && err == nil {
			n++
		}
	}
	return n, err
}

// fetch claims up to max due deliveries, of all destinations.
func fetch(ctx context.Context, s webhook.Store, max int) (ds []webhook.Delivery, err error) {
	for h, err := range s.Heads(ctx, true) {
		if err != nil {
			return ds, err
		}
		for _, w := range []store.Want{{Destination: h.Destination, Next: h.Fresh}, {Destination: h.Destination, Next: h.Retry, Retries: true}} {
			if w.Max = max - len(ds); w.Max == 0 || w.Next.IsZero() || w.Next.After(s.Now()) {
				continue
			}
			if ds, err = s.Fetch(ctx, []store.Want{w}, 1<<40, ds); err != nil {
				return ds, err
			}
		}
	}
	return ds, nil
}

// settle settles deliveries, all with the same verdict.
func settle(ctx context.Context, s webhook.Store, v store.Verdict, ds ...webhook.Delivery) error {
	ss := make([]store.Settlement, len(ds))
	for i := range ds {
		ss[i] = store.Settlement{Verdict: v, Delivery: ds[i], At: s.Now()}
	}
	_, err := s.Settle(ctx, ss)
	return err
}

// children has what the test binary does in the processes that command starts.
var children = map[string]func(settings []byte) error{
	"kill":  killChild,
	"sync":  syncChild,
	"chaos": chaosChild,
}

const childName, childSettings = "HOOKFERRY_CHILD", "HOOKFERRY_CHILD_SETTINGS"

func TestMain(m *testing.M) {
	if child := children[os.Getenv(childName)]; child != nil {
		if err := child([]byte(os.Getenv(childSettings))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// command returns a command that runs the test binary as one of children.
func command(name string, settings any) *exec.Cmd {
	b, err := json.Marshal(settings)
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childName+"="+name, childSettings+"="+string(b))
	cmd.Stderr = os.Stderr
	return cmd
}

// runUntil runs cmd, and calls hear with each line that it prints. When hear returns true, runUntil
// kills the process, and then calls hear with the remaining lines.
func runUntil(cmd *exec.Cmd, hear func(n int, line string) bool) error {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		if hear(n, lines.Text()) {
			cmd.Process.Kill()
		}
	}
	return cmd.Wait()
}

// A dice is a random source for several goroutines.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func newDice(seed uint64) *dice { return &dice{r: rand.New(rand.NewPCG(seed, 0))} }

func (d *dice) IntN(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

// below returns a random time that is less than t.
func (d *dice) below(t time.Duration) time.Duration { return time.Duration(d.IntN(int(t))) }
