// Package server_test has the soaks of the server. They run the real program in processes, and kill
// these processes, replace them one after the other, and attack them.
package server_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/testkit"
)

const nullVariable = "HOOKFERRY_SOAK_NULL"

func TestMain(m *testing.M) {
	if os.Getenv(nullVariable) != "" {
		null()
	}
	status := m.Run()
	if program.dir != "" {
		os.RemoveAll(program.dir)
	}
	os.Exit(status)
}

// countPath is where null answers with the number of requests that it has received.
const countPath = "/count"

// failing is where null answers 503.
const failing = "/failing/"

// null runs in a process of its own. It receives webhooks, and only counts them.
func null() {
	var n atomic.Int64
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on http://" + l.Addr().String())
	log.Fatal(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == countPath {
			fmt.Fprint(w, n.Load())
			return
		}
		if strings.HasPrefix(r.URL.Path, failing) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		n.Add(1)
	})))
}

// program is the hookferry program, built once.
var program struct {
	once sync.Once
	dir  string
	err  error
}

// hookferry returns a command that runs the program. If the test binary has the race detector, so
// has the program.
func hookferry(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	program.once.Do(func() {
		if program.dir, program.err = os.MkdirTemp("", "hookferry"); program.err != nil {
			return
		}
		build := []string{"build", "-o", program.dir + string(filepath.Separator)}
		if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
			build = append(build, "-race")
		}
		out, err := exec.Command("go", append(build, "github.com/hookferry/analytics/cmd/hookferry")...).CombinedOutput()
		if err != nil {
			program.err = fmt.Errorf("building hookferry: %w\n%s", err, out)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return exec.Command(filepath.Join(program.dir, "hookferry"), args...)
}

var (
	listening = regexp.MustCompile(`msg=listening address=(\S+)`)
	pageAt    = regexp.MustCompile(`msg="the page is at" url=(\S+)`)
)

// start starts a process, and waits until it has printed text that matches re.
func start(t testing.TB, cmd *exec.Cmd, re *regexp.Regexp) (c *testkit.Child, found string) {
	t.Helper()
	c = testkit.KillAtEnd(t, cmd)
	found, err := c.Await(re)
	if err != nil {
		t.Fatal(err)
	}
	return c, found
}

// stop interrupts a process, and expects it to end with status 0.
func stop(t testing.TB, c *testkit.Child) {
	t.Helper()
	if status, err := c.Stop(os.Interrupt); err != nil || status != 0 {
		t.Fatalf("stopping a server: got status %d, %v, want 0\n%s", status, err, c.Output())
	}
}

// freeAddress returns an address on which nothing listens.
func freeAddress(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", testkit.Port(t))
}

// A dice is a random source for several goroutines.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func newDice(seed uint64) *dice { return &dice{r: rand.New(rand.NewPCG(seed, 0))} }

// below returns a random time that is less than t.
func (d *dice) below(t time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Duration(d.r.Int64N(int64(t)))
}

// stalled is how long a test waits without any progress before it fails. The soak command itself
// sets no time limit for its tests.
const stalled = time.Minute

// until waits until count returns at least want. It fails the test if the count has not grown for
// stalled.
func until(t testing.TB, what string, want int, count func() (int, error)) {
	t.Helper()
	most, since := math.MinInt, time.Now()
	for {
		n, err := count()
		if err == nil && n >= want {
			return
		}
		if n > most {
			most, since = n, time.Now()
		}
		if time.Since(since) > stalled {
			t.Fatalf("%s: got %d, want %d; no progress for %v; %v", what, most, want, stalled, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

var errStopped = errors.New("the test has ended")

// pause waits for d, while the load runs.
func pause(t testing.TB, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(errStopped)
	}
}
