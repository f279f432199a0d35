package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/soak"
)

const forever = 1 << 60 * time.Nanosecond

// near fails the test if got differs from want by more than the share tolerance of want.
func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance*math.Abs(want) {
		t.Errorf("%s: got %.4g, want %.4g within %.0f %%", what, got, want, tolerance*100)
	}
}

// serve gives a lane Poisson arrivals until length, in steps, and calls each after every step.
func serve(l *lane, rate float64, length, step time.Duration, each func()) {
	for now := l.told; l.told < length; now = l.told {
		l.arrive(now, now+step, poisson(rate*step.Seconds(), l.random))
		l.told = now + step
		l.advance(l.told, math.MaxInt)
		each()
	}
}

// steady returns a lane whose receiver has exponential answer times. The lane never gives up a
// delivery.
func steady(slots int, mean time.Duration) *lane {
	l := newLane(slots, receiver{latency: latency{mean: mean}}, rand.New(rand.NewPCG(1, uint64(slots))))
	l.timeout, l.slots = forever, slots
	return l
}

// In queueing theory a lane with c slots is a queue with Poisson arrivals, exponential service
// times and c servers. Erlang's C formula gives the mean waiting time.
func TestWaitingTimeIsThatOfErlangC(t *testing.T) {
	soak.Only(t, "scaling")
	for _, tt := range []struct {
		slots int
		use   float64
	}{{1, 0.5}, {1, 0.8}, {2, 0.7}, {4, 0.8}, {4, 0.9}, {16, 0.9}, {64, 0.9}} {
		const mean = 100 * time.Millisecond
		rate := tt.use * float64(tt.slots) / mean.Seconds()
		l := steady(tt.slots, mean)
		serve(l, rate, time.Duration(1e6/rate*float64(time.Second)), time.Second, func() { l.slots = tt.slots })
		got := l.waited.Seconds() / float64(l.begun)
		want := erlangC(tt.slots, tt.use*float64(tt.slots)) * mean.Seconds() / (float64(tt.slots) * (1 - tt.use))
		near(t, fmt.Sprintf("%d slots at %.0f %%: seconds of waiting", tt.slots, tt.use*100), got, want, 0.05)
	}
}

// erlangC returns the probability that an arrival waits, with c servers and an offered load of a.
func erlangC(c int, a float64) float64 {
	term, sum := 1.0, 0.0
	for k := range c {
		sum += term
		term *= a / float64(k+1)
	}
	last := term / (1 - a/float64(c))
	return last / (sum + last)
}

// The number of attempts in flight is the rate times the mean latency, for each distribution.
func TestInFlightIsThatOfLittlesLaw(t *testing.T) {
	for _, lat := range []latency{{mean: 300 * time.Millisecond}, {median: 60 * time.Millisecond, sigma: 1}, {median: 200 * time.Millisecond}} {
		const rate = 50
		l := newLane(1000, receiver{latency: lat}, rand.New(rand.NewPCG(1, 1)))
		l.slots, l.timeout = 1000, forever
		sum, n := 0, 0
		serve(l, rate, 2*time.Hour, 100*time.Millisecond, func() {
			l.slots = 1000
			sum += len(l.active)
			n++
		})
		near(t, fmt.Sprintf("in flight at %v", lat), float64(sum)/float64(n), rate*lat.average().Seconds(), 0.02)
	}
}

// The time to drain a backlog is its size divided by the spare rate of the slots. The model gives
// the same time delivery by delivery and as a flow.
func TestBacklogDrainsAtWhatIsLeft(t *testing.T) {
	const slots, rate, backlog = 50, 300.0, 200_000
	lat := latency{median: 80 * time.Millisecond, sigma: 0.7}
	capacity := slots / lat.average().Seconds()
	want := backlog / (capacity - rate)
	for _, flow := range []bool{false, true} {
		l := newLane(slots, receiver{latency: lat}, rand.New(rand.NewPCG(1, 1)))
		l.slots = slots
		l.arrive(0, 1, backlog)
		flowed := 0
		now := time.Duration(0)
		for ; l.waiting > slots; now += step {
			l.arrive(now, now+step, poisson(rate, l.random))
			if flow {
				if n, ok := l.drain(now, now+step, math.MaxInt); ok {
					flowed += n
					continue
				}
			}
			l.advance(now+step, math.MaxInt)
		}
		near(t, fmt.Sprintf("flow %v: seconds", flow), now.Seconds(), want, 0.02)
		if flow != (flowed > backlog/2) {
			t.Errorf("flow %v: drain took %d deliveries, want most of them with a flow, and few without", flow, flowed)
		}
	}
}

