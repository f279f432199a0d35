package webhook

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/soak"
)

// newTestDispatcher returns a dispatcher whose workers are the test's own.
func newTestDispatcher(maxActive, limit int) (d *dispatcher, wakes *int) {
	wakes = new(int)
	known := func(string) *target { return &target{limit: limit} }
	return newDispatcher(maxActive, DefaultMaxBytesInFlight, DefaultWindow, known, func() {}, func() { *wakes++ }), wakes
}

func deliveries(destination string, n int) []Delivery {
	ds := make([]Delivery, n)
	for i := range ds {
		ds[i] = Delivery{Destination: destination, ID: fmt.Sprint(destination, i), Body: []byte("{}")}
	}
	return ds
}

// lease does what Forwarder.lease does with a store that has have[lane]
// deliveries due.
func (d *dispatcher) lease(have map[string]int, now time.Time) int {
	return d.leaseDue(have, now, now)
}

// leaseDue is lease of what is due since a time.
func (d *dispatcher) leaseDue(have map[string]int, now, due time.Time) int {
	n := d.capacity(now, 0)
	var ds []Delivery
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if have[name] == 0 {
			continue // the store does not ask for its room
		}
		k := min(have[name], d.room(name, now), n-len(ds))
		for _, v := range deliveries(name, k) {
			v.Due = due
			ds = append(ds, v)
		}
		have[name] -= k
	}
	if n > 0 {
		back, _ := d.add(ds, n, now, now)
		for _, v := range back {
			have[v.Destination]++
			d.wake()
		}
	}
	return len(ds)
}

func TestDispatchTakesTurns(t *testing.T) {
	d, _ := newTestDispatcher(100, 4)
	d.lease(map[string]int{"a": 100}, time.Time{})
	d.lease(map[string]int{"b": 2}, time.Time{})
	d.lease(map[string]int{"c": 3}, time.Time{})
	var got []string
	for range 4 + 2 + 3 {
		v := d.next(turn{}, noAttempt)
		got = append(got, v.ID)
	}
	want := []string{"a0", "b0", "c0", "a1", "b1", "c1", "a2", "c2", "a3"}
	if !slices.Equal(got, want) {
		t.Errorf("order is %v, want %v", got, want)
	}
	if d.run.len() != 0 {
		t.Error("a lane at its limit is in the run queue")
	}
}

func TestDispatchLeavesAParkedLaneAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := newTestDispatcher(100, 6)
		d.lease(map[string]int{"a": 8, "b": 1}, time.Time{})
		now := time.Now()
		for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
			want *= time.Second
			vs, wait := d.park(d.lane("a", time.Now()), now, HoldLookup)
			if wait != want || i == 0 && len(vs) != 4 {
				t.Errorf("parking %d: for %v, with %d ready", i, wait, len(vs))
			}
			if r := d.room("a", now.Add(wait-1)); r != 0 {
				t.Errorf("a parked lane has room for %d", r)
			}
			now = now.Add(wait)
			if r := d.room("a", now); r != 1 {
				t.Errorf("after it the lane has room for %d", r)
			}
		}
		if _, wait := d.park(d.lane("a", time.Now()), now, HoldUnknown); wait != parkFor {
			t.Errorf("parking for %v", wait)
		}
		d.use(d.lane("a", time.Now()), &compiled{target: &target{limit: 6}}, now)
		if r := d.room("a", now); r != firstSlots {
			t.Errorf("a lane in use again has room for %d", r)
		}
		if v := d.next(turn{}, noAttempt); v.lane.id != "b" || v.ID != "b0" {
			t.Errorf("next is %s of lane %s", v.ID, v.lane.id)
		}
		if d.ready != 0 || d.run.len() != 0 {
			t.Errorf("%d ready, %d lanes to run", d.ready, d.run.len())
		}
	})
}

