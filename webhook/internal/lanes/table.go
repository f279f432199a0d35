// Package lanes is the part of a store that decides what is handed out next.
// It keeps deliveries in memory, in one lane per destination, serves the lanes
// that have something due in turn, and knows who holds which lease until when.
//
// Times are microseconds since 1970. Nothing here is safe for concurrent use:
// the store holds its lock around every call.
package lanes

import (
	"math"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// An Order says where in its lane a delivery stands: by the time it is due,
// and among equals by the time it came.
type Order struct {
	At  int64 // the delivery's Due
	Seq uint64
}

// Before reports whether o stands before p.
func (o Order) Before(p Order) bool {
	return o.At < p.At || o.At == p.At && o.Seq < p.Seq
}

func minOrder(o, p Order) Order {
	if p.Before(o) {
		return p
	}
	return o
}

// Last stands after everything.
var Last = Order{At: math.MaxInt64, Seq: math.MaxUint64}

// An Item is a delivery that a Table holds.
type Item struct {
	webhook.Delivery
	Order
	// Home and Index are the store's own note of where it keeps the delivery.
	Home  any
	Index int
	// Size is the store's own note of what the delivery costs.
	Size int64

	lane  *Lane
	state state
	pos   int   // in lane.rest or Table.leases
	until int64 // end of the lease
	slot  uint32
}

// Lane returns the lane the item is in.
func (it *Item) Lane() *Lane { return it.lane }

// Settling reports whether the item was detached.
func (it *Item) Settling() bool { return it.state == settling }

// Gone reports whether the item is no longer in a table.
func (it *Item) Gone() bool { return it.state == gone }

// Waits reports whether the item waits: it is not leased, or its lease has
// expired.
func (it *Item) Waits() bool { return it.state == inRun || it.state == inRest }

// Free reports whether the item waits, and nobody may settle it.
func (it *Item) Free() bool { return it.state == inRun || it.state == inRest && it.slot == 0 }

type state uint8

const (
	gone     state = iota
	inRun          // in Lane.run: waits, and no lease was given
	inRest         // in Lane.rest: waits; if slot is not 0, its lease has expired
	leased         // in Table.leases
	settling       // nowhere: what becomes of it is being stored
)

// A Lane holds the deliveries of one destination.
type Lane struct {
	// Name is the destination.
	Name string
	// Home is the store's own.
	Home any
	// Beyond is the first of the deliveries of the lane that the store keeps
	// and the Table does not know, Last if there is none.
	Beyond Order

	run  queue       // sorted: what came in order and due
	rest heap[*Item] // all else that waits
	held int         // items of the lane, also leased and settling ones

	place      place
	pos        int // in Table.later
	prev, next *Lane
	asked      uint64 // the Take that asked for room last
	room       int    // what is left of the answer
}

type place uint8

const (
	idle   place = iota
	ready        // in Table.ready or Table.parked
	parked       // as ready, but not served again by the Take going on
	later        // in Table.later
)

// A Table is the lanes of a store.
type Table struct {
	lanes  map[string]*Lane
	ready  ring
	parked ring
	later  heap[*Lane] // by first
	leases heap[*Item] // by until
	detach int         // items that are settling
	slots  []slot
	free   []uint32
	items  int
	idle   int // lanes at the place idle
	sweeps int // the value of idle at which lanes are forgotten next
	takes  uint64
	forget func(*Lane) bool
}

type slot struct {
	item  *Item
	grant uint32 // how often the slot was given; the upper half of the handle
}

// New returns an empty table. It forgets lanes that hold nothing once there are
// many; forget is asked first, and may refuse. Nil never refuses.
func New(forget func(*Lane) bool) *Table {
	if forget == nil {
		forget = func(*Lane) bool { return true }
	}
	return &Table{
		lanes:  make(map[string]*Lane),
		slots:  make([]slot, 1), // handle 0 is nobody's
		sweeps: minSweep,
		forget: forget,
	}
}

// Len returns how many items are in the table, and how many of these are
// leased at now.
func (t *Table) Len(now int64) (items, leased int) {
	t.expire(now)
	return t.items, len(t.leases) + t.detach
}

// Lane returns the lane called name, which is made if need be.
func (t *Table) Lane(name string) *Lane {
	l := t.lanes[name]
	if l == nil {
		t.sweep()
		l = &Lane{Name: strings.Clone(name), Beyond: Last}
		t.lanes[l.Name] = l
		t.idle++
	}
	return l
}

// Count returns how much there is of each lane that is not Empty. Away returns how
// many of its deliveries the store keeps beyond the table; nil is none.
func (t *Table) Count(now int64, away func(*Lane) int) []webhook.DestinationCounts {
	t.expire(now)
	counts := make([]webhook.DestinationCounts, 0, len(t.lanes)-t.idle)
	for _, l := range t.lanes {
		if l.Empty() {
			continue
		}
		c := webhook.DestinationCounts{Destination: l.Name, Waiting: l.held, Claimed: l.held - l.run.len - len(l.rest)}
		if away != nil {
			c.Waiting += away(l)
		}
		if first := l.first(); first != Last {
			c.Oldest = time.UnixMicro(first.At).UTC()
		}
		counts = append(counts, c)
	}
	return counts
}

// Oldest returns when the first of what waits and is not leased is due, and
// false if nothing waits.
func (t *Table) Oldest(now int64) (at int64, ok bool) {
	t.expire(now)
	first := Last
	for _, l := range t.lanes {
		if l.place != idle {
			first = minOrder(first, l.first())
		}
	}
	return first.At, first != Last
}

// Lanes returns how many lanes there are.
func (t *Table) Lanes() int { return len(t.lanes) }

// All yields all lanes, in no order.
func (t *Table) All(yield func(*Lane) bool) {
	for _, l := range t.lanes {
		if !yield(l) {
			return
		}
	}
}

// minSweep is how many idle lanes are kept in any case.
const minSweep = 1024

// sweep forgets idle lanes once there are many, so that destinations that come
// and go cost nothing in the long run.
func (t *Table) sweep() {
	if t.idle < t.sweeps {
		return
	}
	t.idle = 0
	for name, l := range t.lanes {
		switch {
		case l.place != idle:
		case l.held == 0 && t.forget(l):
			delete(t.lanes, name)
		default:
			t.idle++
		}
	}
	t.sweeps = max(minSweep, 2*t.idle, len(t.lanes)/2)
}

// Add puts it into lane l, to wait.
func (t *Table) Add(l *Lane, it *Item, now int64) {
	it.lane = l
	l.held++
	t.items++
	if it.At <= now && !l.run.precedes(it.Order) {
		it.state = inRun
		l.run.push(it)
	} else {
		l.pushRest(it)
	}
	t.settle(l, now)
}

// Move puts it, which was handed out, back to wait at order.
func (t *Table) Move(it *Item, order Order, now int64) {
	t.withdraw(it)
	it.Order = order
	t.Add(it.lane, it, now)
}

// Remove takes it, which was handed out, out of the table.
func (t *Table) Remove(it *Item, now int64) {
	t.withdraw(it)
	t.settle(it.lane, now)
}

func (t *Table) withdraw(it *Item) {
	t.take(it)
	t.drop(it)
	it.state = gone
	it.lane.held--
	t.items--
}

// Expel takes the Free items of l that which selects out of the table. The store
// tells it what Beyond is then before it calls.
func (t *Table) Expel(l *Lane, which func(*Item) bool, now int64) {
	n := 0
	expel := func(it *Item) bool {
		if !it.Free() || !which(it) {
			return false
		}
		it.state = gone
		n++
		return true
	}
	l.run.filter(expel)
	l.rest.filter(expel)
	l.held -= n
	t.items -= n
	t.settle(l, now)
}

// Detach sets it, which was handed out, aside: its lease does not expire, and
// nobody else is handed it, until it is moved, removed or attached again.
func (t *Table) Detach(it *Item, now int64) {
	t.take(it)
	it.state = settling
	t.detach++
	t.settle(it.lane, now)
}

// Attach undoes Detach.
func (t *Table) Attach(it *Item) {
	t.take(it)
	t.hold(it, it.until)
}

// Leased returns the item that was handed out with the handle lease, or nil if
// it is gone or was handed out again.
func (t *Table) Leased(lease uint64) *Item {
	i := uint32(lease)
	if int(i) >= len(t.slots) || t.slots[i].item == nil || t.slots[i].grant != uint32(lease>>32) {
		return nil
	}
	return t.slots[i].item
}

// Refresh tells the table that l.Beyond has changed.
func (t *Table) Refresh(l *Lane, now int64) { t.settle(l, now) }

// take takes it, which was handed out, out of the heap it is in. It keeps its slot.
func (t *Table) take(it *Item) {
	switch it.state {
	case inRest:
		it.lane.removeRest(it.pos)
	case leased:
		t.leases.remove(it.pos)
	case settling:
		t.detach--
	default:
		panic("lanes: item without a lease is taken")
	}
}

// drop ends the right of the holder of it to settle it.
func (t *Table) drop(it *Item) {
	if it.slot != 0 {
		t.slots[it.slot].item = nil
		t.free = append(t.free, it.slot)
		it.slot = 0
	}
}

// grant gives it a new handle.
func (t *Table) grant(it *Item) {
	if it.slot == 0 {
		if n := len(t.free); n > 0 {
			it.slot = t.free[n-1]
			t.free = t.free[:n-1]
		} else {
			it.slot = uint32(len(t.slots))
			t.slots = append(t.slots, slot{})
		}
	}
	s := &t.slots[it.slot]
	s.item = it
	s.grant++
	it.Claim = uint64(s.grant)<<32 | uint64(it.slot)
}

// hold puts it among the leases.
func (t *Table) hold(it *Item, until int64) {
	it.state = leased
	it.until = until
	t.leases.push(Order{At: until}, it, &it.pos)
}

// pushRest puts it among what waits out of turn.
func (l *Lane) pushRest(it *Item) {
	it.state = inRest
	l.rest.push(it.Order, it, &it.pos)
}

func (l *Lane) removeRest(i int) {
	if l.rest.remove(i); len(l.rest) == 0 && cap(l.rest) > 64 {
		l.rest = nil // lanes are many
	}
}

// expire ends the leases that are over: what was leased waits again, as it was.
func (t *Table) expire(now int64) {
	for len(t.leases) > 0 && t.leases[0].At <= now {
		it := t.leases[0].value
		t.leases.remove(0)
		it.lane.pushRest(it)
		t.settle(it.lane, now)
	}
}

// wake moves the lanes that have become due to those that are served.
func (t *Table) wake(now int64) {
	t.expire(now)
	for len(t.later) > 0 && t.later[0].At <= now {
		t.settle(t.later[0].value, now)
	}
}

// settle moves l to the place that its first delivery calls for.
func (t *Table) settle(l *Lane, now int64) {
	first := l.first()
	want := later
	switch {
	case first == Last:
		want = idle
	case first.At <= now:
		want = ready
	}
	if l.place == want && want != later || l.place == parked && want != idle {
		return // a ready lane keeps its turn
	}
	switch l.place {
	case idle:
		t.idle--
	case ready:
		t.ready.remove(l)
	case parked:
		t.parked.remove(l)
	case later:
		if want == later {
			t.later.move(l.pos, first)
			return
		}
		t.later.remove(l.pos)
	}
	l.place = want
	switch want {
	case idle:
		t.idle++
	case ready:
		t.ready.push(l)
	case later:
		t.later.push(first, l, &l.pos)
	}
}
