package lanes

import (
	"math"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// A Take is one Lease going on.
type Take struct {
	// Max is how many deliveries may still be handed out.
	Max int
	// Until is when the leases end.
	Until int64
	// Room is that of the LeaseRequest.
	Room func(destination string) int
	// Out has what is handed out appended.
	Out []webhook.Delivery
	// Wants are the lanes whose next delivery is beyond what the table holds.
	// Each is to be given Want items or more, or all it has, before the Take
	// goes on.
	Wants []*Lane

	number uint64
}

// Want returns how many items of l, one of Wants, the Take can hand out.
func (k *Take) Want(l *Lane) int {
	return min(k.Max, l.room)
}

// Begin starts a Take at now. It goes on by Serve and ends by End; none other
// may begin before that.
func (t *Table) Begin(k *Take, now int64) {
	t.takes++
	k.number = t.takes
	t.wake(now)
}

// Serve hands out what is due at now, lane by lane, and reports whether the
// Take is complete. If not, the store brings the next deliveries of the lanes
// in Wants into the table, and calls Serve again.
func (t *Table) Serve(k *Take, now int64) bool {
	k.Wants = k.Wants[:0]
	for k.Max > 0 && t.ready.head != nil {
		l := t.ready.head
		if t.roomOf(k, l) <= 0 {
			t.park(l)
			continue
		}
		// An equal share for each lane; what some have no use for goes to the
		// others in the next round.
		for n := min(max(1, k.Max/t.ready.len), l.room); n > 0; n-- {
			it, beyond := l.pop(now)
			if beyond {
				t.wants(k)
				return false
			}
			if it == nil {
				break
			}
			k.Max--
			l.room--
			t.hold(it, k.Until)
			t.grant(it)
			k.Out = append(k.Out, it.Delivery)
		}
		t.settle(l, now)
		if l.place != ready {
			continue
		}
		if l.room <= 0 {
			t.park(l)
			continue
		}
		t.ready.remove(l)
		t.ready.push(l)
	}
	return true
}

// Next returns when there will be more to hand out than the current Take has found,
// the zero time if never. Lanes that had no room do not count.
func (t *Table) Next(now int64) time.Time {
	next := Last.At
	if t.ready.head != nil {
		next = now
	} else {
		if len(t.later) > 0 {
			next = t.later[0].At
		}
		if len(t.leases) > 0 {
			next = min(next, t.leases[0].At)
		}
	}
	if next == Last.At {
		return time.Time{}
	}
	return time.UnixMicro(next).UTC()
}

// End ends the Take.
func (t *Table) End() {
	for l := t.parked.head; l != nil; l = t.parked.head {
		t.parked.remove(l)
		l.place = ready
		t.ready.push(l)
	}
}

// roomOf returns the room that is left to l. It calls k.Room once for each lane and
// Take.
func (t *Table) roomOf(k *Take, l *Lane) int {
	if l.asked != k.number {
		l.asked = k.number
		l.room = math.MaxInt
		if k.Room != nil {
			l.room = k.Room(l.Name)
		}
	}
	return l.room
}

// park leaves l out of the rest of the Take.
func (t *Table) park(l *Lane) {
	t.ready.remove(l)
	l.place = parked
	t.parked.push(l)
}

// Skip passes over l, one of Wants, for the rest of the Take.
func (t *Table) Skip(l *Lane) {
	if l.place == ready {
		t.park(l)
	}
}

// wants collects the lanes that the Take is going to serve next and whose first
// delivery is beyond, so that the store reads them at one go.
func (t *Table) wants(k *Take) {
	left := k.Max
	for l := t.ready.head; l != nil && left > 0; l = l.next {
		if t.roomOf(k, l) <= 0 {
			continue
		}
		left--
		if l.Beyond != Last && !l.nearest().Before(l.Beyond) {
			k.Wants = append(k.Wants, l)
		}
	}
}
