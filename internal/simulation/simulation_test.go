package simulation

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/random"
	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
)

// history keeps what was delivered until the end of each run.
var history = filequeue.Config{HistoryAge: 32 * time.Hour, HistoryBytes: 3 << 20}

func open(w *world) (webhook.Store, error) { return w.openOn(w.disk, history) }

// No acknowledged message is lost, and no delivery is repeated without a reason, whatever fails.
// Each seed is one run of the simulation. In an ordinary test run each seed runs twice, and both
// runs must have the same trace; some of the second runs are beside busy processes. Outside CI, some
// run twice.
func TestSimulation(t *testing.T) {
	onOneCore(t)
	const most = 20 // so many failed runs are kept
	var first []result
	failed := 0
	for seed := range soakenv.Seeds(t, 200) {
		r := simulate(t, seed, open)
		if r.err != nil {
			t.Errorf("go run ./soak simulation -seed %d\n%v", seed, r.err)
			if failed++; failed <= most {
				t.Logf("the trace of this run and the files of its disk are in %s", r.keep(t))
			}
		}
		r.trace, r.files, r.disk = nil, nil, nil
		first = append(first, r)
	}
	if failed > 0 {
		t.Logf("%d of %d runs failed", failed, len(first))
	}
	if soakenv.On() || testkit.Race || t.Failed() {
		return
	}
	const beside = 40 // so many runs are beside busy processes, which take the time of other tests
	if os.Getenv("CI") != "true" {
		first = first[:beside+20] // so that somebody who tries the tests waits for less than 90 seconds
	}
	stop := keepBusy(t)
	spare := 100
	for i, r := range first {
		if i == beside {
			stop()
		}
		checkRepeats(t, r, &spare)
	}
}

// checkRepeats checks that another run of a seed has the same trace. If Go may have changed the order of
// a run, a different trace proves nothing, and the seed runs up to three more times, while spare lasts. A
// machine that is too busy for two runs in their own order is no failure: the log names the seed.
func checkRepeats(t *testing.T, before result, spare *int) {
	t.Helper()
	seen := map[[sha256.Size]byte]bool{before.digest: true}
	var steady *result // a run in the order of its seed
	if !before.preempted() {
		steady = &before
	}
	for run := range 4 {
		if run > 0 {
			if *spare == 0 {
				break
			}
			*spare--
		}
		again := simulate(t, before.seed, open)
		if seen[again.digest] {
			return
		}
		seen[again.digest] = true
		switch {
		case again.preempted():
		case steady == nil:
			steady = &again
		default:
			t.Errorf("seed %d: got two runs with different traces, in %s and %s, want equal ones", before.seed, steady.keep(t), again.keep(t))
			return
		}
	}
	t.Logf("seed %d: not compared, as goroutines ran for more than %v and Go may have changed their order", before.seed, preemption)
}

// A result is what is left of a run.
type result struct {
	seed    uint64
	err     error
	trace   []byte
	digest  [sha256.Size]byte // of the trace
	files   map[string][]byte // of the disk, as they were when a rule was broken
	disk    *simdisk.Disk     // as the run left it; keep takes the files from there if no rule was broken
	longest time.Duration     // the longest real time between two turns
}

// If the real time between two turns exceeds preemption, Go may have let other goroutines run. Go
// does that if a goroutine runs for 10 ms, or waits in a system call for more than some 20 us, as
// the client's spool does on a busy machine.
const preemption = time.Millisecond

// preempted reports whether Go may have preempted a goroutine, which changes the order of others.
func (r *result) preempted() bool { return r.longest >= preemption }

// simulate runs a seed in a bubble.
func simulate(t *testing.T, seed uint64, open opener) (r result) {
	t.Helper()
	collect()
	r.seed = seed
	synctest.Test(t, func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, seed)
		w := newWorld(t, seed, open)
		defer w.network.Close()
		defer w.turns.close()
		defer random.Replace(locked(w.random("service")))()
		r.err = w.run()
		r.files, r.disk = w.files, w.disk
		for _, name := range w.disk.Names() {
			w.turns.note("%s has %s", name, digest(w.disk.ReadFile(name)))
		}
		r.trace, r.longest = w.turns.trace.Bytes(), w.turns.longest
		r.digest = sha256.Sum256(r.trace)
	})
	return r
}

