package schedule

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/soakenv"
)

const window = 4 * time.Hour

// A testScheduler is a scheduler whose store is some lists of times. It starts no workers: the test
// begins and ends the attempts.
type testScheduler struct {
	*Scheduler[int, int]
	t     *testing.T
	wakes int
	limit int                        // Limits.Slots of all destinations
	store map[string]*[2][]time.Time // fresh deliveries and retries that are not claimed, in order
	plan  []Want[int, int]
	most  uint64 // how many lanes a single Plan has looked at, at most
}

func newTestScheduler(t *testing.T, slots, limit int, bytes int64) *testScheduler {
	w := &testScheduler{t: t, limit: limit, store: make(map[string]*[2][]time.Time)}
	w.Scheduler = New[int, int](Config{
		Slots: slots, Bytes: bytes, Window: window,
		Start:  func() {},
		Wake:   func() { w.wakes++ },
		Now:    time.Now,
		Jitter: half,
	}, func(int) int64 { return 1 })
	w.Open()
	return w
}

// put stores n deliveries that are due at due, and tells the scheduler.
func (w *testScheduler) put(destination string, retries bool, due time.Time, n int) {
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

// looks returns how often the scheduler has looked at a lane.
func (w *testScheduler) looks() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.places.looks
}

func index(retries bool) int {
	if retries {
		return 1
	}
	return 0
}

