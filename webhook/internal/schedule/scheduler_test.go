package schedule

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/soak"
)

const window = 4 * time.Hour

// A world is a scheduler with a store that is a few lists of times, and workers that are
// the test's own.
type world struct {
	*Scheduler
	t     *testing.T
	wakes int
	store map[string]*[2][]time.Time // fresh deliveries and retries that are not claimed, in order
	plan  []Want
}

func newWorld(t *testing.T, slots, limit int, bytes int64) *world {
	w := &world{t: t, store: make(map[string]*[2][]time.Time)}
	w.Scheduler = New(Config{
		Slots: slots, Bytes: bytes, Window: window,
		Limits:  func(string) Limits { return Limits{Slots: limit} },
		NewData: func(*Lane) any { return nil },
		Start:   func() {},
		Wake:    func() { w.wakes++ },
		Now:     time.Now,
		Jitter:  half,
	})
	w.Open()
	return w
}

// put stores n deliveries, due at a time, and tells the scheduler.
func (w *world) put(destination string, retries bool, due time.Time, n int) {
	q := w.store[destination]
	if q == nil {
		q = new([2][]time.Time)
		w.store[destination] = q
	}
	k := index(retries)
	i, _ := slices.BinarySearchFunc(q[k], due, time.Time.Compare)
	q[k] = slices.Insert(q[k], i, slices.Repeat([]time.Time{due}, n)...)
	if n == 0 {
		return
	}
	if retries {
		w.Note(destination, time.Time{}, due)
	} else {
		w.Note(destination, due, time.Time{})
	}
}

func index(retries bool) int {
	if retries {
		return 1
	}
	return 0
}

// fetch does what the forwarder does once it is woken, until there is nothing more to plan.
// It returns what it fetched, and what was to be given up.
func (w *world) fetch() (got, lapsed []Item) {
	for {
		plan, _, _ := w.Plan(w.plan[:0])
		if len(plan) == 0 {
			return got, lapsed
		}
		var items []Item
		now := time.Now()
		for i := range plan {
			p := &plan[i]
			q := &w.store[p.Lane.ID][index(p.Retries)]
			for n := 0; n < p.Max && len(*q) > 0 && !(*q)[0].After(now); n++ {
				items = append(items, Item{Destination: p.Lane.ID, Size: 1, Retry: p.Retries, Due: (*q)[0]})
				*q = (*q)[1:]
			}
			if p.Next = (time.Time{}); len(*q) > 0 {
				p.Next = (*q)[0]
			}
		}
		back, gone := w.Fetched(plan, items)
		w.Settled(int64(len(back) + len(gone)))
		for _, it := range back {
			w.put(it.Destination, it.Retry, it.Due, 1)
		}
		got, lapsed = append(got, items...), append(lapsed, gone...)
	}
}

// begin takes the next delivery, if there is one to be attempted now.
func (w *world) begin() *Slot {
	w.mu.Lock()
	none := w.run.lanes.len() == 0 || w.shares.active == w.config.Slots
	if !none {
		w.run.workers++ // one for each slot
	}
	w.mu.Unlock()
	if none {
		return nil
	}
	t := new(Slot)
	if !w.Next(t, NoAttempt) {
		w.t.Fatal("Next ends a worker")
	}
	return t
}

// end ends an attempt.
func (w *world) end(t *Slot, o Outcome) {
	w.mu.Lock()
	w.release(t, o)
	w.run.workers--
	w.mu.Unlock()
	w.Settled(t.Size)
}

// fail ends an attempt whose attempt failed. The delivery is due again after wait.
func (w *world) fail(t *Slot, wait time.Duration, timedOut bool) {
	due := time.Now().Add(wait)
	back, _ := w.Fail(t.Lane, Failure{TimedOut: timedOut, Due: due})
	for _, it := range back {
		w.Settled(it.Size)
		w.put(it.Destination, it.Retry, it.Due, 1)
	}
	w.end(t, Failing)
	w.put(t.Item.Destination, true, due, 1)
}

