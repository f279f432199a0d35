// Command scaling does the arithmetic of docs/scaling.md, checks it by simulating a day,
// and prints the tables of that page. For an hour of the day one destination of a hundred
// is down. The command shares no code with the forwarder, because a simulation that ran
// the forwarder's code would repeat its mistakes.
//
//	go run ./soak/scaling              # up to a billion calls a day: a second or two
//	go run ./soak/scaling -all         # the hundred billion too: half a minute
//	go run ./soak/scaling -calls 5e8   # a load of your own; see -help
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

// The loads of docs/scaling.md.
var (
	billion = load{
		name: "1 billion", calls: 1e9, fanOut: 1, destinations: 10_000, exponent: 1, most: 5000, peak: 1.8, body: 450,
		latency: latency{median: 60 * time.Millisecond, sigma: 1}, failures: 0.001,
	}
	hundredBillion = func() load {
		l := billion
		l.name, l.calls, l.destinations = "100 billion", 1e11, 1_000_000
		return l
	}()
)

// coresOf is how many cores a node has in the plans of docs/scaling.md.
func coresOf(l *load, s *store) int {
	switch {
	case l.calls < 1e10 || !s.server:
		return 4
	case s.owned:
		return 2
	}
	return 8
}

// worstHour returns an outage of an hour around noon, the peak of the day.
func worstHour(first int, hangs bool) outage {
	return outage{every: 100, first: first, at: 11*time.Hour + 30*time.Minute, length: time.Hour, hangs: hangs}
}

// day returns a simulated day of p with the outage o.
func day(p *plan, o outage) *scenario {
	return &scenario{plan: p, outage: o, length: 24 * time.Hour, seed: 1}
}

// named returns a copy of p with another name for its column.
func named(p *plan, name string) *plan {
	n, l := *p, *p.load
	l.name = name
	n.load = &l
	return &n
}

// plans returns the plans of docs/scaling.md for a load, one for each store.
func plans(l *load) []*plan {
	var ps []*plan
	for _, s := range stores {
		ps = append(ps, newPlan(l, s, coresOf(l, s)))
	}
	return ps
}

// tables returns the tables of docs/scaling.md except largeTable.
func tables() page {
	ps := plans(&billion)
	var days []*result
	for _, p := range ps {
		days = append(days, day(p, worstHour(50, false)).run())
	}
	days = append(days,
		day(named(ps[0], "they hang"), worstHour(50, true)).run(),
		day(named(ps[0], "the busiest is one of them"), worstHour(0, false)).run())
	defaults := named(ps[0], "default settings")
	defaults.maxConcurrent, defaults.maxInFlight = 64, 1024
	days = append(days, day(defaults, worstHour(50, false)).run())
	return page{
		"costs":   costsTable(),
		"plans":   plansTable(append(ps, plans(&hundredBillion)...)),
		"billion": resultsTable(days),
		"backlog": backlogTable(days, 11*time.Hour+30*time.Minute, 13*time.Hour+30*time.Minute, 15*time.Minute),
	}
}

// largeTable returns the table of a hundred billion calls a day.
func largeTable() string {
	var days []*result
	for _, p := range plans(&hundredBillion) {
		days = append(days, day(p, worstHour(0, false)).run())
	}
	return resultsTable(days)
}

// A page has the tables of docs/scaling.md by name.
type page map[string]string

func main() {
	l := billion
	l.name = "this load"
	all := flag.Bool("all", false, "print all tables of docs/scaling.md")
	calls := flag.Float64("calls", 0, "calls a day, for a plan and a day of your own load")
	flag.Float64Var(&l.fanOut, "fan-out", l.fanOut, "destinations of a call")
	flag.IntVar(&l.destinations, "destinations", l.destinations, "how many there are")
	flag.Float64Var(&l.exponent, "zipf", l.exponent, "exponent of Zipf's law for their rates; 0 has them equal")
	flag.Float64Var(&l.most, "most", l.most, "calls a second of the busiest, at most; 0: as Zipf's law has it")
	flag.Float64Var(&l.peak, "peak", l.peak, "rate at the peak of the day, to its mean; up to 2")
	flag.IntVar(&l.body, "body", l.body, "bytes of a body")
	flag.DurationVar(&l.latency.median, "latency", l.latency.median, "median time that receivers take")
	flag.Float64Var(&l.latency.sigma, "sigma", l.latency.sigma, "standard deviation of its logarithm")
	flag.Float64Var(&l.failures, "failures", l.failures, "share of attempts that fail while all is well")
	cores := flag.Int("cores", 4, "cores of a node")
	every := flag.Int("down", 100, "one destination in so many is down for the outage; the busiest is the first")
	hangs := flag.Bool("hang", false, "those that are down do not answer, in place of 503")
	length := flag.Duration("outage", time.Hour, "how long that lasts, from 11:30 on")
	seed := flag.Uint64("seed", 1, "of all that is random")
	flag.Parse()
	if *calls == 0 {
		p := tables()
		if *all {
			p["hundred billion"] = largeTable()
		}
		write(os.Stdout, p)
		return
	}
	l.calls = *calls
	for _, wrong := range []struct {
		is   bool
		what string
	}{
		{!(l.calls > 0 && l.calls <= 1e13), "-calls: not between 0 and 1e13"},
		{!(l.fanOut > 0 && l.fanOut <= 1000), "-fan-out: not between 0 and 1,000"},
		{l.destinations < 1 || l.destinations > 1e8, "-destinations: not between 1 and 100,000,000"},
		{!(l.exponent >= 0 && l.exponent <= 10), "-zipf: not between 0 and 10"},
		{!(l.most == 0 || l.most*float64(l.destinations) >= l.calls*l.fanOut/86_400), "-most: all destinations together would take less than -calls"},
		{!(l.peak >= 1 && l.peak <= 2), "-peak: not between 1 and 2"},
		{l.body < 1 || l.body > 1<<20, "-body: not between 1 and 1,048,576"},
		{l.latency.median <= 0 || !(l.latency.sigma >= 0 && l.latency.sigma <= 3), "-latency: not above 0; or -sigma: not between 0 and 3"},
		{!(l.failures >= 0 && l.failures < 1), "-failures: not between 0 and 1"},
		{*cores < 1 || *every < 1, "-cores or -down: less than 1"},
		{*length < 0 || *length > 12*time.Hour, "-outage: not between 0 and 12 hours"},
	} {
		if wrong.is {
			fmt.Fprintln(os.Stderr, "scaling: "+wrong.what)
			os.Exit(2)
		}
	}
	var own []*plan
	var days []*result
	for _, s := range stores {
		p := newPlan(&l, s, *cores)
		o := worstHour(0, *hangs)
		o.every, o.length = *every, *length
		d := day(p, o)
		d.seed = *seed
		own = append(own, p)
		days = append(days, d.run())
	}
	write(os.Stdout, page{
		"plans": plansTable(own), "simulation": resultsTable(days),
		"backlog": backlogTable(days, 11*time.Hour, 14*time.Hour, 15*time.Minute),
	})
}

// write writes the tables of p.
func write(w io.Writer, p page) {
	for _, name := range []string{"costs", "plans", "billion", "simulation", "backlog", "hundred billion"} {
		if t, ok := p[name]; ok {
			fmt.Fprintf(w, "%s\n\n%s\n", name, t)
		}
	}
}