// fetch does what the forwarder does when the scheduler wakes it, until the scheduler plans no more
// fetches. It returns the fetched deliveries, and those that have lapsed.
func (w *testScheduler) fetch() (got, lapsed []Item[int]) {
	for {
		before := w.looks()
		plan, _, again := w.Plan(w.plan[:0])
		w.most = max(w.most, w.looks()-before)
		switch {
		case len(plan) > 0:
		case isDue(again, time.Now()):
			continue
		default:
			return got, lapsed
		}
		var items []Item[int]
		now := time.Now()
		for i := range plan {
			p := &plan[i]
			q := &w.store[p.Lane.ID][index(p.Retries)]
			for n := 0; n < p.Max && len(*q) > 0 && !(*q)[0].After(now); n++ {
				items = append(items, Item[int]{Destination: p.Lane.ID, Size: 1, Retry: p.Retries, Due: (*q)[0]})
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

// begin begins the next attempt. It returns nil if none may begin now.
func (w *testScheduler) begin() *Slot[int, int] {
	w.mu.Lock()
	some := false
	for _, q := range []*fifo[*Lane[int, int]]{&w.run.answers, &w.run.suspects} {
		some = some || slices.ContainsFunc(q.items[q.head:], func(l *Lane[int, int]) bool { return l.ready.len() > 0 })
	}
	none := !some || w.shares.active == w.config.Slots
	if !none {
		w.run.workers++ // one for each slot
	}
	w.mu.Unlock()
	if none {
		return nil
	}
	t := new(Slot[int, int])
	if !w.Next(t, false) {
		w.t.Fatal("Next = false, want a delivery")
	}
	if !t.Lane.known {
		w.Use(t.Lane, Limits{Slots: w.limit})
	}
	return t
}

// end ends an attempt.
func (w *testScheduler) end(t *Slot[int, int], answered bool) {
	w.mu.Lock()
	w.release(t, answered, w.config.Now())
	w.run.workers--
	w.mu.Unlock()
	w.Settled(t.Item.Size)
}

// fail ends an attempt that failed. The delivery is due again after wait.
func (w *testScheduler) fail(t *Slot[int, int], wait time.Duration, timedOut bool) {
	due := time.Now().Add(wait)
	back, _ := w.Fail(t.Lane, Failure{TimedOut: timedOut, Due: due})
	for _, it := range back {
		w.Settled(it.Size)
		w.put(it.Destination, it.Retry, it.Due, 1)
	}
	w.end(t, false)
	w.put(t.Item.Destination, true, due, 1)
}

// check compares the counters of the scheduler with a new count of its lanes.
func (w *testScheduler) check() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var active, reserved, busy int
	var held [standings]int
	places := make(map[place]int)
	for _, l := range w.lanes {
		active += l.active
		reserved += l.reserved
		held[l.standing] += l.holds()
		places[l.place]++
		if l.holds() > 0 {
			busy++
		}
		if l.active > l.limit {
			w.t.Fatalf("got %d attempts in a lane, want at most %d", l.active, l.limit)
		}
		if q := w.places.later; l.place == inLater && (l.pos >= len(q) || q[l.pos] != l) {
			w.t.Fatalf("lane %s is not at its position %d of the place inLater, want it there", l.ID, l.pos)
		}
	}
	if active != w.shares.active || reserved != w.shares.reserved || busy != w.shares.busy || held != w.shares.held || active > w.config.Slots {
		w.t.Fatalf("%d active, %d reserved, %d busy, %v held; the counters say %d, %d, %d, %v",
			active, reserved, busy, held, w.shares.active, w.shares.reserved, w.shares.busy, w.shares.held)
	}
	if n := len(w.places.later); places[inLater] != n {
		w.t.Fatalf("%d lanes are in the place inLater, want the length of its queue, %d", places[inLater], n)
	}
	for _, st := range []standing{unproven, doubtful} {
		if n := w.places.open(st); n > 0 && !w.places.full && w.wakes == 0 {
			w.t.Fatalf("%d lanes of the standing %d may fetch and Wake was not called, want a call", n, st)
		}
	}
	for st, q := range w.places.due {
		p, n := placeOf(standing(st)), 0
		var before *Lane[int, int]
		for l := q.first; l != nil; before, l = l, l.after {
			if n++; l.place != p || l.before != before {
				w.t.Fatalf("lane %s of the place %d is behind %p in the queue of the place %d, want %p", l.ID, l.place, l.before, p, before)
			}
		}
		if n != places[p] || n != q.n || q.last != before {
			w.t.Fatalf("%d lanes are in the place %d; the queue has %d and the length %d", places[p], p, n, q.n)
		}
	}
}

// Puts, fetches, pauses and outcomes come in a random order. The scheduler keeps its limits, and
// attempts every delivery until it succeeds.
func TestNothingStalls(t *testing.T) {
	for seed := range soakenv.Seeds(t, 200) {
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
	w := newTestScheduler(t, 1+r.IntN(8), 1+r.IntN(8), 1+r.Int64N(200))
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
	var active []*Slot[int, int]
	version := uint64(0) // of the pauses
	for steps := 0; left > 0 || len(active) > 0; steps++ {
		if steps > 200_000 {
			t.Fatalf("after 200,000 steps %d deliveries are left, %d active, of %+v; want none", left, len(active), w.store)
		}
		switch k := r.IntN(8); {
		case k == 0 && steps < 200:
			put()
		case k == 1 && steps < 200: // a delivery that Put keeps claimed
			if d := fmt.Sprint(r.IntN(lanes)); w.Reserve(d, 1) {
				if r.IntN(4) == 0 {
					w.Start(Item[int]{Destination: d, Size: 1})
				} else if w.Start(Item[int]{Destination: d, Claim: 1, Size: 1, Due: time.Now()}) {
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
			version += 2
			for _, it := range w.SetPaused(map[string]Pause{d: {Since: time.Now()}}, version-1) {
				w.Settled(1)
				w.put(it.Destination, it.Retry, it.Due, 1)
			}
			w.SetPaused(nil, version)
		case k <= 5:
			if slot := w.begin(); slot != nil {
				active = append(active, slot)
				break
			}
			if len(active) == 0 {
				w.sleep()
			}
			time.Sleep(w.run.backlog.pause())
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
				w.end(slot, false)
				w.put(slot.Item.Destination, slot.Item.Retry, slot.Item.Due, 1)
			default:
				w.end(slot, true)
				left--
			}
		}
		w.check()
	}
	if w.shares.bytes != 0 {
		t.Errorf("%d bytes are counted in the end, want 0", w.shares.bytes)
	}
}

// Retries keep their schedule while 100,000 fresh deliveries wait, and while the destination fails.
func TestRetriesKeepScheduleBehindBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScheduler(t, 64, 16, 1<<20)
		defer w.Close()
		w.put("crm", false, time.Now().Add(-time.Hour), 100_000)
		for range 10 { // ten failures open the breaker
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
			for !slot.Item.Retry { // a probe may have begun just before
				w.fail(slot, 10*time.Hour, false)
				time.Sleep(retrySpace)
				slot = w.next()
			}
			if late := time.Since(due); late > 2*retrySpace {
				t.Errorf("retry %d is attempted %v late, want at most %v", i, late, 2*retrySpace)
			}
			w.fail(slot, 10*time.Hour, false)
		}
	})
}

// next begins the next attempt. It waits until one may begin, and fetches meanwhile.
func (w *testScheduler) next() *Slot[int, int] {
	for {
		w.fetch()
		if slot := w.begin(); slot != nil {
			return slot
		}
		if !w.sleep() {
			w.t.Fatal("no lane has anything to fetch later, want one")
		}
	}
}

// sleep waits until the first lane of later has something to fetch. It returns false if there is no
// such lane.
func (w *testScheduler) sleep() bool {
	w.mu.Lock()
	var at time.Time
	if later := w.places.later; len(later) > 0 {
		at = later[0].at
	}
	w.mu.Unlock()
	time.Sleep(time.Until(at))
	return !at.IsZero()
}

// While fresh deliveries and retries are due, each kind gets about half of the attempts.
func TestRetriesAndFreshDeliveriesShareAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScheduler(t, 64, 16, 1<<20)
		defer w.Close()
		w.put("crm", true, time.Now().Add(-time.Hour), 10_000)
		w.put("crm", false, time.Now(), 10_000)
		n := [2]int{}
		for range 1000 {
			slot := w.next()
			n[index(slot.Item.Retry)]++
			w.end(slot, true)
		}
		if n[0] < 400 || n[1] < 400 {
			t.Errorf("attempted %d fresh deliveries and %d retries, want at least 400 of each", n[0], n[1])
		}
	})
}

