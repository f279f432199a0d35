package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// A table is a Markdown table with a column for each thing that is compared.
type table struct {
	head string
	rows []string
}

// row adds a row with the label what, and with a cell for each value, which say formats. The
// first row is the head of the table.
func row[T any](t *table, what string, values []T, say func(T) string) {
	cells := []string{what}
	for _, v := range values {
		cells = append(cells, say(v))
	}
	line := "| " + strings.Join(cells, " | ") + " |\n"
	if t.head == "" {
		t.head = line + "|" + strings.Repeat("---|", len(cells)) + "\n"
		return
	}
	t.rows = append(t.rows, line)
}

func (t *table) String() string { return t.head + strings.Join(t.rows, "") }

// costsTable lists the measured costs of each store.
func costsTable() string {
	var t table
	row(&t, "", stores, func(s *store) string { return s.name })
	micros := func(d time.Duration) string {
		if d == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f us", float64(d)/1e3)
	}
	row(&t, "a call accepted: processor time of a node", stores, func(s *store) string { return micros(s.accept) })
	row(&t, "an attempt, TLS included: the same", stores, func(s *store) string { return micros(s.deliver) })
	row(&t, "a delivery: processor time of the server", stores, func(s *store) string { return micros(s.database) })
	row(&t, "one store takes, from put to end", stores, func(s *store) string {
		if s.server {
			return count(s.most) + "/s for each core"
		}
		return count(s.most) + "/s"
	})
	row(&t, "what waits takes on disk, beside its body", stores, func(s *store) string { return fmt.Sprintf("%d bytes", s.waiting) })
	row(&t, "connections of a node to it", stores, func(s *store) string { return fmt.Sprint(s.connections) })
	return t.String()
}

// plansTable lists the machines of each plan.
func plansTable(ps []*plan) string {
	var t table
	row(&t, "", ps, func(p *plan) string { return p.name + ", " + p.store.name })
	row(&t, "calls a second: mean; peak", ps, func(p *plan) string { return count(p.calls/86_400) + "; " + count(p.calls/86_400*p.peak) })
	row(&t, "destinations; deliveries a second to the busiest, at the peak", ps, func(p *plan) string {
		return count(float64(p.destinations)) + "; " + count(p.rates()[0]*p.peak)
	})
	row(&t, "stores", ps, func(p *plan) string {
		if p.store.server {
			return fmt.Sprintf("%d of %d cores, %d copies", p.cells, p.databaseCores, p.store.copies)
		}
		return fmt.Sprintf("%d folders", p.cells)
	})
	row(&t, "nodes", ps, func(p *plan) string { return fmt.Sprintf("%d of %d cores", p.cells*p.nodes, p.cores) })
	row(&t, "stores over which the busiest destination is spread", ps, func(p *plan) string { return count(min(p.parts, float64(p.cells))) })
	row(&t, "`MaxConcurrent` of the busiest; `MaxInFlight`", ps, func(p *plan) string {
		return whole(p.maxConcurrent) + "; " + whole(p.maxInFlight)
	})
	row(&t, "connections of a node to receivers", ps, func(p *plan) string { return count(float64(p.connections)) })
	row(&t, "connections to a server of a store", ps, func(p *plan) string {
		if !p.store.server {
			return "-"
		}
		return whole(p.nodes * p.store.connections)
	})
	row(&t, "memory of a node", ps, func(p *plan) string { return bytes(p.memory) })
	row(&t, "disk of a store, so that an hour may pass without any delivery", ps, func(p *plan) string { return bytes(p.disk) })
	row(&t, "leaves the nodes in a day", ps, func(p *plan) string { return bytes(p.egress) })
	row(&t, "dollars a month: machines and disks; traffic", ps, func(p *plan) string {
		machines, egress := p.cost()
		return count(machines) + "; " + count(egress)
	})
	return t.String()
}

// resultsTable sums up each simulated day.
func resultsTable(rs []*result) string {
	var t table
	row(&t, "", rs, func(r *result) string { return r.name + ", " + r.store.name })
	row(&t, "destinations that are down for an hour", rs, func(r *result) string {
		return count(math.Ceil(float64(r.destinations-r.outage.first) / float64(r.outage.every)))
	})
	row(&t, "processors: mean; most", rs, func(r *result) string { return percent(r.mean.cpu) + "; " + percent(r.most.cpu) })
	row(&t, "store: mean; most", rs, func(r *result) string { return percent(r.mean.store) + "; " + percent(r.most.store) })
	row(&t, "`MaxInFlight`: mean; most", rs, func(r *result) string { return percent(r.mean.slots) + "; " + percent(r.most.slots) })
	row(&t, "deliveries that wait, at most", rs, func(r *result) string {
		return fmt.Sprintf("%s, at %s", count(r.peak), clock(r.peakAt))
	})
	row(&t, "these in the fullest store", rs, func(r *result) string {
		return bytes(r.fullest * float64(r.body+r.store.waiting))
	})
	row(&t, "attempts that failed while they were down", rs, func(r *result) string { return count(r.failures) })
	row(&t, "nothing waits any more for half of them; for all, after", rs, func(r *result) string {
		if r.left > 0 {
			return short(r.half) + "; not within the day"
		}
		return short(r.half) + "; " + short(r.all)
	})
	row(&t, "the last retry of what had waited is settled after", rs, func(r *result) string { return short(r.settled) })
	row(&t, "dead letters", rs, func(r *result) string { return whole(r.dead) })
	row(&t, "seconds in which others than these had to wait", rs, func(r *result) string { return count(r.overloaded) })
	return t.String()
}

// backlogTable lists how many deliveries wait at times between from and to. The argument every is
// the time between two columns.
func backlogTable(rs []*result, from, to, every time.Duration) string {
	var t table
	var at []time.Duration
	for now := from; now <= to; now += every {
		at = append(at, now)
	}
	row(&t, "", at, clock)
	for _, r := range rs {
		row(&t, r.name+", "+r.store.name, at, func(now time.Duration) string { return count(r.waiting[int(now/time.Minute)-1]) })
	}
	return t.String()
}

// count formats a number with three significant digits and commas.
func count(n float64) string {
	if n >= 1000 {
		scale := math.Pow(10, math.Floor(math.Log10(n))-2)
		n = math.Round(n/scale) * scale
	}
	return whole(int(math.Round(n)))
}

// whole formats a number with commas.
func whole(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// bytes formats a size in powers of 1,000.
func bytes(n float64) string {
	units := []string{"bytes", "kB", "MB", "GB", "TB", "PB"}
	for n >= 999.5 && len(units) > 1 {
		n /= 1000
		units = units[1:]
	}
	return fmt.Sprintf("%.3g %s", n, units[0])
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", share*100) }

// clock formats a time of day.
func clock(at time.Duration) string {
	return fmt.Sprintf("%02d:%02d", int(at.Hours()), int(at.Minutes())%60)
}

// short formats a duration, rounded to the second or the minute.
func short(d time.Duration) string {
	if d < 2*time.Minute {
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f min", d.Minutes())
}
