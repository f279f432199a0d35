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
func (nullObserver) Ended(Ended)         {}

// Counting a request and calling the Observer allocates nothing, with and without an Observer.
func TestObservingAllocatesNothing(t *testing.T) {
	f := &Forwarder{schedule: schedule.New(schedule.Config{})}
	f.ledger.config, f.settler = &f.config, &settler{Forwarder: f}
	d := &Delivery{Destination: "crm", ID: "m1", Type: "track"}
	r := &result{attempt: Attempt{Took: time.Millisecond, Try: 1}}
	ss := []store.Settlement{{Verdict: store.Done, Delivery: Delivery{Destination: "crm", ID: "m1"}}}
	f.news = store.NewSignal()
	run := func(name string) {
		if n := testing.AllocsPerRun(100, func() {
			f.requested(d, r, time.Time{})
			f.settler.stored(ss)
		}); n != 0 {
			t.Errorf("%s: got %v allocations, want 0", name, n)
		}
	}
	run("without an Observer")
	f.config.Observer = nullObserver{}
	run("with an Observer")
}
