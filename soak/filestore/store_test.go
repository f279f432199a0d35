// Package filestore_test has the soaks of the durable store in a folder: of what it does
// in processes that are killed, on full disks, and behind forwarders under load. They see
// what a program sees of the store, and nothing of its insides. Those are in its package.
package filestore_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hookferry/analytics/webhook/boltqueue"
)

// openStore opens the store under test, in a folder.
func openStore(dir string, c *boltqueue.Config) (*boltqueue.Queue, error) {
	return boltqueue.Open(storePath(dir), c)
}

func storePath(dir string) string { return filepath.Join(dir, "queue.db") }

// storeFiles are the files of a store, some of which may not be there.
func storeFiles(dir string) []string {
	path := storePath(dir)
	return []string{path, path + ".journal", path + ".journal2"}
}

// copyStore copies the files of a store that is not being written to another folder.
func copyStore(to, from string) error {
	for _, name := range storeFiles(from) {
		b, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, filepath.Base(name)), b, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
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
