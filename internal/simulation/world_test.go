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
	stores "github.com/hookferry/analytics/webhook/store"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// A world is one run of the simulation. It has the server, its disk and clock, the clients and the
// receivers.
type world struct {
	t       *testing.T
	seed    uint64
	rnd     *rand.Rand
	ledger  *ledger
	orders  *orders
	turns   *turns // the entry points at which goroutines wait for their turn
	network *webhooktest.Network
	open    opener

	destinations []webhook.Destination
	endpoints    map[string][]*endpoint // by destination
	senders      []*sender
	meanWait     time.Duration // mean wait between two messages of a sender

	histories    []stores.History       // the stores that were opened
	server       atomic.Pointer[server] // nil while no server runs
	disk         *simdisk.Disk
	capacity     int64                  // of the disk; 0 is no bound
	fault        func(simdisk.Op) error // fails operations of the disk; nil if none fail
	diskFails    bool                   // the disk fails, or is full
	networkFails atomic.Bool            // the network between the clients and the collector fails
	clock        *rand.Rand             // draws when and how the server's clock is set
	clockAhead   time.Duration          // how far the server's clock is ahead
	setBack      time.Duration          // how much later deliveries may be due, because the clock was set back

	files map[string][]byte // of the disk, as they were when a rule was broken; nil if none was

	mu       sync.Mutex
	firstErr error // the first error of fail
}

// diskSize is the capacity of the disk, except while it is full. It is small, so that the store
// makes small segments.
const diskSize = 5 << 20

// An opener opens the store on the disk of a world.
type opener func(*world) (webhook.Store, error)

// random returns a random source for one part of the world. Each part has its own source, so that a
// change in one part does not change the others.
func (w *world) random(part string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(part))
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

// fail records an error. The first one becomes the result of the run.
func (w *world) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.firstErr == nil {
		w.firstErr = err
	}
}

// newWorld returns the world of a seed, in which nothing runs yet.
func newWorld(t *testing.T, seed uint64, open opener) *world {
	w := &world{t: t, seed: seed, ledger: newLedger(), orders: newOrders(), open: open, endpoints: make(map[string][]*endpoint), capacity: diskSize}
	w.rnd, w.clock = w.random("world"), w.random("clock")
	w.turns = newTurns(w.random("turns"))
	w.meanWait = time.Duration(5+w.rnd.IntN(20)) * time.Second
	w.useDisk(simdisk.New(seed))
	w.network = webhooktest.NewNetwork()
	for i := range 1 + w.rnd.IntN(3) {
		d := webhook.Destination{ID: fmt.Sprint("destination-", i), Secret: "secret", Order: webhook.OrderByUser}
		for j := range 1 + w.rnd.IntN(2) {
			// Without TLS, which would take a third of the time, and send random bytes.
			url := fmt.Sprintf("http://e%d-%d.example/hook", i, j)
			d.Endpoints = append(d.Endpoints, webhook.Endpoint{URL: url})
			w.endpoints[d.ID] = append(w.endpoints[d.ID], newEndpoint(w, d.ID, url))
		}
		w.destinations = append(w.destinations, d)
	}
	return w
}

// run runs the world and returns an error if a rule was broken.
func (w *world) run() error {
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
	err := w.runEvents()
	cancel()
	running.Wait()
	if err == nil {
		err = w.drainAndCheck()
	}
	w.mu.Lock()
	err = errors.Join(w.firstErr, err)
	w.mu.Unlock()
	if err != nil {
		w.files = filesOf(w.disk)
	}
	for _, s := range w.senders {
		err = errors.Join(err, s.shutdown(0))
	}
	w.endFaults()
	return errors.Join(err, w.stop())
}

// runEvents runs a sequence of random events. After a crash it restarts the server.
func (w *world) runEvents() error {
	for range 12 {
		time.Sleep(time.Duration(w.rnd.ExpFloat64() * float64(time.Minute)))
		w.turns.wait("event")
		if w.clock.IntN(4) == 0 {
			w.setClock()
		}
		if err := w.runEvent(); err != nil {
			return err
		}
		if w.disk.Crashed() || w.server.Load() == nil {
			w.ledger.crash()
			time.Sleep(time.Duration(w.rnd.Int64N(int64(20 * time.Second))))
			w.turns.wait("reboot")
			loss := simdisk.Loss(w.rnd.IntN(2))
			if err := w.restart(loss); err != nil {
				return err
			}
		}
	}
	return nil
}

// setClock sets the server's clock forward or back, by up to ten seconds or up to an hour.
func (w *world) setClock() {
	most := []time.Duration{10 * time.Second, time.Hour}[w.clock.IntN(2)]
	by := time.Duration(w.clock.Int64N(2*int64(most))) - most
	w.clockAhead += by
	w.setBack += max(-by, 0)
	w.disk.SetClock(w.clockAhead)
}

