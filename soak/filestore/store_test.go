// Package filestore_test has the soaks of the durable store in a folder: of what it does
// in processes that are killed, on full disks, and behind forwarders under load. They see
// what a program sees of the store, and nothing of its insides. Those are in its package.
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
)

// openStore opens the store under test, in a folder.
func openStore(dir string, c filequeue.Config) (*filequeue.Store, error) {
	return filequeue.Open(storePath(dir), c)
}

func storePath(dir string) string { return filepath.Join(dir, "store") }

// storeSize returns the bytes of the files of a store that may be in use.
func storeSize(dir string) (n int64) {
	files, _ := os.ReadDir(storePath(dir))
	for _, f := range files {
		if info, err := f.Info(); err == nil { // else it was removed since
			n += info.Size()
		}
	}
	return n
}

// copyStore copies a store that is not being written from a folder to another one.
func copyStore(to, from string) error { return os.CopyFS(storePath(to), os.DirFS(storePath(from))) }

// checkStore reads all of a store that nobody has open. It returns an error if anything is missing, or
// the files are larger than Config.MaxBytes says.
func checkStore(dir string) (filequeue.Report, error) {
	r, err := filequeue.Check(storePath(dir))
	if err == nil && r.Bytes > 2*r.Needed+50<<20 {
		err = fmt.Errorf("the segments have %d bytes, %d of which are needed", r.Bytes, r.Needed)
	}
	return r, err
}

// put stores deliveries, and returns how many of them are new.
func put(ctx context.Context, s webhook.Store, ds ...webhook.Delivery) (n int, err error) {
	ps, out := make([]webhook.Put, len(ds)), make([]webhook.Result, len(ds))
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

// fetch claims up to max deliveries that are due, of all destinations.
func fetch(ctx context.Context, s webhook.Store, max int) (ds []webhook.Delivery, err error) {
	for h, err := range s.Heads(ctx, true) {
		if err != nil {
			return ds, err
		}
		for _, w := range []webhook.Want{{Destination: h.Destination, Next: h.Fresh}, {Destination: h.Destination, Next: h.Retry, Retries: true}} {
			if w.Max = max - len(ds); w.Max == 0 || w.Next.IsZero() || w.Next.After(s.Now()) {
				continue
			}
			if ds, err = s.Fetch(ctx, []webhook.Want{w}, 1<<40, ds); err != nil {
				return ds, err
			}
		}
	}
	return ds, nil
}

// settle ends the claims of deliveries.
func settle(ctx context.Context, s webhook.Store, v webhook.Verdict, ds ...webhook.Delivery) error {
	ss := make([]webhook.Settlement, len(ds))
	for i := range ds {
		ss[i] = webhook.Settlement{Verdict: v, Delivery: ds[i], At: s.Now()}
	}
	_, err := s.Settle(ctx, ss)
	return err
}

// children are what the test binary does when it is started by command.
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

// command returns the command that runs one of children.
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

// runUntil runs cmd, and kills it when hear returns true for a line that it has printed.
// hear gets the lines after that one, too.
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

// below returns a time that is less than t.
func (d *dice) below(t time.Duration) time.Duration { return time.Duration(d.IntN(int(t))) }