// locked returns a source of random numbers that may be used concurrently.
func locked(rnd *rand.Rand) func() uint64 {
	var mu sync.Mutex
	return func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		return rnd.Uint64()
	}
}

// onOneCore makes the goroutines of the test run in an order that repeats: on one core, and without
// garbage collections in the middle of a run. The race detector makes their order random anyway.
func onOneCore(t *testing.T) {
	if testkit.Race {
		return
	}
	procs, percent := runtime.GOMAXPROCS(1), debug.SetGCPercent(-1)
	t.Cleanup(func() {
		debug.SetGCPercent(percent)
		runtime.GOMAXPROCS(procs)
	})
}

// collect collects the garbage of earlier runs, if there is more than a few runs leave.
func collect() {
	var m runtime.MemStats
	if runtime.ReadMemStats(&m); m.HeapAlloc > 96<<20 {
		runtime.GC()
	}
}

// filesOf returns the files of a disk.
func filesOf(d *simdisk.Disk) map[string][]byte {
	files := make(map[string][]byte)
	for _, name := range d.Names() {
		files[name] = d.ReadFile(name)
	}
	return files
}

// keep writes the trace and the files of the disk to a new folder, which nothing removes, and returns
// the folder.
func (r *result) keep(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir() // the folder of temporary files may go away with the test run
	if err != nil {
		cache = os.TempDir()
	}
	parent := filepath.Join(cache, "hookferry-simulation")
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return err.Error()
	}
	dir, err := os.MkdirTemp(parent, fmt.Sprintf("seed-%d-", r.seed))
	if err != nil {
		return err.Error()
	}
	disk := filepath.Join(dir, "store")
	if err := os.Mkdir(disk, 0o700); err != nil {
		return err.Error()
	}
	if err := os.WriteFile(filepath.Join(dir, "trace"), r.trace, 0o600); err != nil {
		return err.Error()
	}
	if r.files == nil && r.disk != nil {
		r.files = filesOf(r.disk)
	}
	for name, b := range r.files {
		if err := os.WriteFile(filepath.Join(disk, name), b, 0o600); err != nil {
			return err.Error()
		}
	}
	return dir
}

// keepBusy keeps all cores busy with other processes, until stop is called or the test ends.
func keepBusy(t *testing.T) (stop func()) {
	var children []*testkit.Child
	for range runtime.NumCPU() {
		cmd := exec.Command(os.Args[0], "-test.run=^TestBusyProcess$")
		cmd.Env = append(os.Environ(), busyEnv+"=1")
		in, err := cmd.StdinPipe() // its end ends the child
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close() })
		children = append(children, testkit.KillAtEnd(t, cmd))
	}
	return func() {
		for _, c := range children {
			c.Kill()
		}
	}
}

const busyEnv = "SIMULATION_BUSY"

// TestBusyProcess is a child of keepBusy, which does nothing but take time.
func TestBusyProcess(t *testing.T) {
	if os.Getenv(busyEnv) == "" {
		t.Skip("is run by TestSimulation")
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		runtime.Gosched()
	}
}

// A failed run leaves its trace and the files of its disk in a folder.
func TestFailedRunIsKept(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	r := result{seed: 7, trace: []byte("trace"), files: map[string][]byte{"MANIFEST": []byte("files")}}
	dir := r.keep(t)
	trace, err := os.ReadFile(filepath.Join(dir, "trace"))
	if err != nil || !bytes.Equal(trace, r.trace) {
		t.Errorf("got the trace %q, %v, want %q", trace, err, r.trace)
	}
	manifest, err := os.ReadFile(filepath.Join(dir, "store", "MANIFEST"))
	if err != nil || !strings.Contains(dir, "seed-7-") || string(manifest) != "files" {
		t.Errorf("got the file %q, %v, in %s", manifest, err, dir)
	}
}
