package boltqueue

import (
	"time"

	"github.com/hookferry/analytics/internal/seen"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// The bounds of a tail at which the database is written.
const (
	tailBytes    = 16 << 20 // of deliveries, each counted as in Config.CacheBytes
	tailRemovals = 1 << 17
)

// A tail is what the journal holds and the database does not. It belongs to the
// committer, and is changed with the queue locked. What was put and settled
// since the database was last written leaves no trace in it.
type tail struct {
	fresh    []*lanes.Item // put or retried, by Item.Index; nil was settled
	bytes    int64         // of these, by Item.Size
	rows     int64         // of these, the rows alone
	removals int           // from the database
	blocks   map[*block]struct{}
	gone     []gone
	dead     []deadRow
	keys     []seenKeys
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
	keys []seen.Key
}

// add takes in an item with a row of n bytes.
func (t *tail) add(it *lanes.Item, n int) {
	it.Home, it.Index, it.Size = t, len(t.fresh), int64(n)+itemBytes
	t.fresh = append(t.fresh, it)
	t.bytes += it.Size
	t.rows += int64(n)
}

// remove notes that the row of an item is not where it was.
func (t *tail) remove(rm *removed) {
	it := rm.item
	switch rm.place.kind {
	case inJournal:
		t.fresh[it.Index] = nil
		t.bytes -= it.Size
		t.rows -= it.Size - itemBytes
	case inBlock:
		if t.blocks == nil {
			t.blocks = make(map[*block]struct{})
		}
		t.blocks[it.Home.(*block)] = struct{}{}
		t.removals++
	default:
		t.gone = append(t.gone, gone{homeOf(it.Lane()), rm.place.segment, rm.place.lane, rm.place.order})
		t.removals++
	}
	if rm.verdict == webhook.Bury {
		t.dead = append(t.dead, deadRow{rm.order, rm.row})
		t.rows += int64(len(rm.row))
		t.bytes += int64(len(rm.row))
	}
}

// remember notes the keys of what was put.
func (t *tail) remember(now time.Time, keys []seen.Key) {
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

// empty reports whether the database holds everything.
func (t *tail) empty() bool {
	return len(t.fresh) == 0 && t.removals == 0 && len(t.dead) == 0 && len(t.keys) == 0
}

// full reports whether the tail is to be written to the database.
func (t *tail) full() bool { return t.bytes > tailBytes || t.removals > tailRemovals }

// reset empties the tail, once the database holds it.
func (t *tail) reset() {
	clear(t.fresh)
	*t = tail{fresh: t.fresh[:0]}
}
