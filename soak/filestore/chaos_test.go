package filestore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

const chaosCallers = 4 // goroutines that call each forwarder

// TestChaos runs two forwarders in processes of their own. Their receivers misbehave in all ways.
// The test kills one process about once a minute, and compares its store with the accounts. The
// other process runs to the end, and must not use more memory, goroutines and files then than at
// first. At the end the receivers accept everything, and accepted = delivered + discarded + dead +
// waiting, to the last message.
func TestChaos(t *testing.T) {
	length, seed := soakenv.Long(t, "file-chaos")
	dice := newDice(seed)
	begin := time.Now()
	ledger := newChaosLedger()
	receivers := newChaosReceivers(t, ledger, dice, max(length/40, 500*time.Millisecond))
	defer receivers.close()
	var fs [2]*chaosForwarder
	for i := range fs {
		fs[i] = &chaosForwarder{t: t, number: i, dir: t.TempDir(), dice: dice, ledger: ledger, receivers: receivers}
		if err := fs[i].start(); err != nil {
			t.Fatal(err)
		}
		defer fs[i].end()
	}
	over := make(chan struct{})
	timer := time.AfterFunc(length, func() { close(over) })
	defer timer.Stop()
	var working, killing sync.WaitGroup
	for _, f := range fs {
		for range chaosCallers {
			working.Go(func() { f.call(over) })
		}
		working.Go(func() { f.bury(over, max(length/60, 200*time.Millisecond)) })
	}
	killing.Go(func() { fs[0].die(over, max(length/30, 400*time.Millisecond)) })

	var samples []chaosStatus
	var disk [2]int64
	ticks := time.NewTicker(max(length/60, 250*time.Millisecond))
	defer ticks.Stop()
	for on := true; on; {
		select {
		case <-ticks.C:
		case <-over:
			on = false
		}
		var s chaosStatus
		if err := fs[1].running().ask("GET", "/status", nil, &s); err != nil {
			t.Fatal(err)
		}
		samples = append(samples, s)
		for i, f := range fs {
			disk[i] = max(disk[i], storeSize(f.dir))
		}
		t.Logf("%5.0f s: %d made, launch %d; the other: %d delivered, %d waiting, %d dead, heap %.1f MB, %d goroutines, %d files; on disk %.1f and %.1f MB", time.Since(begin).Seconds(),
			ledger.made(), fs[0].launches(), s.Stats.Delivered, s.Counts.Waiting, s.Counts.Dead, float64(s.Heap)/(1<<20), s.Goroutines, s.Files,
			float64(storeSize(fs[0].dir))/(1<<20), float64(storeSize(fs[1].dir))/(1<<20))
	}
	killing.Wait() // first, so that the callers have a process to call
	working.Wait()
	receivers.kind.Store(true)
	took := time.Since(begin)
	for _, f := range fs {
		f.drain()
	}
	for i, f := range fs {
		var s chaosStatus
		if err := f.running().ask("GET", "/status", nil, &s); err != nil {
			t.Fatal(err)
		}
		if err := f.running().stop(); err != nil {
			t.Errorf("forwarder %d: the process ended with %v, want nil", i, err)
		}
		ledger.ended(i, f.launch)
		sum := ledger.sum(i, f.census())
		if sum.waiting != s.Counts.Waiting || sum.dead != s.Counts.Dead {
			t.Errorf("forwarder %d: Count before the end = %+v, want the contents of the store: %d waiting, %d dead letters", i, s.Counts, sum.waiting, sum.dead)
		}
		if all := sum.delivered + sum.discarded + sum.dead + sum.waiting; sum.accepted+sum.unknown != all || sum.lost != 0 {
			t.Errorf("forwarder %d: got %+v, want accepted + unknown = delivered + discarded + dead + waiting, 0 lost", i, sum)
		}
		r, err := checkStore(f.dir)
		if err != nil || r.Waiting != sum.waiting || r.Dead != sum.dead {
			t.Errorf("Check = %+v, %v; want %d waiting, %d dead", r, err, sum.waiting, sum.dead)
		}
		t.Logf("forwarder %d: %d accepted + %d of calls without an answer = %d delivered + %d dead and discarded + %d dead + %d waiting; %d lost; on disk %.1f MB at most, %.1f MB at the end, %.1f MB of it needed",
			i, sum.accepted, sum.unknown, sum.delivered, sum.discarded, sum.dead, sum.waiting, sum.lost, float64(disk[i])/(1<<20), float64(r.Bytes)/(1<<20), float64(r.Needed)/(1<<20))
		if sum.delivered == 0 || sum.dead+sum.discarded == 0 || sum.waiting == 0 {
			t.Errorf("forwarder %d: got %+v, want some delivered, some dead or discarded, and some waiting", i, sum)
		}
	}

	ledger.mu.Lock()
	defer ledger.mu.Unlock()
	for _, p := range ledger.problems {
		t.Error(p)
	}
	again, most := 0, 0
	for _, n := range ledger.killed[0] {
		again, most = again+n, max(most, n)
	}
	// A kill may repeat deliveries in flight, and those whose outcomes are on their way to the
	// store.
	if limit := 10 * chaosInFlight; most > limit {
		t.Errorf("after one kill %d messages arrived again, want at most %d", most, limit)
	}
	if len(ledger.killed[1]) > 0 {
		t.Errorf("messages arrived again from another launch of the process that was not killed: %v, want none", ledger.killed[1])
	}
	t.Logf("%.0f s, %.0f messages/s, %d launches; arrived again: %d after a kill (at most %d after one), %d whose answer was spoiled, %d whose answer came too late, %d at both endpoints of two",
		took.Seconds(), float64(len(ledger.entries))/took.Seconds(), fs[0].launch, again, most, ledger.lost, ledger.late, ledger.pair)
	checkFlat(t, samples, length)
}