// While fresh deliveries of another destination come, a backlog gets backlogRate attempts a second
// for each processor, and as many as arrive for it. Without them it gets as many as it can use.
func TestBacklogGivesWayToFreshDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScheduler(t, 64, 16, 1<<20)
		defer w.Close()
		const seconds, arriving = 2, 3000 // arriving each second
		most := (backlogRate*runtime.GOMAXPROCS(0) + arriving) * seconds
		w.put("old", false, time.Now().Add(-time.Hour), 2*most)
		n := make(map[string]int) // attempts by destination
		for end := time.Now().Add(seconds * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			w.put("new", false, time.Now(), 1)
			for range arriving / 1000 {
				w.put("old", false, time.Now(), 1)
			}
			w.fetch()
			for slot := w.begin(); slot != nil; slot = w.begin() {
				n[slot.Item.Destination]++
				w.end(slot, true)
				w.fetch()
			}
		}
		if n["old"] < most*9/10 || n["old"] > most*11/10 {
			t.Errorf("%d attempts of the backlog beside %d fresh deliveries, want about %d", n["old"], n["new"], most)
		}
		time.Sleep(backlogFor)
		begin := time.Now()
		for range most / 2 {
			w.end(w.next(), true)
		}
		if took := time.Since(begin); took > 0 {
			t.Errorf("%d attempts without fresh deliveries took %v, want 0", most/2, took)
		}
	})
}

// Fresh deliveries to a destination that fails all the time lapse after a retry window, and not
// earlier.
func TestFreshDeliveriesLapseAfterRetryWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScheduler(t, 64, 16, 1<<20)
		defer w.Close()
		w.put("crm", false, time.Now(), 1000)
		begin := time.Now()
		attempted, lapsed := 0, 0
		for attempted+lapsed < 1000 {
			_, gone := w.fetch()
			if lapsed += len(gone); len(gone) > 0 && time.Since(begin) < window {
				t.Fatalf("%d deliveries lapsed after %v, want none before %v", len(gone), time.Since(begin), window)
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
			t.Errorf("after %v %d have lapsed, %d were attempted; want at least 300 lapsed within %v", took, lapsed, attempted, window+lastProbe)
		}
	})
}

// If the scheduler learns of a put during a fetch that does not find the delivery, it plans another
// fetch.
func TestPutDuringFetchIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScheduler(t, 4, 4, 1<<20)
		defer w.Close()
		w.put("crm", false, time.Now(), 1)
		plan, _, _ := w.Plan(nil)
		w.Note("crm", time.Now(), time.Time{})
		w.Fetched(plan, nil) // the fetch found no delivery
		if plan, _, _ := w.Plan(nil); len(plan) != 1 {
			t.Errorf("after the fetch the plan has %d queues, want 1", len(plan))
		}
	})
}

