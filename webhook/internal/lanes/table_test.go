package lanes

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hookferry/analytics/internal/soak"
	"github.com/hookferry/analytics/webhook"
)

// check looks whether everything is where it says it is.
func (t *Table) check(tb testing.TB) {
	tb.Helper()
	items, idles := 0, 0
	for _, l := range t.lanes {
		if l.place == idle {
			idles++
		}
		held := l.run.len + len(l.rest)
		for i := range l.run.len {
			it := l.run.buf[(l.run.head+i)&(len(l.run.buf)-1)]
			if it.state != inRun || it.lane != l {
				tb.Fatalf("lane %s: item %d of run has state %d", l.Name, i, it.state)
			}
		}
		for i, e := range l.rest {
			it := e.value
			if it.state != inRest || it.pos != i || it.lane != l || e.Order != it.Order || i > 0 && it.Before(l.rest[(i-1)/2].Order) {
				tb.Fatalf("lane %s: item %d of rest has state %d and place %d", l.Name, i, it.state, it.pos)
			}
		}
		for _, e := range t.leases {
			if e.value.lane == l {
				held++
			}
		}
		if held != l.held {
			tb.Fatalf("lane %s holds %d, believes %d", l.Name, held, l.held)
		}
		items += held
		if (l.place == idle) != (l.first() == Last) {
			tb.Fatalf("lane %s is at place %d with %v first", l.Name, l.place, l.first())
		}
	}
	for i, e := range t.leases {
		it := e.value
		if it.state != leased || it.pos != i || e.At != it.until || i > 0 && it.until < t.leases[(i-1)/2].At {
			tb.Fatalf("lease %d has state %d and place %d", i, it.state, it.pos)
		}
	}
	for i, e := range t.later {
		l := e.value
		if l.place != later || l.pos != i || e.Order != l.first() || i > 0 && l.first().Before(t.later[(i-1)/2].Order) {
			tb.Fatalf("lane %d of later is at place %d, %d", i, l.place, l.pos)
		}
	}
	if items != t.items || idles < t.idle {
		tb.Fatalf("there are %d items and %d idle lanes, believed %d and %d", items, idles, t.items, t.idle)
	}
}

func TestTableStaysConsistent(t *testing.T) {
	for seed := range soak.Seeds(t, 3) {
		testTable(t, seed)
	}
}

func testTable(t *testing.T, seed uint64) {
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	r := rand.New(rand.NewPCG(seed, 0))
	table := New(nil)
	now, seq := int64(1_000_000), uint64(0)
	var held []webhook.Delivery
	for range 5000 {
		switch r.IntN(7) {
		case 0, 1:
			for range r.IntN(10) {
				seq++
				l := table.Lane(fmt.Sprint("d", r.IntN(6)))
				table.Add(l, &Item{Order: Order{At: now + r.Int64N(2000) - 1500, Seq: seq}}, now)
			}
		case 2:
			take := &Take{Max: 1 + r.IntN(20), Until: now + r.Int64N(3000), Room: func(string) int { return r.IntN(10) }}
			table.Begin(take, now)
			if !table.Serve(take, now) {
				t.Fatal("Serve wants what is beyond, and nothing is")
			}
			table.Next(now)
			table.End()
			held = append(held, take.Out...)
		case 3, 4:
			for range min(len(held), r.IntN(15)) {
				i := r.IntN(len(held))
				d := held[i]
				held = slices.Delete(held, i, i+1)
				it := table.Leased(d.Claim)
				if it == nil {
					continue
				}
				if r.IntN(2) == 0 {
					table.Detach(it, now)
					if !it.Settling() || table.Leased(d.Claim) != it {
						t.Fatal("a detached item has lost its handle")
					}
				}
				switch r.IntN(4) {
				case 0:
					seq++
					table.Move(it, Order{At: now + r.Int64N(3000) - 500, Seq: seq}, now)
				case 1:
					if it.Settling() {
						table.Attach(it)
					}
					continue
				default:
					table.Remove(it, now)
				}
				if table.Leased(d.Claim) != nil {
					t.Fatal("a handle outlives its lease")
				}
			}
		case 5:
			now += r.Int64N(1000) - 50 // clocks are set back, too
		case 6:
			l := table.Lane(fmt.Sprint("d", r.IntN(6)))
			from := Order{At: now - r.Int64N(1000)}
			later := func(it *Item) bool { return !it.Before(from) }
			table.Expel(l, later, now)
			for o := range heldOrders(l) {
				if !o.Before(from) {
					t.Fatalf("%v is in lane %s after all from %v on were expelled", o, l.Name, from)
				}
			}
		}
		table.check(t)
	}
}

// heldOrders are the orders of what waits in l and nobody may settle.
func heldOrders(l *Lane) map[Order]bool {
	all := map[Order]bool{}
	for i := range l.run.len {
		all[l.run.buf[(l.run.head+i)&(len(l.run.buf)-1)].Order] = true
	}
	for _, e := range l.rest {
		if e.value.slot == 0 {
			all[e.Order] = true
		}
	}
	return all
}

func TestTableForgetsIdleLanes(t *testing.T) {
	table := New(nil)
	now := time.Now().UnixMicro()
	for i := range 100_000 {
		l := table.Lane(fmt.Sprint("d", i))
		table.Add(l, &Item{Order: Order{At: now, Seq: uint64(i)}}, now)
		take := &Take{Max: 1, Until: now + 1000}
		table.Begin(take, now)
		table.Serve(take, now)
		table.End()
		if len(take.Out) != 1 {
			t.Fatalf("%d of 1 handed out", len(take.Out))
		}
		table.Remove(table.Leased(take.Out[0].Claim), now)
	}
	if n := table.Lanes(); n > 4*minSweep {
		t.Errorf("%d lanes are left of 100,000 that are idle", n)
	}
	busy := New(func(*Lane) bool { return false })
	for i := range 5000 {
		busy.Lane(fmt.Sprint(i))
	}
	if n := busy.Lanes(); n != 5000 {
		t.Errorf("%d lanes are left though 5000 may not be forgotten", n)
	}
}

func TestServeAllocatesNothing(t *testing.T) {
	table := New(nil)
	now := time.Now().UnixMicro()
	for i := range 2000 {
		table.Add(table.Lane(fmt.Sprint("d", i%50)), &Item{Order: Order{At: now, Seq: uint64(i)}}, now)
	}
	out := make([]webhook.Delivery, 0, 64)
	take := new(Take)
	round := func() {
		*take = Take{Max: 64, Until: now + 1_000_000, Out: out}
		table.Begin(take, now)
		table.Serve(take, now)
		table.End()
		for i := range take.Out {
			it := table.Leased(take.Out[i].Claim)
			table.Move(it, it.Order, now)
		}
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("handing out 64 and putting them back allocates %v times", n)
	}
}