// checkFlat checks that a process uses no more memory, goroutines and files at its end than at its
// beginning.
func checkFlat(t *testing.T, samples []chaosStatus, length time.Duration) {
	for _, of := range []struct {
		what  string
		value func(chaosStatus) float64
		slack float64
	}{
		// The store has 40 bytes in memory for each waiting delivery and each dead letter.
		{"MB of heap without the index", func(s chaosStatus) float64 {
			return (float64(s.Heap) - 40*float64(s.Counts.Waiting+s.Counts.Dead)) / (1 << 20)
		}, 4},
		{"goroutines", func(s chaosStatus) float64 { return float64(s.Goroutines) }, chaosInFlight / 2},
		{"files", func(s chaosStatus) float64 { return float64(s.Files) }, chaosInFlight / 2},
	} {
		var values []float64
		for _, s := range samples {
			values = append(values, of.value(s))
		}
		quarter := max(1, len(values)/4)
		median := func(vs []float64) float64 { return slices.Sorted(slices.Values(vs))[len(vs)/2] }
		first, last := median(values[:quarter]), median(values[len(values)-quarter:])
		if length >= 5*time.Minute && last > 1.25*first+of.slack {
			t.Errorf("%s have grown from %.1f to %.1f, want at most %.1f", of.what, first, last, 1.25*first+of.slack)
		}
		t.Logf("%s: %.1f in the first quarter, %.1f in the last, %.1f at most", of.what, first, last, slices.Max(values))
	}
}

// A chaosForwarder is a forwarder whose process is launched several times.
type chaosForwarder struct {
	t         *testing.T
	number    int
	dir       string
	dice      *dice
	ledger    *chaosLedger
	receivers *chaosReceivers
	calls     atomic.Int32 // batches that were forwarded

	mu      sync.Mutex // held while there is no process
	process *chaosProcess
	launch  int
}

func (f *chaosForwarder) running() *chaosProcess {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.process
}

func (f *chaosForwarder) launches() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.launch
}

// start launches the process. The caller holds f.mu, unless no other goroutine uses f yet.
func (f *chaosForwarder) start() error {
	f.launch++
	launch := f.launch
	c := chaosConfig{
		Dir: f.dir, Launch: launch, Root: f.receivers.secure.Certificate().Raw,
		Destinations: f.receivers.destinations(launch, f.number == 1 || launch%2 == 0),
	}
	p, err := startChaos(c, func(line string) { f.ledger.hear(launch, line) })
	if err != nil {
		return err
	}
	f.process = p
	return nil
}

// end kills a process that still runs because the test has failed.
func (f *chaosForwarder) end() {
	if p := f.running(); p.cmd.ProcessState == nil {
		p.kill()
	}
}

// chaosRounds is how often each destination gets calls at least. Of single batches, one in 20 has
// no refused message. Of the batches of four rounds, only one set in ten thousand million has none.
const chaosRounds = 4

// call forwards calls until over is closed, and to each destination at least chaosRounds times. If
// a kill cuts a call off, it mostly repeats the call.
func (f *chaosForwarder) call(over <-chan struct{}) {
	for on := true; on || f.calls.Load() < int32(chaosRounds*len(chaosMix)); {
		select {
		case <-over:
			on = false
		case <-time.After(f.dice.below(100 * time.Millisecond)):
		}
		d := int(f.calls.Add(1)) * 7 % len(chaosMix)
		b := chaosBatch{Destination: chaosMix[d], IDs: f.ledger.open(f.number, d, 1+f.dice.IntN(20))}
		for range b.IDs {
			size := f.dice.IntN(600)
			if f.dice.IntN(32) == 0 {
				size = f.dice.IntN(30_000)
			}
			b.Sizes = append(b.Sizes, size)
		}
		for {
			var ok bool
			err := f.running().ask("POST", "/forward", b, &ok)
			if err == nil {
				f.ledger.set(b.IDs, chaosAccepted)
				break
			}
			// Calls for "off" are always repeated, because drain relies on their number.
			if f.failed(err) || f.t.Failed() || b.Destination != "off" && f.dice.IntN(4) == 0 {
				break
			}
		}
	}
}

// failed reports an error that a kill cannot explain.
func (f *chaosForwarder) failed(err error) bool {
	var refused errRefused
	if f.number == 1 || errors.As(err, &refused) {
		f.t.Errorf("forwarder %d: %v", f.number, err)
		return true
	}
	return false
}

