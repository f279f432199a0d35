package boltqueue

import (
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
	"github.com/hookferry/analytics/webhook/storekit"
)

// The bounds of a tail at which the database is written.
const (
	tailBytes    = 16 << 20 // of deliveries, each counted as in Config.CacheBytes
	tailRemovals = 1 << 14  // which take a processor for some 20 ms
)

// A tail is what an epoch of the journal holds and the database does not. What was
// put and settled in the same epoch leaves no trace in it. The one that commits go to
// belongs to the committer, and is changed with the queue locked; when the next epoch
// begins it goes to the writer, and is not changed any more.
type tail struct {
	fresh    []candidate       // put or retried, by Item.Index; without an item: was settled
	bytes    int64             // of these, by Item.Size
	rows     int64             // of these, the rows alone
	removals int               // from the database
	blocks   map[*block]uint64 // those of which something was settled, and what was left then
	gone     []gone
	dead     []deadRow
	keys     []seenKeys
	changed  delta
	skip     map[string]bool // rows of waiting that are gone, if that is not known otherwise
}

// A gone is a row that is no longer in waiting.
type gone struct {
	home          *home
	segment, lane uint32
	order         lanes.Order
}

// A deadRow is a dead letter.
type deadRow struct {
	order lanes.Order
	row   []byte
}

// seenKeys are the keys of what was put within a second.
type seenKeys struct {
	at   time.Time
	keys []storekit.Key
}

// add takes in an item and its row, which nobody changes.
func (t *tail) add(it *lanes.Item, row []byte) {
	it.Home, it.Index, it.Size = t, len(t.fresh), sizeOf(row)
	t.fresh = append(t.fresh, candidate{item: it, row: row})
	t.bytes += it.Size
	t.rows += int64(len(row))
}

// remove notes that the row of an item is not where it was.
func (t *tail) remove(rm *removed) {
	it := rm.item
	switch home := it.Home.(type) {
	case *tail:
		if home == t {
			t.fresh[it.Index] = candidate{}
			t.bytes -= it.Size
			t.rows -= it.Size - itemBytes
		} // or it is being written to a block, and is found there to be gone
	case *block:
		home.left &^= 1 << it.Index
		t.settle(home)
	default:
		t.leave(gone{homeOf(it.Lane()), rm.place.segment, rm.place.lane, rm.place.order})
	}
	if rm.verdict == webhook.Bury {
		t.bury(rm.order, rm.row)
	}
}

// leave notes that a row is to go from waiting.
func (t *tail) leave(g gone) {
	t.gone = append(t.gone, g)
	g.home.gone++
	t.removals++
}

// settle notes that less is left of a block.
func (t *tail) settle(b *block) {
	if t.blocks == nil {
		t.blocks = make(map[*block]uint64)
	}
	t.blocks[b] = b.left
	t.removals++
}

func (t *tail) bury(o lanes.Order, row []byte) {
	t.dead = append(t.dead, deadRow{o, row})
	t.rows += int64(len(row))
	t.bytes += int64(len(row))
}

// remember notes the keys of what was put.
func (t *tail) remember(now time.Time, keys []storekit.Key) {
	if len(keys) == 0 {
		return
	}
	if n := len(t.keys); n > 0 {
		if s := &t.keys[n-1]; now.Sub(s.at).Abs() < time.Second && len(s.keys) < 4096 {
			s.keys = append(s.keys, keys...)
			return
		}
	}
	t.keys = append(t.keys, seenKeys{now, keys})
}

// full reports whether the tail is to be written to the database.
func (t *tail) full() bool { return t.bytes > tailBytes || t.removals > tailRemovals }

// reset returns the tail, emptied, once the database holds it.
func (t *tail) reset() *tail {
	clear(t.fresh)
	*t = tail{fresh: t.fresh[:0]}
	return t
}
