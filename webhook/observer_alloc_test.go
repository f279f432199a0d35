//go:build !race

package webhook

import (
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook/internal/schedule"
	"github.com/hookferry/analytics/webhook/store"
)

type nullObserver struct{}

func (nullObserver) Accepted(Accepted)   {}
func (nullObserver) Attempted(Attempted) {}
func (nullObserver) Ended(Record)        {}

// Counting a request and calling the Observer allocates nothing, with and without an Observer.
func TestObservingAllocatesNothing(t *testing.T) {
	r := &recorder{config: &Config{}}
	s := &settler{recorder: r, schedule: schedule.New[laneState, *Delivery](schedule.Config{}, batchPart), wake: store.NewSignal()}
	d := &Delivery{Destination: "crm", ID: "m1", Type: "track"}
	res := &result{attempt: Attempt{Took: Millis(time.Millisecond), Try: 1}}
	ss := []store.Settlement{{Verdict: store.Done, Delivery: Delivery{Destination: "crm", ID: "m1"}}}
	run := func(name string) {
		if n := testing.AllocsPerRun(100, func() {
			r.requested(d, nil, res, time.Time{})
			s.stored(ss, false)
		}); n != 0 {
			t.Errorf("%s: got %v allocations, want 0", name, n)
		}
	}
	run("without an Observer")
	r.config.Observers = []Observer{nullObserver{}}
	run("with an Observer")
}