// Whatever happens in whatever order, limits hold, nothing is lost, and as long
// as the store has something that there is room for, a lease is asked for.
func TestDispatchNeverStalls(t *testing.T) {
	for seed := range soak.Seeds(t, 300) {
		synctest.Test(t, func(t *testing.T) { testDispatchNeverStalls(t, seed) })
	}
}

func testDispatchNeverStalls(t *testing.T, seed uint64) {
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	SeedJitter(seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	maxActive, limit := 1+rnd.IntN(8), 1+rnd.IntN(8)
	d, wakes := newTestDispatcher(maxActive, limit)
	d.maxBytes = 1 + rnd.Int64N(200)
	d.brake.bound = 1
	now := time.Now()
	have := make(map[string]int)
	total := 0
	for i := range 1 + rnd.IntN(5) {
		have[fmt.Sprint("lane", i)] = rnd.IntN(40)
	}
	for _, n := range have {
		total += n
	}
	var active []turn
	got := 0
	*wakes = 1
	for steps := 0; got < total || len(active) > 0; steps++ {
		if steps > 100_000 {
			t.Fatalf("stalled at %d of %d with %d active, %d ready, %v in the store", got, total, len(active), d.ready, have)
		}
		switch k := rnd.IntN(3); {
		case k == 0 && !d.again.IsZero() && now.Before(d.again) && rnd.IntN(10) == 0:
			time.Sleep(d.again.Sub(now))
			now = time.Now()
			*wakes++
		case k == 0 && *wakes > 0:
			*wakes = 0
			d.leaseDue(have, now, now.Add(-time.Duration(rnd.IntN(2))*time.Second))
		case k == 0 && d.lanesIn(&d.braked) > 0:
			time.Sleep(brakePeriod)
			synctest.Wait()
		case k == 1 && len(active) < maxActive && d.lanesIn(&d.run) > 0:
			v := d.next(turn{}, noAttempt)
			if v.Delivery == nil {
				t.Fatal("next returned nothing")
			}
			active = append(active, v)
			got++
			if l := v.lane; l.active > limit || d.active > maxActive {
				t.Fatalf("%d of %d active in the lane, %d of %d in all", l.active, limit, d.active, maxActive)
			}
		case k == 2 && len(active) > 0:
			i := rnd.IntN(len(active))
			p := pace(rnd.IntN(4))
			if p == failing || p == timedOut {
				s := postpone(active[i].Delivery, now.Add(time.Minute))
				back, _ := d.fail(active[i].lane, p, &s, now)
				for _, v := range back {
					have[v.Destination]++
				}
				if len(back) > 0 {
					*wakes++ // by the store
				}
			}
			d.mu.Lock()
			d.release(active[i], p)
			d.mu.Unlock()
			active = slices.Delete(active, i, i+1)
		}
		d.check(t)
	}
}

// lanesIn returns how many lanes are in a queue.
func (d *dispatcher) lanesIn(q *fifo[*lane]) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return q.len()
}

// check counts again what the dispatcher keeps count of.
func (d *dispatcher) check(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	var active, ready, busy int
	var held [standings]int
	for _, l := range d.lanes {
		n := l.active + l.ready.len()
		active += l.active
		ready += l.ready.len()
		held[l.standing] += n
		if n > 0 {
			busy++
		}
	}
	if active != d.active || ready != d.ready || busy != d.busy || held != d.held || (busy == 0) != (d.bytes == 0) {
		t.Fatalf("%d active, %d ready, %d busy, %v held; the dispatcher has counted %d, %d, %d, %v and %d bytes",
			active, ready, busy, held, d.active, d.ready, d.busy, d.held, d.bytes)
	}
}

func TestDispatchKeepsFewIdleWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d *dispatcher
		d = newDispatcher(500, DefaultMaxBytesInFlight, DefaultWindow, func(string) *target { return &target{limit: 500} }, func() {
			go func() { // ended by close
				for v := d.next(turn{}, noAttempt); v.lane != nil; v = d.next(v, answered) {
					time.Sleep(time.Second)
				}
			}()
		}, func() {})
		l := d.lane("a", time.Now())
		d.setStanding(l, proven)
		l.slots = 500
		d.lease(map[string]int{"a": 500}, time.Now())
		synctest.Wait()
		if workers, _, active := d.counts(); workers != 500 || active != 500 {
			t.Errorf("%d workers, %d active", workers, active)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if workers, idle, _ := d.counts(); workers != maxIdle || idle != maxIdle {
			t.Errorf("%d workers, %d idle after it", workers, idle)
		}
		d.close()
		synctest.Wait()
		if workers, _, _ := d.counts(); workers != 0 {
			t.Errorf("%d workers after close", workers)
		}
	})
}

func (d *dispatcher) counts() (workers, idle, active int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.workers, d.idle, d.active
}

func TestFifo(t *testing.T) {
	var q fifo[int]
	next, want := 0, 0
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		if rnd.IntN(2) == 0 || q.len() == 0 {
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

// A delivery that succeeds costs the dispatcher and the settler no memory.
func TestDispatchAllocations(t *testing.T) {
	d, _ := newTestDispatcher(64, 64)
	ds := deliveries("a", 64)
	now := time.Now()
	d.add(ds, 128, now, now)
	v := d.next(turn{}, noAttempt)
	if n := testing.AllocsPerRun(1000, func() {
		d.add(ds[:1], 128, now, now)
		v = d.next(v, answered)
	}); n != 0 {
		t.Errorf("%v allocations for each delivery", n)
	}
}

// A lane that nothing is due for is dropped after a while, unless its rate has
// to be remembered.
func TestDispatchForgetsIdleLanes(t *testing.T) {
	d, _ := newTestDispatcher(64, 64)
	now := time.Now()
	for i := range 1000 {
		d.lease(map[string]int{fmt.Sprint("lane", i): 1}, now)
		v := d.next(turn{}, noAttempt)
		d.mu.Lock()
		d.release(v, answered)
		d.mu.Unlock()
		now = now.Add(time.Millisecond)
	}
	slow := d.lane("slow", now)
	slow.rate = bucket{interval: time.Hour, burst: 1}
	slow.rate.take(now)
	d.lease(map[string]int{"busy": 1}, now)
	held := d.next(turn{}, noAttempt)
	d.capacity(now.Add(idleLane-2*time.Second), 0)
	if n := len(d.lanes); n != 1002 {
		t.Errorf("%d lanes before it", n)
	}
	d.capacity(now.Add(idleLane-time.Millisecond/2), 0)
	if n := len(d.lanes); n != 2 {
		t.Errorf("%d lanes after it", n)
	}
	d.capacity(now.Add(30*time.Minute), 0)
	if d.lanes["slow"] == nil || d.lanes["busy"] == nil || len(d.lanes) != 2 {
		t.Errorf("%d lanes after half an hour", len(d.lanes))
	}
	d.mu.Lock()
	d.release(held, answered)
	d.mu.Unlock()
	d.capacity(now.Add(2*time.Hour), 0)
	if n := len(d.lanes); n != 0 || d.touched.first != nil || d.touched.last != nil {
		t.Errorf("%d lanes after two hours", n)
	}
}

// BenchmarkLane prints the heap of a lane that is idle, not yet dropped.
func BenchmarkLane(b *testing.B) {
	const n = 10_000
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for b.Loop() {
		known := &target{limit: 64}
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprint("lane", i)
		}
		ds := deliveries("", 1)
		before := heap()
		d := newDispatcher(64, DefaultMaxBytesInFlight, DefaultWindow, func(string) *target { return known }, func() {}, func() {})
		now := time.Now()
		var v turn
		for _, name := range names {
			ds[0].Destination = name
			d.room(name, now)
			d.add(ds, 1, now, now)
			v = d.next(v, answered)
		}
		b.ReportMetric((heap()-before)/n, "B/lane")
		runtime.KeepAlive(d)
	}
	b.ReportMetric(0, "ns/op")
}
