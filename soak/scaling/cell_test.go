package main

import (
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/webhook"
)

// small returns a plan of one cell with 100 destinations, and a constant rate.
func small(rate float64) *plan {
	l := &load{
		name: "small", calls: rate * 86_400, fanOut: 1, destinations: 100, exponent: 1, peak: 1, body: 450,
		latency: latency{median: time.Second, sigma: 0.3}, failures: 0.01,
	}
	return &plan{load: l, store: stores[0], cells: 1, nodes: 1, cores: 2, most: stores[0].most, maxConcurrent: 64, maxInFlight: 1024}
}

func newCell(p *plan) *cell {
	return &cell{scenario: &scenario{plan: p}, random: rand.New(rand.NewPCG(1, 1))}
}

// A cell uses the processor time that its calls and attempts cost. By Little's law the number of
// slots in use is the rate times the latency.
func TestUseIsRateTimesCost(t *testing.T) {
	p := small(5000)
	p.latency = latency{median: 50 * time.Millisecond}
	c := newCell(p)
	c.length = time.Hour
	for _, r := range p.rates() {
		c.add(part{r / 2}, false)
	}
	c.run()
	var mean usage
	for _, m := range c.result.minutes {
		mean.cpu += m.cpu / 60
		mean.store += m.store / 60
		mean.inFlight += m.inFlight / 60
	}
	const rate = 2500
	attempts := rate * (1 + p.failures)
	near(t, "processors", mean.cpu, (rate*p.store.accept.Seconds()+attempts*p.store.deliver.Seconds())/2, 0.01)
	near(t, "store", mean.store, attempts/p.store.most, 0.01)
	near(t, "in flight", mean.inFlight, attempts*0.05, 0.01)
}

// The time to drain a backlog is its size divided by the spare capacity, whatever bounds the
// capacity.
func TestFlowDrainsAtWhatIsLeft(t *testing.T) {
	for _, tt := range []struct {
		name     string
		bound    func(p *plan)
		capacity float64
	}{
		{"store", func(p *plan) { p.most = 2000 }, 2000},
		{"slots", func(p *plan) { p.maxInFlight = 100 }, 100 / 0.05},
		{"processors", func(p *plan) {
			s := *p.store
			s.accept, s.deliver = 0, time.Millisecond
			p.store = &s
		}, 2000},
	} {
		p := small(0)
		p.failures, p.latency = 0, latency{median: 50 * time.Millisecond}
		tt.bound(p)
		c := newCell(p)
		c.rate, c.backlog = 1500, 1e6
		now := time.Duration(0)
		for ; c.backlog > 0; now += step {
			c.advance(now, now+step)
		}
		near(t, tt.name+": seconds", now.Seconds(), 1e6/(tt.capacity-1500), 0.02)
	}
}

// If a destination gets more deliveries than its slots can attempt, the others wait. They delay no
// other destination.
func TestNarrowPartFallsBehindAlone(t *testing.T) {
	p := small(0)
	p.failures, p.latency, p.maxConcurrent = 0, latency{median: 100 * time.Millisecond}, 10
	c := newCell(p)
	c.length = time.Hour
	c.add(part{130}, false)
	c.add(part{20}, false)
	c.run()
	last := c.result.minutes[59]
	near(t, "waiting", last.waiting, (130-100)*3600, 0.01)
	if c.backlog > 0 || c.result.overloaded > 0 {
		t.Errorf("%.0f deliveries of others wait, the cell is overloaded for %.0f seconds; want 0, 0", c.backlog, c.result.overloaded)
	}
}

// The same seed gives the same result, and another seed gives another.
func TestSeedDecides(t *testing.T) {
	run := func(seed uint64) []float64 {
		s := day(small(100), worstHour(0, false))
		s.seed = seed
		return s.run().waiting
	}
	if d := cmp.Diff(run(1), run(1)); d != "" {
		t.Errorf("the same seed (-first +second):\n%s", d)
	}
	if cmp.Equal(run(1), run(2)) {
		t.Error("seeds 1 and 2 gave the same result, want different ones")
	}
}

// compareCell compares a cell of 100 destinations with a webhook.Forwarder in virtual time. The
// busiest destination is down for an hour. The test compares how many deliveries wait, and when the
// backlog is drained. Each side draws its own arrivals. With some seeds they differ too much for a
// comparison, so the seed is fixed, and only the forwarder's jitter is random.
func compareCell(t *testing.T, hangs bool) {
	p := small(3)
	p.maxConcurrent = 2
	s := &scenario{plan: p, outage: outage{every: 100, at: time.Minute, length: time.Hour, hangs: hangs}, length: 100 * time.Minute, seed: 1}
	model := s.run()

	var destinations []webhook.Destination
	var receivers []receiver
	random := rand.New(rand.NewPCG(5, 6))
	rates := p.rates()
	for i := range rates {
		r := receiver{latency: p.latency, failures: p.failures, hangs: hangs}
		if i == 0 {
			r.from, r.to = s.outage.at, s.outage.at+s.outage.length
		}
		receivers = append(receivers, r)
		destinations = append(destinations, webhook.Destination{ID: string(rune('a'+i/10)) + string(rune('a'+i%10)), MaxConcurrent: p.maxConcurrent})
	}
	var real []int
	forward(t, destinations, receivers, func(f *forwarding) {
		next := time.Duration(0)
		for now := time.Minute; now <= s.length; now += time.Minute {
			for ; next <= now; next += time.Duration(random.ExpFloat64() / 3 * float64(time.Second)) {
				f.until(next)
				f.event(destinations[pick(rates, random)].ID)
			}
			f.until(now)
			synctest.Wait()
			real = append(real, f.sample().waiting-f.Stats().InFlight)
		}
	})

	most := 0.0
	for _, n := range real {
		most = max(most, float64(n))
	}
	near(t, "most deliveries that wait", model.peak, most, 0.08)
	over := func(waiting func(i int) float64) (minutes int) {
		for minutes = 61; waiting(minutes) > most/50; minutes++ {
		}
		return minutes - 60
	}
	got := over(func(i int) float64 { return model.waiting[i] })
	want := over(func(i int) float64 { return float64(real[i]) })
	if math.Abs(float64(got-want)) > 4 {
		t.Errorf("hangs %v: the cell drains its backlog in %d minutes, want about the %d of the forwarder", hangs, got, want)
	}
	for i := range real {
		if d := math.Abs(model.waiting[i] - float64(real[i])); d > 0.1*most {
			t.Errorf("hangs %v, minute %d: %.0f wait in the cell, want about the %d of the forwarder", hangs, i+1, model.waiting[i], real[i])
		}
	}
	t.Logf("hangs %v: at most %.0f wait in the cell, %.0f in the forwarder; for %d and %d minutes after", hangs, model.peak, most, got, want)
}

// pick returns a random index, with a probability in proportion to its weight.
func pick(weights []float64, random *rand.Rand) int {
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	at := random.Float64() * sum
	for i, w := range weights {
		if at -= w; at < 0 {
			return i
		}
	}
	return len(weights) - 1
}