// runEvent runs one random event.
func (w *world) runEvent() error {
	switch w.rnd.IntN(11) {
	case 0, 1: // the process or the machine ends now
		w.disk.Crash()
	case 2: // the process or the machine ends at one of the next operations of the disk
		w.disk.CrashAt(1 + w.rnd.IntN(60))
	case 3: // an orderly restart
		return w.restart(simdisk.Process)
	case 4: // the disk begins to fail now and then
		rnd := w.random(fmt.Sprint("fault", w.rnd.Uint64()))
		var mu sync.Mutex
		w.diskFails = true
		w.fault = func(op simdisk.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if op.Changes() && rnd.IntN(4) == 0 {
				return syscall.EIO
			}
			return nil
		}
		w.disk.OnOp(w.fault)
	case 5: // the disk becomes full, or nearly full
		w.diskFails = true
		w.ledger.fill()
		w.capacity = w.disk.Used() + w.rnd.Int64N(64<<10)
		w.disk.SetCapacity(w.capacity)
	case 6:
		w.endFaults()
	case 7:
		return w.drainFull()
	case 8:
		return w.senders[w.rnd.IntN(len(w.senders))].crash()
	case 9:
		w.networkFails.Store(!w.networkFails.Load())
	default:
		for _, d := range w.destinations {
			for _, e := range w.endpoints[d.ID] {
				e.set(behavior(w.rnd.IntN(int(behaviors))))
			}
		}
	}
	return nil
}

// drainFull fills the disk, and checks that all waiting deliveries are delivered anyway.
func (w *world) drainFull() error {
	s := w.server.Load()
	if w.diskFails || s == nil || w.disk.Crashed() {
		return nil
	}
	w.healReceivers()
	w.diskFails = true
	w.ledger.fill()
	w.capacity = w.disk.Used()
	w.disk.SetCapacity(w.capacity)
	for begin := time.Now(); time.Since(begin) < 40*time.Minute+w.setBack; {
		time.Sleep(time.Minute)
		w.turns.wait("count")
		counts, err := s.store.Count(context.Background())
		if w.disk.Crashed() { // an earlier event asked for this crash
			return nil
		}
		if err != nil {
			return err
		}
		if counts.Waiting == 0 {
			w.endFaults()
			return nil
		}
	}
	return errors.New("deliveries that wait are not delivered while the disk is full")
}

// healReceivers makes all receivers healthy.
func (w *world) healReceivers() {
	for _, d := range w.destinations {
		for _, e := range w.endpoints[d.ID] {
			e.set(healthy)
		}
	}
}

// endFaults ends all faults of the disk and of the network.
func (w *world) endFaults() {
	w.diskFails, w.fault, w.capacity = false, nil, diskSize
	w.disk.OnOp(nil)
	w.disk.CrashAt(0)
	w.disk.SetCapacity(diskSize)
	w.networkFails.Store(false)
}

// drainAndCheck ends all faults, waits until no delivery waits, and checks the ledger.
func (w *world) drainAndCheck() error {
	w.endFaults()
	if w.disk.Crashed() || w.server.Load() == nil {
		w.ledger.crash()
		if err := w.restart(simdisk.Power); err != nil {
			return err
		}
	}
	w.healReceivers()
	for _, s := range w.senders {
		if err := s.drain(); err != nil {
			return err
		}
	}
	store := w.server.Load().store
	ctx := context.Background()
	var counts stores.Counts
	for begin := time.Now(); ; time.Sleep(time.Minute) {
		w.turns.wait("count")
		var err error
		if counts, err = store.Count(ctx); err != nil {
			return err
		}
		if counts.Waiting == 0 {
			break
		}
		if time.Since(begin) > 6*time.Hour+w.setBack {
			return fmt.Errorf("%d deliveries still wait after %v without a fault: %+v", counts.Waiting, time.Since(begin), counts)
		}
	}
	var found []string
	unkept := 0
	for _, d := range w.destinations {
		o := outcome{dead: make(map[string]int), kept: make(map[string]int)}
		for r, err := range stores.Records(ctx, store, webhook.Query{Destinations: []string{d.ID}}) {
			if err != nil {
				return err
			}
			if r.State == webhook.StateDead {
				o.dead[r.MessageID]++
			} else { // nothing waits any more
				o.kept[r.MessageID]++
			}
		}
		var urls []string
		for _, e := range w.endpoints[d.ID] {
			urls = append(urls, e.url)
		}
		lost, n := w.ledger.losses(d.ID, urls, o)
		found, unkept = append(found, lost...), unkept+n
	}
	for _, h := range w.histories {
		unkept -= int(h.Unkept())
	}
	// The bound may have removed some, a table at a time, which has at most a quarter of it.
	full := counts.DeliveredBytes > history.HistoryBytes*3/4
	if unkept > 0 && !full {
		found = append(found, fmt.Sprintf("%d delivered ones are not kept, and not counted either", unkept))
	}
	found = append(found, w.ledger.unsent()...)
	found = append(found, w.orders.faults()...)
	found = append(found, w.ledger.repeats()...)
	found = append(found, w.ledger.restored...)
	if len(found) > 0 {
		return errors.New(summary(found))
	}
	return nil
}
