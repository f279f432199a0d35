package schedule

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/internal/soakenv"
)

// An outage is a case of TestOutage: one destination answers 503 for some time, beside others that
// work. All take the same time to answer.
type outage struct {
	length time.Duration
	rate   int           // deliveries a second for the destination that is down
	slots  int           // Limits.Slots of each destination
	others int           // healthy destinations, each with 10 deliveries a second
	takes  time.Duration // of a request
}

// use is the share of its slots that the destination needs while all is well.
func (o *outage) use() float64 {
	return float64(o.rate) * o.takes.Seconds() / float64(o.slots)
}

// drain is how long the backlog takes by the arithmetic of docs/scaling.md.
func (o *outage) drain() time.Duration {
	return time.Duration(float64(o.length) * o.use() / (1 - o.use()))
}

// An outageResult is what run has seen.
type outageResult struct {
	failed  int           // attempts while the destination was down
	backlog int           // deliveries that waited for it at the end of the outage
	drained time.Duration // from the end of the outage until none was late
	waited  time.Duration // the longest time from a put for another destination to its attempt
}

// An event is something that happens at a time of the simulation.
type event struct {
	at time.Time
	do func()
}

// run plays the outage with the real scheduler, in the time of the bubble.
func (o *outage) run(t *testing.T) (r outageResult) {
	w := newTestScheduler(t, 1024, o.slots, 1<<30)
	defer w.Close()
	const down = "down"
	begin := time.Now().Add(time.Minute) // until then the destinations become known
	end := begin.Add(o.length)
	last := end.Add(2*o.drain() + 5*time.Minute)

	var events []event // in the order of their times
	add := func(at time.Time, do func()) {
		i, _ := slices.BinarySearchFunc(events, at, func(e event, at time.Time) int {
			if e.at.After(at) {
				return 1
			}
			return -1
		})
		events = slices.Insert(events, i, event{at, do})
	}
	arrive := func(destination string, every, first time.Duration) {
		var next func()
		next = func() {
			now := time.Now()
			w.put(destination, false, now, 1)
			if now.Before(last) {
				add(now.Add(every), next)
			}
		}
		add(time.Now().Add(first), next)
	}
	for i := range o.others {
		arrive(fmt.Sprint(i), time.Second/10, time.Duration(i)*time.Millisecond)
	}
	arrive(down, time.Second/time.Duration(o.rate), 0)

	isDown := func(now time.Time) bool { return !now.Before(begin) && now.Before(end) }
	attempt := func(slot *Slot[int, int]) {
		now := time.Now()
		wait := now.Sub(slot.Item.Due)
		switch {
		case slot.Item.Destination != down:
			r.waited = max(r.waited, wait)
		case now.After(end) && wait > time.Second:
			r.drained = now.Sub(end)
		}
		add(now.Add(o.takes), func() {
			switch {
			case slot.Item.Destination != down || !isDown(now):
				w.end(slot, true)
			case slot.Item.Retry:
				r.failed++
				w.fail(slot, 5*time.Minute, false)
			default:
				r.failed++
				w.fail(slot, time.Second, false)
			}
		})
	}
	add(end, func() { r.backlog = len(w.store[down][0]) + len(w.store[down][1]) })
	for len(events) > 0 {
		next := events[0].at
		w.mu.Lock()
		if later := w.places.later; len(later) > 0 && later[0].at.Before(next) {
			next = later[0].at
		}
		w.mu.Unlock()
		time.Sleep(time.Until(next))
		synctest.Wait() // for the timer of the lanes that were held back
		for len(events) > 0 && !events[0].at.After(time.Now()) {
			do := events[0].do
			events = events[1:]
			do()
		}
		w.fetch()
		for slot := w.begin(); slot != nil; slot = w.begin() {
			attempt(slot)
			w.fetch()
		}
	}
	return r
}

// A destination that is down costs a bounded number of attempts, whatever waits for it. When it is
// back, its backlog drains in the time that docs/scaling.md computes from the share of its slots
// that it needs. No delivery to another destination waits meanwhile. A soak logs the figures of
// BENCHMARKS.md, those of an outage of an hour: go run ./soak outage.
func TestOutage(t *testing.T) {
	outages := []outage{{length: 5 * time.Minute, rate: 20, slots: 4, others: 5, takes: 100 * time.Millisecond}}
	if soakenv.On() {
		outages = []outage{
			{length: time.Hour, rate: 10, slots: 4, others: 20, takes: 100 * time.Millisecond},
			{length: time.Hour, rate: 20, slots: 4, others: 20, takes: 100 * time.Millisecond},
			{length: 20 * time.Minute, rate: 30, slots: 4, others: 20, takes: 100 * time.Millisecond},
		}
	}
	for _, o := range outages {
		t.Run(fmt.Sprintf("use=%.2f", o.use()), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := o.run(t)
				t.Logf("down for %v: %d attempts failed, %d deliveries waited; drained after %v, by arithmetic %v; others waited %v at most",
					o.length, r.failed, r.backlog, r.drained.Round(time.Second), o.drain().Round(time.Second), r.waited)
				if most := int(o.length / (4 * time.Second)); r.failed > most {
					t.Errorf("%d attempts failed, want at most %d", r.failed, most)
				}
				if want := int(o.length.Seconds()) * o.rate; r.backlog < want*9/10 || r.backlog > want {
					t.Errorf("%d deliveries waited at the end of the outage, want about %d", r.backlog, want)
				}
				if r.drained < o.drain()*9/10 || r.drained > o.drain()*12/10+lastProbe {
					t.Errorf("the backlog drained in %v, want about %v", r.drained, o.drain())
				}
				if r.waited > 10*time.Millisecond {
					t.Errorf("a delivery to another destination waited for %v, want none", r.waited)
				}
			})
		})
	}
}