// check counts again what the scheduler keeps count of.
func (w *world) check() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var active, ready, reserved, busy int
	var held [standings]int
	places := make(map[place]int)
	for _, l := range w.lanes.byID {
		active += l.active
		ready += l.ready.len()
		reserved += l.reserved
		held[l.standing] += l.holds()
		places[l.place]++
		if l.holds() > 0 {
			busy++
		}
		if l.active > l.limit {
			w.t.Fatalf("%d attempts in a lane with a limit of %d", l.active, l.limit)
		}
		if l.place == inLater && (l.pos >= len(w.places.later) || w.places.later[l.pos] != l) {
			w.t.Fatal("a lane is not where it believes to be in later")
		}
	}
	if active != w.shares.active || ready != w.shares.ready || reserved != w.shares.reserved || busy != w.shares.busy || held != w.shares.held || active > w.config.Slots {
		w.t.Fatalf("%d active, %d ready, %d reserved, %d busy, %v held; counted were %d, %d, %d, %d, %v",
			active, ready, reserved, busy, held, w.shares.active, w.shares.ready, w.shares.reserved, w.shares.busy, w.shares.held)
	}
	lists := &w.places.lists
	if places[inDue] != lists[inDue].n || places[inLater] != len(w.places.later) || places[inUnproven] != lists[inUnproven].n || places[inDoubtful] != lists[inDoubtful].n {
		w.t.Fatalf("lanes are in %v, the lists have %d, %d, %d and %d", places, lists[inDue].n, len(w.places.later), lists[inUnproven].n, lists[inDoubtful].n)
	}
}

// Whatever happens in whatever order, limits hold, nothing is lost, and everything that
// waits is attempted.
func TestNothingStalls(t *testing.T) {
	for seed := range soak.Seeds(t, 200) {
		synctest.Test(t, func(t *testing.T) { testNothingStalls(t, seed) })
	}
}

func testNothingStalls(t *testing.T, seed uint64) {
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	r := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t, 1+r.IntN(8), 1+r.IntN(8), 1+r.Int64N(200))
	defer w.Close()
	lanes := 1 + r.IntN(5)
	left := 0
	put := func() {
		n := r.IntN(20)
		left += n
		w.put(fmt.Sprint(r.IntN(lanes)), r.IntN(2) == 0, time.Now().Add(time.Duration(r.IntN(3)-1)*time.Second), n)
	}
	for range lanes {
		put()
	}
	var active []*Slot
	readings := uint64(0) // of pauses
	for steps := 0; left > 0 || len(active) > 0; steps++ {
		if steps > 200_000 {
			t.Fatalf("%d are left, %d active, of %+v", left, len(active), w.store)
		}
		switch k := r.IntN(8); {
		case k == 0 && steps < 200:
			put()
		case k == 1 && steps < 200: // a delivery that the store keeps
			if d := fmt.Sprint(r.IntN(lanes)); w.Reserve(d, 1) {
				if r.IntN(4) == 0 {
					w.Release(d, 1)
				} else if w.Start(Item{Destination: d, Size: 1, Due: time.Now()}) {
					left++
				} else {
					w.Settled(1)
				}
			}
		case k <= 2 && w.wakes > 0:
			w.wakes = 0
			w.fetch()
		case k == 3:
			d := fmt.Sprint(r.IntN(lanes))
			readings += 2
			for _, it := range w.SetPaused(map[string]Pause{d: {Since: time.Now()}}, readings-1) {
				w.Settled(1)
				w.put(it.Destination, it.Retry, it.Due, 1)
			}
			w.SetPaused(nil, readings)
		case k <= 5:
			if slot := w.begin(); slot != nil {
				active = append(active, slot)
				break
			}
			if len(active) == 0 {
				w.sleep()
			}
			time.Sleep(backlogPeriod)
			synctest.Wait()
			w.fetch()
		case len(active) > 0:
			i := r.IntN(len(active))
			slot := active[i]
			active = slices.Delete(active, i, i+1)
			switch r.IntN(6) {
			case 0:
				w.fail(slot, time.Duration(r.IntN(60))*time.Second, r.IntN(2) == 0)
			case 1:
				w.end(slot, NoAttempt)
				w.put(slot.Item.Destination, slot.Retry, slot.Due, 1)
			default:
				w.end(slot, Answered)
				left--
			}
		}
		w.check()
	}
	if w.shares.bytes != 0 {
		t.Errorf("%d bytes are held in the end", w.shares.bytes)
	}
}