// However many destinations fail, hang or are new, the scheduler looks at few lanes for each attempt,
// and at a bounded number of lanes in each Plan.
func TestLooksDoNotGrowWithLanes(t *testing.T) {
	const lanes = 100_000
	for _, tt := range []struct {
		name     string
		attempts int
		end      func(w *testScheduler, slot *Slot[int, int], due time.Time)
	}{
		{"failing", lanes + lanes/10, func(w *testScheduler, slot *Slot[int, int], due time.Time) { w.fail(slot, time.Until(due), false) }},
		{"hanging", lanes / 10, func(w *testScheduler, slot *Slot[int, int], due time.Time) {
			time.Sleep(5 * time.Second)
			w.fail(slot, time.Until(due), true)
		}},
		{"new", lanes, func(w *testScheduler, slot *Slot[int, int], _ time.Time) { w.end(slot, true) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestScheduler(t, 1024, 64, 1<<30)
				defer w.Close()
				for i := range lanes {
					w.put(fmt.Sprint(i), false, time.Now(), 1)
				}
				before := w.looks()
				if before != lanes {
					t.Errorf("the scheduler looked at %d lanes for %d puts, want one for each", before, lanes)
				}
				var active []*Slot[int, int]
				due := time.Now().Add(24 * time.Hour) // all retries are due at the same time
				for range tt.attempts {
					if w.wakes > 0 {
						w.wakes = 0
						w.fetch()
					}
					for slot := w.begin(); slot != nil; slot = w.begin() {
						active = append(active, slot)
					}
					if len(active) == 0 {
						time.Sleep(time.Until(due))
						due = due.Add(24 * time.Hour)
						active = append(active, w.next())
					}
					tt.end(w, active[0], due)
					active = active[1:]
				}
				if n := float64(w.looks()-before) / float64(tt.attempts); n > 12 {
					t.Errorf("the scheduler looked at %.1f lanes for each attempt, want at most 12", n)
				}
				if most := uint64(maxDue + 2*maxWants); w.most > most {
					t.Errorf("Plan looked at %d lanes, want at most %d", w.most, most)
				}
			})
		})
	}
}

// However often RecheckAll is called, it causes a bounded number of attempts each second: of one failing
// destination one, and of all suspended ones together one for each recheckSpace.
func TestRecheckAllSpacesAttempts(t *testing.T) {
	for _, tt := range []struct {
		name        string
		lanes       int
		end         func(w *testScheduler, slot *Slot[int, int])
		least, most int // attempts in five seconds
	}{
		{"one fails", 1, func(w *testScheduler, slot *Slot[int, int]) { w.fail(slot, 24*time.Hour, false) }, 4, 5},
		{"many are held", 8000, func(w *testScheduler, slot *Slot[int, int]) {
			w.Hold(slot, "disabled", false)
			w.end(slot, false)
			w.put(slot.Item.Destination, false, slot.Item.Due, 1)
		}, 4900, 5100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestScheduler(t, 1024, 64, 1<<30)
				defer w.Close()
				attempt := func() (n int) { // all that may be attempted now
					for w.fetch(); ; w.fetch() {
						slot := w.begin()
						if slot == nil {
							return n
						}
						tt.end(w, slot)
						n++
					}
				}
				for i := range tt.lanes {
					w.put(fmt.Sprint(i), false, time.Now(), 100/tt.lanes+1)
				}
				for tt.lanes == 1 && w.lanes["0"].breaker.probes < 6 { // the next probe is half a minute away
					attempt()
					time.Sleep(time.Second)
				}
				attempt()
				n := 0
				for i := range 500 {
					if i%20 == 0 {
						w.RecheckAll()
					}
					n += attempt()
					time.Sleep(10 * time.Millisecond)
				}
				if n < tt.least || n > tt.most {
					t.Errorf("%d attempts in five seconds with RecheckAll, want %d to %d", n, tt.least, tt.most)
				}
			})
		})
	}
}

// A delivery to a destination that answers is attempted at once, although deliveries to many new
// destinations are ready.
func TestNewDestinationsAreNotAheadOfOneThatAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScheduler(t, 64, 16, 1<<20)
		defer w.Close()
		w.put("crm", false, time.Now(), 1)
		w.end(w.next(), true)
		for i := range 30 {
			w.put(fmt.Sprint(i), false, time.Now(), 1)
		}
		w.fetch()
		w.put("crm", false, time.Now(), 3)
		w.fetch()
		var got []string
		for slot := w.begin(); slot != nil; slot = w.begin() {
			got = append(got, slot.Item.Destination)
		}
		if want := []string{"crm", "0", "crm", "1", "crm", "2", "3"}; len(got) != 33 || !slices.Equal(got[:len(want)], want) {
			t.Errorf("%d attempts began, of %v ..., want 33, of %v ...", len(got), got[:min(len(got), len(want))], want)
		}
	})
}