// bury retries and discards dead letters now and then.
func (f *chaosForwarder) bury(over <-chan struct{}, interval time.Duration) {
	for {
		select {
		case <-over:
			return
		case <-time.After(f.dice.below(2 * interval)):
		}
		p := f.running()
		var dead []chaosDead
		if err := p.ask("GET", "/dead?max=2000", nil, &dead); err != nil {
			f.failed(err)
			continue
		}
		var retry, discard []webhook.Ref
		var ids []uint32
		for _, d := range dead[:len(dead)/2] { // the others remain until the end
			if f.dice.IntN(2) == 0 {
				retry = append(retry, d.Ref)
				continue
			}
			discard = append(discard, d.Ref)
			id, err := strconv.ParseUint(d.ID, 10, 32)
			if err != nil {
				f.t.Error(err)
			}
			ids = append(ids, uint32(id))
		}
		f.ledger.set(ids, chaosDiscarded)
		var n int
		for path, keys := range map[string][]webhook.Ref{"/retry": retry, "/discard": discard} {
			if err := p.ask("POST", path, keys, &n); err != nil {
				f.failed(err)
			}
		}
	}
}

// die kills the process and launches it again, every interval on average. One time in five it kills
// the process soon after the launch. In the last launch only the destination "off" is disabled.
func (f *chaosForwarder) die(over <-chan struct{}, interval time.Duration) {
	for on := true; on; {
		wait := interval/2 + f.dice.below(interval)
		if f.dice.IntN(5) == 0 {
			wait = f.dice.below(50 * time.Millisecond)
		}
		select {
		case <-over:
			on = false
		case <-time.After(wait):
		}
		f.mu.Lock()
		for more := true; more; more = !on && f.launch%2 == 1 {
			f.process.kill()
			f.ledger.ended(f.number, f.launch)
			if s := f.ledger.sum(f.number, f.census()); s.lost > 0 {
				f.t.Errorf("after launch %d got %+v, want 0 lost", f.launch, s)
			}
			if err := f.start(); err != nil {
				f.t.Error(err)
				on = false
				break
			}
		}
		f.mu.Unlock()
	}
}

// drain waits until only the messages for the disabled destination wait.
func (f *chaosForwarder) drain() {
	begin, kept := time.Now(), f.ledger.kept(f.number, "off")
	for {
		var s chaosStatus
		if err := f.running().ask("GET", "/status", nil, &s); err != nil {
			f.t.Error(err)
			return
		}
		if s.Counts.Waiting <= kept {
			f.t.Logf("forwarder %d: drained within %.1f s", f.number, time.Since(begin).Seconds())
			return
		}
		if time.Since(begin) > 5*time.Minute {
			f.t.Errorf("forwarder %d: %+v after five minutes with receivers that accept everything, want %d waiting", f.number, s, kept)
			return
		}
		time.Sleep(50 * time.Millisecond) // each status costs a garbage collection
	}
}

// census reads a copy of the store. No process may have the store open.
func (f *chaosForwarder) census() chaosCensus {
	dir, err := os.MkdirTemp(f.dir, "copy")
	if err != nil {
		f.t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := copyStore(dir, f.dir); err != nil {
		f.t.Fatal(err)
	}
	c := chaosCensus{waiting: map[uint32]bool{}, dead: map[uint32]bool{}}
	if _, err := checkStore(dir); err != nil {
		f.t.Error(err)
	}
	if err := c.read(f.t.Context(), dir); err != nil {
		f.t.Error(err)
	}
	runtime.GC()
	return c
}

// read adds the contents of a store to c, and checks them.
func (c chaosCensus) read(ctx context.Context, dir string) error {
	s, err := openStore(dir, filequeue.Config{})
	if err != nil {
		return err
	}
	defer s.Close()
	counts, err := s.Count(ctx)
	if err != nil {
		return err
	}
	note := func(in map[uint32]bool, d *webhook.Delivery) error {
		id, err := strconv.ParseUint(d.ID, 10, 32)
		switch {
		case err != nil:
			return err
		case in[uint32(id)]:
			return fmt.Errorf("message %d is in the store twice", id)
		case !strings.Contains(string(d.Body), `"messageId":"`+d.ID+`"`):
			return fmt.Errorf("message %d has the body %.200q, want its own", id, d.Body)
		}
		in[uint32(id)] = true
		return nil
	}
	for d, err := range store.Records(ctx, s, store.Query{}) {
		in := c.waiting
		if d.State == store.StateDead {
			in = c.dead
		}
		if err == nil {
			err = note(in, &d.Delivery)
		}
		if err != nil {
			return err
		}
	}
	if len(c.waiting) != counts.Waiting || len(c.dead) != counts.Dead || s.Lost() != 0 {
		return fmt.Errorf("got %d deliveries, %d dead letters, %d lost, want 0 lost and the numbers of Count() = %+v", len(c.waiting), len(c.dead), s.Lost(), counts)
	}
	return nil
}