// Retries keep their schedule behind 100,000 fresh deliveries, while the destination fails
// and while it answers.
func TestRetriesAreNotHidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 64, 16, 1<<20)
		defer w.Close()
		w.put("crm", false, time.Now().Add(-time.Hour), 100_000)
		for range 10 { // they open the breaker
			w.fetch()
			w.fail(w.begin(), time.Hour, false)
		}
		for i := range 20 {
			w.put("crm", true, time.Now().Add(time.Duration(i+1)*10*time.Second), 1)
		}
		for i := range 20 {
			due := w.store["crm"][1][0]
			time.Sleep(time.Until(due))
			slot := w.next()
			for !slot.Retry { // a probe may have begun just before
				w.fail(slot, 10*time.Hour, false)
				time.Sleep(retrySpace)
				slot = w.next()
			}
			if late := time.Since(due); late > 2*retrySpace {
				t.Errorf("retry %d is attempted %v late", i, late)
			}
			w.fail(slot, 10*time.Hour, false)
		}
	})
}

// next fetches and begins the next attempt, however long that takes.
func (w *world) next() *Slot {
	for {
		w.fetch()
		if slot := w.begin(); slot != nil {
			return slot
		}
		if !w.sleep() {
			w.t.Fatal("nothing is to be fetched later")
		}
	}
}

// sleep waits until something is to be fetched that could not be before. It returns false
// if there is nothing.
func (w *world) sleep() bool {
	w.mu.Lock()
	var at time.Time
	if len(w.places.later) > 0 {
		at = w.places.later[0].at
	}
	w.mu.Unlock()
	time.Sleep(time.Until(at))
	return !at.IsZero()
}

// While both are due each kind has half of the room.
func TestRetriesAndFreshDeliveriesShareTheRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 64, 16, 1<<20)
		defer w.Close()
		w.put("crm", true, time.Now().Add(-time.Hour), 10_000)
		w.put("crm", false, time.Now(), 10_000)
		n := [2]int{}
		for range 1000 {
			slot := w.next()
			n[index(slot.Retry)]++
			w.end(slot, Answered)
		}
		if n[0] < 400 || n[1] < 400 {
			t.Errorf("%d fresh deliveries and %d retries were attempted", n[0], n[1])
		}
	})
}

// What waits for a destination that fails without a break lapses after a retry window, and
// no earlier.
func TestFreshDeliveriesLapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 64, 16, 1<<20)
		defer w.Close()
		w.put("crm", false, time.Now(), 1000)
		begin := time.Now()
		attempted, lapsed := 0, 0
		for attempted+lapsed < 1000 {
			_, gone := w.fetch()
			if lapsed += len(gone); len(gone) > 0 && time.Since(begin) < window {
				t.Fatalf("%d lapse after %v", len(gone), time.Since(begin))
			}
			if slot := w.begin(); slot != nil {
				attempted++
				w.fail(slot, 24*time.Hour, false)
			}
			if attempted+lapsed < 1000 {
				w.sleep()
			}
		}
		if took := time.Since(begin); took > window+lastProbe || lapsed < 300 {
			t.Errorf("%d have lapsed after %v, %d were attempted", lapsed, took, attempted)
		}
	})
}

// A put that the scheduler is told of while a fetch goes on is not forgotten.
func TestWhatIsNotedDuringAFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4, 4, 1<<20)
		defer w.Close()
		w.put("crm", false, time.Now(), 1)
		plan, _, _ := w.Plan(nil)
		w.Note("crm", time.Now(), time.Time{})
		w.Fetched(plan, nil) // the fetch has seen nothing
		if plan, _, _ := w.Plan(nil); len(plan) != 1 {
			t.Errorf("%d queues are planned after it", len(plan))
		}
	})
}