// A lane begins at most as many attempts as its budget. It begins the others later.
func TestBudgetBoundsAttempts(t *testing.T) {
	l := newLane(64, receiver{latency: latency{median: time.Millisecond}}, rand.New(rand.NewPCG(1, 1)))
	l.arrive(0, 1, 1000)
	for now := step; now <= 10*step; now += step {
		if n := l.advance(now, 100); n != 100 {
			t.Fatalf("got %d attempts in the step to %v, want 100", n, now)
		}
	}
	if l.advance(11*step, 100); l.done != 1000 || l.backlog() != 0 {
		t.Errorf("got %d done, %d waiting; want 1000, 0", l.done, l.backlog())
	}
}

// A lane loses no delivery: each arrival is done, dead, waiting or in flight.
func TestLaneAddsUp(t *testing.T) {
	for _, length := range []time.Duration{time.Minute, time.Hour, 6 * time.Hour} {
		for _, hangs := range []bool{false, true} {
			r := receiver{latency: latency{median: 60 * time.Millisecond, sigma: 1}, failures: 0.01, from: time.Minute, to: time.Minute + length, hangs: hangs}
			l := newLane(16, r, rand.New(rand.NewPCG(1, 1)))
			arrived := 0
			for now := time.Duration(0); now < 12*time.Hour; now += step {
				n := poisson(5, l.random)
				arrived += n
				l.arrive(now, now+step, n)
				l.advance(now+step, math.MaxInt)
				if sum := l.done + l.dead + l.backlog() + len(l.active); sum != arrived {
					t.Fatalf("outage of %v, at %v: %d arrived, want the sum of %d done, %d dead, %d waiting, %d in flight", length, now, arrived, l.done, l.dead, l.backlog(), len(l.active))
				}
			}
			if dies := length > l.window; dies != (l.dead > 0) {
				t.Errorf("outage of %v: got %d dead, want some: %v", length, l.dead, dies)
			}
		}
	}
}

// TestRules compares the constants of a lane with those in the source of the forwarder and
// its scheduler.
func TestRules(t *testing.T) {
	theirs := constants(t, filepath.Join("..", "..", "webhook"))
	maps.Copy(theirs, constants(t, filepath.Join("..", "..", "webhook", "internal", "schedule")))
	ours := constants(t, ".")
	for _, name := range []string{
		"firstSlots", "laneRest", "firstProbe", "lastProbe", "retrySpace", "openPoints", "timeoutPoints", "firstWait", "longWait",
	} {
		if ours[name] == "" || ours[name] != theirs[name] {
			t.Errorf("constant %s is %q, want %q as in the forwarder", name, ours[name], theirs[name])
		}
	}
	l := newLane(1, receiver{}, nil)
	for name, got := range map[string]time.Duration{"DefaultTimeout": l.timeout, "DefaultWindow": l.window} {
		want := map[string]time.Duration{"5 * time.Second": 5 * time.Second, "4 * time.Hour": 4 * time.Hour}[theirs[name]]
		if got != want {
			t.Errorf("a lane has %v for %s, want %s", got, name, theirs[name])
		}
	}
}

// constants returns the source text of the values of all constants and variables of the package in
// a folder, by name.
func constants(t *testing.T, folder string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.ValueSpec); ok && len(s.Values) == len(s.Names) {
				for i, id := range s.Names {
					var b strings.Builder
					if err := printer.Fprint(&b, fset, s.Values[i]); err != nil {
						t.Fatal(err)
					}
					found[id.Name] = b.String()
				}
			}
			return true
		})
	}
	return found
}
