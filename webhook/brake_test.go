package webhook

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

func TestBrakeAdapts(t *testing.T) {
	least := max(runtime.GOMAXPROCS(0)/2, 1)
	b := brake{bound: 1000, most: 1000}
	for range 60 {
		b.adapt(longDelay + 1)
	}
	if b.bound != least {
		t.Errorf("bound is %d after 60 long delays, want %d", b.bound, least)
	}
	for range 100 {
		b.adapt(0)
	}
	if b.bound != least {
		t.Errorf("bound is %d after short delays, though nothing has waited for it", b.bound)
	}
	b.adapt(longDelay + 1)
	for i := range 100 {
		b.tight = true
		b.adapt(longDelay)
		if want := least + (i+1)/4; b.bound != want {
			t.Fatalf("bound is %d after %d short delays, want %d", b.bound, i+1, want)
		}
	}
	b.most = b.bound
	for range 100 {
		b.tight = true
		b.adapt(0)
	}
	if b.bound != b.most {
		t.Errorf("bound is %d, more than %d", b.bound, b.most)
	}
}

func TestBrakeCountsAttemptsForAWhile(t *testing.T) {
	now := time.Now().Truncate(brakePeriod)
	b := brake{bound: 3, most: 1000, lane: new(lane), until: now.Add(time.Hour)}
	left := func(want int) {
		t.Helper()
		if n := b.left(now); n != want {
			t.Errorf("left is %d, want %d", n, want)
		}
	}
	first := b.begin(now)
	now = now.Add(brakePeriod)
	second, third := b.begin(now), b.begin(now)
	left(0)
	if !b.tight {
		t.Error("it was not noted that there was nothing left")
	}
	b.end(second)
	left(1)
	b.end(0) // was not told of
	left(1)
	now = now.Add(brakePeriod)
	left(2) // the first is not counted any more
	b.end(first)
	left(2)
	b.end(third)
	left(3)
	b.begin(now)
	now = now.Add(2 * brakePeriod)
	left(3)
	now = b.until
	left(b.most)
}

// The brake is on while deliveries come that have not waited, but not for what
// their own lane is behind with.
func TestBrakeIsOnWhileOthersAreFresh(t *testing.T) {
	now := time.Now()
	fresh, late := Delivery{Due: now.Add(-lateAfter)}, Delivery{Due: now.Add(-lateAfter - 1)}
	a, z, failing := &lane{id: "a"}, &lane{id: "z"}, &lane{id: "failing", standing: doubtful}
	for _, tt := range []struct {
		name string
		note func(b *brake)
		on   bool
	}{
		{"nothing came", func(*brake) {}, false},
		{"a fresh one", func(b *brake) { b.note(a, &fresh, now) }, true},
		{"a late one", func(b *brake) { b.note(a, &late, now) }, false},
		{"of another lane a late one", func(b *brake) { b.note(a, &fresh, now); b.note(z, &late, now) }, true},
		{"of the same lane a late one", func(b *brake) { b.note(a, &fresh, now); b.note(a, &late, now) }, false},
		{"both lanes fall behind", func(b *brake) {
			b.note(a, &fresh, now)
			b.note(z, &fresh, now)
			b.note(a, &late, now)
			b.note(z, &late, now)
		}, false},
		{"long ago", func(b *brake) { b.note(a, &fresh, now.Add(-brakeFor)) }, false},
		{"a lane that fails", func(b *brake) { b.note(failing, &fresh, now) }, false},
	} {
		var b brake
		tt.note(&b)
		if b.on(now) != tt.on {
			t.Errorf("%s: on = %v", tt.name, !tt.on)
		}
	}
}

// attempts has d's workers attempt for took each, and counts them by lane.
func attempts(d *dispatcher, took func(lane string) time.Duration) (started map[string]int) {
	started = make(map[string]int)
	d.start = func() {
		go func() { // ended by close
			for v := d.next(turn{}, noAttempt); v.lane != nil; v = d.next(v, answered) {
				d.mu.Lock()
				started[v.lane.id]++
				d.mu.Unlock()
				time.Sleep(took(v.lane.id))
			}
		}()
	}
	return started
}

func TestDispatchHoldsBacklogsBack(t *testing.T) {
	const waiting = 5000
	for _, tt := range []struct {
		name        string
		takes       time.Duration // an attempt of the backlog
		hangs       bool          // another backlog does
		fresh       bool          // something fresh came
		least, most int           // attempts of the backlog in 100 ms, with a bound of 2
	}{
		{"quick answers", 100 * time.Microsecond, false, true, 1990, 2010},
		{"slow answers", 20 * time.Millisecond, false, true, 195, 320},
		{"beside one that hangs", 100 * time.Microsecond, true, true, 1300, 2010},
		{"nothing fresh", 100 * time.Microsecond, false, false, waiting, waiting},
	} {
		synctest.Test(t, func(t *testing.T) {
			d, _ := newTestDispatcher(1000, 64)
			started := attempts(d, func(lane string) time.Duration {
				if lane == "hangs" {
					return time.Minute
				}
				return tt.takes
			})
			d.brake.bound = 2
			now := time.Now()
			put := func(name string, n int, due time.Time) {
				ds := deliveries(name, n)
				for i := range ds {
					ds[i].Due = due
				}
				d.mu.Lock()
				l := d.lane(name, now)
				d.setStanding(l, proven)
				l.slots = 64
				d.mu.Unlock()
				d.add(ds, n+1, now, now)
			}
			if tt.fresh {
				put("fresh", 1, now)
			}
			if tt.hangs {
				put("hangs", 64, now.Add(-time.Hour))
			}
			put("backlog", waiting, now.Add(-time.Hour))
			time.Sleep(100 * time.Millisecond)
			d.mu.Lock()
			if n := started["backlog"]; n < tt.least || n > tt.most {
				t.Errorf("%s: %d attempts of the backlog in 100 ms, want %d to %d", tt.name, n, tt.least, tt.most)
			}
			d.mu.Unlock()
			if tt.fresh {
				put("fresh", 50, time.Now())
				synctest.Wait()
				d.mu.Lock()
				if n := started["fresh"]; n != 51 {
					t.Errorf("%s: %d of 51 fresh ones were attempted at once", tt.name, n)
				}
				d.mu.Unlock()
			}
			time.Sleep(time.Minute)
			d.mu.Lock()
			if n := started["backlog"]; n != waiting || d.braked.len() > 0 {
				t.Errorf("%s: %d of %d were attempted in the end", tt.name, n, waiting)
			}
			d.mu.Unlock()
			d.close()
			time.Sleep(time.Hour)
		})
	}
}

// While a backlog drains beside what is fresh, settlements gather for a while,
// but not at the stop.
func TestSettlerPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &settleTimes{}
		s := newSettler(q, nil, func([]Settlement, []*account, bool) {}, func() bool { return true })
		stop, ended := make(chan struct{}), make(chan error)
		go func() { ended <- s.run(t.Context(), stop) }() // waited for below
		begin := time.Now()
		for range 25 {
			s.giveBack(new(Delivery))
			time.Sleep(time.Millisecond)
		}
		close(stop)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if len(q.at) != 4 || !q.at[1].Equal(begin.Add(settlePause)) || !q.at[3].Equal(begin.Add(25*time.Millisecond)) {
			t.Errorf("commits at %v, began at %v", q.at, begin)
		}
	})
}

// settleTimes notes when something is settled.
type settleTimes struct {
	Queue
	at []time.Time
}

func (q *settleTimes) Settle(context.Context, ...Settlement) error {
	q.at = append(q.at, time.Now())
	return nil
}
