package webhook

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A fakeSettles is a Store that records settlements. A settlement for which refuse returns an error
// is not stored.
type fakeSettles struct {
	Store
	mu     sync.Mutex // guards the fields below
	refuse func(s *store.Settlement) error
	late   error          // returned although all is stored
	calls  []int          // number of settlements in each call of Settle
	stored map[string]int // how often a settlement was stored, by delivery ID
}

func (q *fakeSettles) Settle(ctx context.Context, ss []store.Settlement) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calls = append(q.calls, len(ss))
	if q.stored == nil {
		q.stored = make(map[string]int)
	}
	for i := range ss {
		if q.refuse != nil {
			if err := q.refuse(&ss[i]); err != nil {
				return i, err
			}
		}
		q.stored[ss[i].Delivery.ID]++
	}
	return len(ss), q.late
}

// seen returns copies of calls and stored.
func (q *fakeSettles) seen() (calls []int, stored map[string]int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.calls), maps.Clone(q.stored)
}

func settled(id string) store.Settlement {
	return store.Settlement{Verdict: store.Retry, Delivery: Delivery{Destination: "crm", ID: id}}
}

func (q *fakeSettles) Now() time.Time { return time.Now() }

// newTestSettler returns a settler, and functions that start and stop it. stop ends it in the way
// that Forwarder.Run does, and returns the result of run.
func newTestSettler(t *testing.T, q *fakeSettles) (s *settler, start func(), stop func() error) {
	f, err := New(Config{Store: q, Destinations: []Destination{{ID: "crm", Endpoints: []Endpoint{{URL: "http://crm.example/"}}}}})
	must(t, err)
	s = f.settler
	stopped, ended := make(chan struct{}), make(chan error, 1)
	start = func() {
		go func() { ended <- s.run(t.Context(), stopped) }() // stop waits for it
	}
	return s, start, func() error {
		close(stopped)
		return <-ended
	}
}

// The settlements that gather while the store commits are stored by one further call. When all is
// stored, the settler wakes the fetcher that was told to wait.
func TestSettlementsGatherDuringACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &fakeSettles{}
		s, start, stop := newTestSettler(t, q)
		q.refuse = func(d *store.Settlement) error {
			if d.Delivery.ID == "first" {
				time.Sleep(time.Second)
			}
			return nil
		}
		start()
		s.add(settled("first"))
		synctest.Wait()
		for i := range 100 {
			s.add(settled(fmt.Sprint(i)))
		}
		if s.behind(100) || !s.behind(99) {
			t.Error("behind is not true exactly beyond the limit of 99 waiting settlements")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if calls, _ := q.seen(); fmt.Sprint(calls) != "[1 100]" {
			t.Errorf("got calls of %v settlements, want [1 100]", calls)
		}
		if s.behind(0) || len(s.wake) == 0 {
			t.Errorf("behind = %v, woken = %v; want false and true", s.behind(0), len(s.wake) > 0)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// If the store refuses some settlements, the settler stores all others at once. It retries the
// refused ones until the store accepts them.
func TestRefusedSettlementDelaysNoOther(t *testing.T) {
	for _, bad := range [][]int{{0}, {99}, {50}, {0, 99}, {10, 20, 70}} {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				refused := make(map[string]bool)
				for _, i := range bad {
					refused[fmt.Sprint(i)] = true
				}
				q := &fakeSettles{refuse: func(s *store.Settlement) error {
					if refused[s.Delivery.ID] {
						return errors.New("refused")
					}
					return nil
				}}
				s, start, stop := newTestSettler(t, q)
				start()
				for i := range 100 {
					s.add(settled(fmt.Sprint(i)))
				}
				time.Sleep(10 * busyPause)
				synctest.Wait()
				if calls, stored := q.seen(); len(stored) != 100-len(bad) {
					t.Fatalf("got %d of %d settlements stored at once, in %d calls, want all", len(stored), 100-len(bad), len(calls))
				}
				s.add(settled("later"))
				time.Sleep(busyPause)
				synctest.Wait()
				before, stored := q.seen()
				if stored["later"] != 1 {
					t.Error("a settlement that was added later is not stored, want it stored at once")
				}
				if s.behind(0) {
					t.Error("behind = true although the store works, want false")
				}
				time.Sleep(time.Hour)
				if calls, _ := q.seen(); len(calls)-len(before) < 500 || len(calls)-len(before) > 20_000 {
					t.Errorf("got %d calls of Settle in an hour of refusals, want 500 to 20,000", len(calls)-len(before))
				}
				q.mu.Lock()
				clear(refused)
				q.mu.Unlock()
				time.Sleep(longestPause)
				synctest.Wait()
				_, stored = q.seen()
				for i := range 100 {
					if n := stored[fmt.Sprint(i)]; n != 1 {
						t.Errorf("settlement %d was stored %d times, want once", i, n)
					}
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A store that has stored everything, but returns an error all the same, does no harm.
func TestErrorAfterTheLastSettlement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &fakeSettles{late: errors.New("late")}
		s, start, stop := newTestSettler(t, q)
		start()
		s.add(settled("a"))
		synctest.Wait()
		if _, stored := q.seen(); stored["a"] != 1 || s.behind(0) {
			t.Errorf("stored %d times, behind = %v; want once, false", stored["a"], s.behind(0))
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// The settler retries a settlement that the store has refused, even if further settlements come so
// often that the settler never waits.
func TestRefusedSettlementIsRetriedUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusals := 0
		q := &fakeSettles{refuse: func(s *store.Settlement) error {
			if s.Delivery.ID == "refused" && refusals == 0 {
				refusals++
				return errors.New("refused")
			}
			return nil
		}}
		s, start, stop := newTestSettler(t, q)
		start()
		s.add(settled("refused"))
		for i := range 1000 {
			time.Sleep(10 * time.Millisecond)
			s.add(settled(fmt.Sprint(i)))
		}
		synctest.Wait()
		if _, stored := q.seen(); stored["refused"] != 1 || len(stored) != 1001 {
			t.Errorf("after 10 s of load %d of 1001 settlements are stored, the refused one %d times; want all once", len(stored), stored["refused"])
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// While the store fails, the settler backs off. When the store recovers, the settler stores
// everything.
func TestSettlementsAreRetriedUntilTheStoreTakesThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("no room on the disk")
		q := &fakeSettles{refuse: func(*store.Settlement) error { return failed }}
		s, start, stop := newTestSettler(t, q)
		start()
		for i := range 1000 {
			s.add(settled(fmt.Sprint(i)))
		}
		time.Sleep(time.Hour)
		if calls, _ := q.seen(); len(calls) > 3000 {
			t.Errorf("got %d calls in an hour of failure, want at most 3000", len(calls))
		}
		if !s.behind(10_000) {
			t.Error("behind = false although the store fails, want true")
		}
		q.mu.Lock()
		q.refuse = nil
		q.mu.Unlock()
		time.Sleep(2 * longestPause)
		synctest.Wait()
		_, stored := q.seen()
		if s.behind(0) || len(stored) != 1000 {
			t.Errorf("behind = %v with %d stored, want false with 1000", s.behind(0), len(stored))
		}
		q.mu.Lock()
		q.refuse = func(*store.Settlement) error { return failed }
		q.mu.Unlock()
		s.add(settled("last"))
		synctest.Wait()
		if err := stop(); !errors.Is(err, failed) {
			t.Errorf("run() = %v, want the error of the store", err)
		}
	})
}
