package simulation

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A world is one run of the simulation.
type world struct {
	t       *testing.T
	seed    uint64
	rnd     *rand.Rand
	ledger  *ledger
	network *webhooktest.Network
	open    opener

	destinations []webhook.Destination
	endpoints    map[string][]*endpoint // by destination
	senders      []*sender
	pace         time.Duration // between the messages of a sender, about

	server   atomic.Pointer[server]
	disk     *simdisk.Disk
	capacity int64                  // of the disk; 0 is no bound
	fault    func(simdisk.Op) error // of the disk
	failing  bool                   // the disk fails, or is full
	trouble  atomic.Bool            // the network between clients and the collector fails
	clock    *rand.Rand             // draws when and how the server's clock is set
	ahead    time.Duration          // of the server's clock
	setBack  time.Duration          // how much longer something may be due, as the clock was set back

	mu    sync.Mutex
	wrong error
}

// diskSize is the size of the disk, except while it is full. The segments of a small disk are short.
const diskSize = 4 << 20

// An opener opens the store on a disk.
type opener func(*simdisk.Disk) (webhook.Store, error)

// random returns a random source for one part of the world.
func (w *world) random(part string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(part))
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

// fail notes an error. The first one is the result of the run.
func (w *world) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wrong == nil {
		w.wrong = err
	}
}