// A delivery that succeeds costs the scheduler no memory.
func TestAllocations(t *testing.T) {
	w := newWorld(t, 64, 64, 1<<20)
	defer w.Close()
	w.run.workers++ // the test is one
	slot := new(Slot)
	w.Note("crm", time.Now(), time.Time{})
	var plan []Want
	items := []Item{{Destination: "crm", Size: 1}}
	round := func() {
		now := time.Now()
		w.Note("crm", now, time.Time{})
		plan, _, _ = w.Plan(plan[:0])
		items[0].Due = now
		w.Fetched(plan, items)
		w.Next(slot, Answered)
		w.Settled(1)
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(1000, round); n != 0 {
		t.Errorf("%v allocations for each delivery", n)
	}
}

// A lane that nothing waits for is dropped after a while, unless its rate has to be
// remembered.
func TestIdleLanesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 64, 64, 1<<20)
		defer w.Close()
		for i := range 1000 {
			w.put(fmt.Sprint("lane", i), false, time.Now(), 1)
			w.fetch()
			w.end(w.begin(), Answered)
		}
		w.put("later", true, time.Now().Add(time.Hour), 1)
		w.put("slow", false, time.Now(), 1)
		w.fetch()
		slot := w.begin()
		w.Use(slot.Lane, Limits{Slots: 1, Interval: 30 * time.Minute, Burst: 1})
		slot.Lane.rate.take(time.Now())
		w.end(slot, Answered)
		count := func(wait time.Duration) int {
			time.Sleep(wait)
			w.fetch()
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.lanes.byID)
		}
		if n := count(idleLane - time.Second); n != 1002 {
			t.Errorf("%d lanes before it", n)
		}
		if n := count(2 * time.Second); n != 2 {
			t.Errorf("%d lanes after it", n)
		}
		if n := count(31*time.Minute + 2*idleLane); n != 1 {
			t.Errorf("%d lanes after half an hour", n)
		}
		if n := count(time.Hour); n != 1 || w.lanes.byID["later"] == nil {
			t.Errorf("%d lanes after an hour", n)
		}
	})
}

func TestFewIdleWorkersAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *Scheduler
		w := newWorld(t, 500, 500, 1<<20)
		w.run.start = func() {
			go func() { // ended by Close
				var slot Slot
				for s.Next(&slot, Answered) {
					time.Sleep(time.Second)
				}
			}()
		}
		s = w.Scheduler
		w.put("crm", false, time.Now(), 2000)
		w.fetch()
		w.mu.Lock()
		l := w.lanes.byID["crm"]
		w.shares.setStanding(l, proven)
		l.slots = 500
		w.places.update(l, time.Now())
		w.mu.Unlock()
		w.fetch()
		synctest.Wait()
		if active, _ := w.Load(); active != 500 {
			t.Errorf("%d active", active)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		w.mu.Lock()
		if w.run.workers != maxIdle || w.run.idle != maxIdle {
			t.Errorf("%d workers, %d idle after it", w.run.workers, w.run.idle)
		}
		w.mu.Unlock()
		w.Close()
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.run.workers != 0 {
			t.Errorf("%d workers after Close", w.run.workers)
		}
	})
}

func TestFifo(t *testing.T) {
	var q fifo[int]
	next, want := 0, 0
	r := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		if r.IntN(2) == 0 || q.len() == 0 {
			q.push(next)
			next++
		} else if got := q.pop(); got != want {
			t.Fatalf("pop() = %d, want %d", got, want)
		} else {
			want++
		}
		if q.len() != next-want {
			t.Fatalf("len() = %d, want %d", q.len(), next-want)
		}
	}
}

// BenchmarkLane prints the heap that a lane takes: one that something waits for in the
// store, and one that is idle and not yet dropped.
func BenchmarkLane(b *testing.B) {
	const n = 10_000
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for b.Loop() {
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprint("lane", i)
		}
		for _, kind := range []string{"idle", "waiting"} {
			w := newWorld(nil, 1024, 64, 64<<20)
			before := heap()
			for _, name := range names {
				due := time.Now()
				if kind == "waiting" {
					due = due.Add(time.Hour)
				}
				w.Note(name, due, time.Time{})
				if kind == "idle" {
					plan, _, _ := w.Plan(nil)
					w.Fetched(plan, nil)
				}
			}
			b.ReportMetric((heap()-before)/n, kind+"-B")
			w.Close()
		}
	}
	b.ReportMetric(0, "ns/op")
}