// The scheduler allocates nothing for a delivery that succeeds.
func TestSuccessfulDeliveryAllocatesNothing(t *testing.T) {
	w := newTestScheduler(t, 64, 64, 1<<20)
	defer w.Close()
	w.run.workers++ // the test acts as a worker
	slot := new(Slot[int, int])
	w.Note("crm", time.Now(), time.Time{})
	var plan []Want[int, int]
	items := []Item[int]{{Destination: "crm", Size: 1}}
	round := func() {
		now := time.Now()
		w.Note("crm", now, time.Time{})
		plan, _, _ = w.Plan(plan[:0])
		items[0].Due = now
		w.Fetched(plan, items)
		w.Next(slot, true)
		w.Settled(1)
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(1000, round); n != 0 {
		t.Errorf("got %v allocations for each delivery, want 0", n)
	}
}

// The scheduler drops a lane without deliveries after idleLane. It keeps the lane for longer if the
// destination's rate still limits it.
func TestIdleLanesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScheduler(t, 64, 64, 1<<20)
		defer w.Close()
		for i := range 1000 {
			w.put(fmt.Sprint("lane", i), false, time.Now(), 1)
			w.fetch()
			w.end(w.begin(), true)
		}
		w.put("later", true, time.Now().Add(time.Hour), 1)
		w.put("slow", false, time.Now(), 1)
		w.fetch()
		slot := w.begin()
		w.Use(slot.Lane, Limits{Slots: 1, Interval: 30 * time.Minute, Burst: 1})
		w.end(slot, true)
		count := func(wait time.Duration) int {
			time.Sleep(wait)
			w.fetch()
			w.Overdue(func(*Lane[int, int]) time.Duration { return time.Hour })
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.lanes)
		}
		if n := count(idleLane - time.Second); n != 1002 {
			t.Errorf("before idleLane got %d lanes, want 1002", n)
		}
		if n := count(2 * time.Second); n != 2 {
			t.Errorf("after idleLane got %d lanes, want 2", n)
		}
		if n := count(31*time.Minute + 2*idleLane); n != 1 {
			t.Errorf("after half an hour got %d lanes, want 1", n)
		}
		if n := count(time.Hour); n != 1 || w.lanes["later"] == nil {
			t.Errorf("after an hour got %d lanes, want only the lane later", n)
		}
	})
}

// After a burst the scheduler keeps maxIdle idle workers. Close ends them.
func TestFewIdleWorkersAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *Scheduler[int, int]
		w := newTestScheduler(t, 500, 500, 1<<20)
		w.config.Start = func() {
			go func() { // ended by Close
				var slot Slot[int, int]
				for s.Next(&slot, true) {
					time.Sleep(time.Second)
				}
			}()
		}
		s = w.Scheduler
		w.put("crm", false, time.Now(), 2000)
		w.fetch()
		l := w.lanes["crm"]
		w.Use(l, Limits{Slots: 500})
		w.mu.Lock()
		w.shares.setStanding(l, proven)
		l.slots = 500
		w.places.update(l, time.Now())
		w.mu.Unlock()
		w.fetch()
		synctest.Wait()
		w.Loads(nil, func(_ string, active, _ int) {
			if active != 500 {
				t.Errorf("got %d active, want 500", active)
			}
		})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		w.mu.Lock()
		if w.run.workers != maxIdle || w.run.idle != maxIdle {
			t.Errorf("after the burst got %d workers, %d idle; want %d, all idle", w.run.workers, w.run.idle, maxIdle)
		}
		w.mu.Unlock()
		w.Close()
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.run.workers != 0 {
			t.Errorf("after Close got %d workers, want 0", w.run.workers)
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

// BenchmarkLane reports the heap of a lane: one with a delivery that waits in the store, and one
// that is idle and not yet dropped.
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
			w := newTestScheduler(nil, 1024, 64, 64<<20)
			before := heap()
			for _, name := range names {
				due := time.Now()
				if kind == "waiting" {
					due = due.Add(time.Hour)
				}
				w.Note(name, due, time.Time{})
				if kind == "idle" {
					plan, _, _ := w.Plan(nil)
					plan[0].Next = time.Time{}
					w.Fetched(plan, nil)
				}
			}
			b.ReportMetric((heap()-before)/n, kind+"-B")
			w.Close()
		}
	}
	b.ReportMetric(0, "ns/op")
}