// simulate runs a world from a seed, within a bubble, and returns what went wrong.
func simulate(t *testing.T, seed uint64, open opener) error {
	w := &world{t: t, seed: seed, ledger: newLedger(), open: open, endpoints: make(map[string][]*endpoint)}
	w.rnd, w.clock = w.random("world"), w.random("clock")
	w.pace = time.Duration(5+w.rnd.IntN(20)) * time.Second
	w.disk = simdisk.New(seed)
	w.capacity = diskSize
	w.disk.SetCapacity(diskSize)
	w.network = webhooktest.NewNetwork()
	defer w.network.Close()
	for i := range 1 + w.rnd.IntN(3) {
		d := webhook.Destination{ID: fmt.Sprint("destination-", i), Secret: "secret"}
		for j := range 1 + w.rnd.IntN(2) {
			url := fmt.Sprintf("https://e%d-%d.example/hook", i, j)
			d.Endpoints = append(d.Endpoints, webhook.Endpoint{URL: url})
			w.endpoints[d.ID] = append(w.endpoints[d.ID], newEndpoint(w, url))
		}
		w.destinations = append(w.destinations, d)
	}
	if err := w.start(); err != nil {
		return err
	}
	for i := range 2 {
		w.senders = append(w.senders, newSender(w, fmt.Sprint("client-", i), i == 0))
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, s := range w.senders {
		running.Go(func() { s.run(ctx) })
	}
	err := w.happen()
	cancel()
	running.Wait()
	if err == nil {
		err = w.settle()
	}
	for _, s := range w.senders {
		err = errors.Join(err, s.end(0))
	}
	w.calm()
	err = errors.Join(err, w.stop())
	return errors.Join(w.wrong, err)
}

// happen makes events happen for a while.
func (w *world) happen() error {
	for range 12 {
		time.Sleep(time.Duration(w.rnd.ExpFloat64() * float64(time.Minute)))
		if w.clock.IntN(4) == 0 {
			w.setClock()
		}
		if err := w.event(); err != nil {
			return err
		}
		if w.disk.Crashed() || w.server.Load() == nil {
			w.ledger.crash()
			time.Sleep(time.Duration(w.rnd.Int64N(int64(20 * time.Second))))
			loss := simdisk.Loss(w.rnd.IntN(2))
			if err := w.restart(loss); err != nil {
				return err
			}
		}
	}
	return nil
}

// setClock sets the server's clock forward or back, by seconds or by up to an hour.
func (w *world) setClock() {
	most := []time.Duration{10 * time.Second, time.Hour}[w.clock.IntN(2)]
	by := time.Duration(w.clock.Int64N(2*int64(most))) - most
	w.ahead += by
	w.setBack += max(-by, 0)
	w.disk.SetClock(w.ahead)
}

// event makes one event happen.
func (w *world) event() error {
	switch w.rnd.IntN(11) {
	case 0, 1: // the process or the machine ends, now
		w.disk.Crash()
	case 2: // ... in the middle of what it does next
		w.disk.CrashAt(1 + w.rnd.IntN(60))
	case 3:
		return w.restart(simdisk.Process) // in order
	case 4: // the disk fails now and then
		rnd := w.random(fmt.Sprint("fault", w.rnd.Uint64()))
		var mu sync.Mutex
		w.failing = true
		w.fault = func(op simdisk.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if op.Changes() && rnd.IntN(4) == 0 {
				return syscall.EIO
			}
			return nil
		}
		w.disk.OnOp(w.fault)
	case 5: // the disk is full, or nearly
		w.failing = true
		w.capacity = w.disk.Used() + w.rnd.Int64N(64<<10)
		w.disk.SetCapacity(w.capacity)
	case 6:
		w.calm()
	case 7:
		return w.drainFull()
	case 8:
		return w.senders[w.rnd.IntN(len(w.senders))].crash()
	case 9:
		w.trouble.Store(!w.trouble.Load())
	default:
		for _, d := range w.destinations {
			for _, e := range w.endpoints[d.ID] {
				e.set(mood(w.rnd.IntN(int(moods))))
			}
		}
	}
	return nil
}

// drainFull fills the disk, and checks that everything that waits is delivered anyway.
func (w *world) drainFull() error {
	s := w.server.Load()
	if w.failing || s == nil || w.disk.Crashed() {
		return nil
	}
	w.please()
	w.failing = true
	w.capacity = w.disk.Used()
	w.disk.SetCapacity(w.capacity)
	for begin := time.Now(); time.Since(begin) < 40*time.Minute+w.setBack; {
		time.Sleep(time.Minute)
		counts, err := s.store.Count(context.Background())
		if w.disk.Crashed() { // as an event before wanted it
			return nil
		}
		if err != nil {
			return err
		}
		if counts.Waiting == 0 {
			w.calm()
			return nil
		}
	}
	return errors.New("what waits is not delivered while the disk is full")
}

// please makes all receivers healthy.
func (w *world) please() {
	for _, d := range w.destinations {
		for _, e := range w.endpoints[d.ID] {
			e.set(healthy)
		}
	}
}

// calm ends all faults.
func (w *world) calm() {
	w.failing, w.fault, w.capacity = false, nil, diskSize
	w.disk.OnOp(nil)
	w.disk.CrashAt(0)
	w.disk.SetCapacity(diskSize)
	w.trouble.Store(false)
}

// settle ends all faults, waits until everything that was accepted has arrived, and checks the ledger.
func (w *world) settle() error {
	w.calm()
	if w.disk.Crashed() || w.server.Load() == nil {
		w.ledger.crash()
		if err := w.restart(simdisk.Power); err != nil {
			return err
		}
	}
	w.please()
	for _, s := range w.senders {
		if err := s.finish(); err != nil {
			return err
		}
	}
	store := w.server.Load().store
	ctx := context.Background()
	for begin := time.Now(); ; time.Sleep(time.Minute) {
		counts, err := store.Count(ctx)
		if err != nil {
			return err
		}
		if counts.Waiting == 0 {
			break
		}
		if time.Since(begin) > 6*time.Hour+w.setBack {
			return fmt.Errorf("%d deliveries wait after %v without a fault: %+v", counts.Waiting, time.Since(begin), counts)
		}
	}
	var found []string
	for _, d := range w.destinations {
		o := outcome{dead: make(map[string]int), waiting: make(map[string]int)}
		for dead, err := range store.Dead(ctx, webhook.DeadFilter{Destination: d.ID}, "") {
			if err != nil {
				return err
			}
			o.dead[dead.MessageID]++
		}
		var urls []string
		for _, e := range w.endpoints[d.ID] {
			urls = append(urls, e.url)
		}
		found = append(found, w.ledger.losses(d.ID, urls, o)...)
	}
	found = append(found, w.ledger.unsent()...)
	found = append(found, w.ledger.repeats()...)
	if len(found) > 0 {
		return errors.New(some(found))
	}
	return nil
}
