package filequeue

import (
	"cmp"
	"math"
	"time"
)

// A position is where a record is in the log: its segment, and its offset there in bytes.
type position struct{ seg, off uint32 }

// An entry is the part of a delivery, or of another record, that the index keeps: 40 bytes, without
// the body, the id and the name. In lane.behind, due has the hash of the key, and state has the
// value that due has elsewhere.
type entry struct {
	due    int64 // in microseconds; the time of death in lane.dead, of delivery in lane.history
	seq    uint64
	put    position
	state  position // of the state record, unless units is 0
	length uint32   // of the payload of put
	over   uint16   // total() - bytes(), but at most 65,535
	units  uint16   // the length of the state record, in multiples of 8 bytes
}

// maxState is the length of the longest state record, in bytes.
const maxState = 8 * math.MaxUint16

// entryOf returns the entry of a whole record, or of a document.
func entryOf(r *record) entry {
	e := entry{due: r.due, seq: r.seq, put: r.pos, length: r.length}
	e.setBytes(int64(r.size))
	return e
}

// bytes returns the length of the body of a waiting delivery, or the Size of a dead or delivered
// one. If the field over is at its bound of 65,535, the result is greater than that.
func (e *entry) bytes() int64 { return e.total() - int64(e.over) }

func (e *entry) total() int64 { return int64(e.length) + 8*int64(e.units) }

// setBytes makes n the result of bytes.
func (e *entry) setBytes(n int64) { e.over = uint16(min(max(e.total()-n, 0), math.MaxUint16)) }

// setState makes r the state record of the entry.
func (e *entry) setState(r *record) {
	e.state, e.units, e.due = r.pos, uint16(recordSize(int(r.length))/8), r.due
	e.setBytes(int64(r.size))
}

// dueAt returns when an entry is due, or zero if e is nil.
func (e *entry) dueAt() time.Time {
	if e == nil {
		return time.Time{}
	}
	return time.UnixMicro(e.due).UTC()
}

// A rank says how an entry sorts in a queue: by due, and then by seq.
type rank struct {
	due int64
	seq uint64
}

func (e *entry) rank() rank { return rank{e.due, e.seq} }

func (r rank) before(q rank) bool { return r.compare(q) < 0 }

func (r rank) compare(q rank) int {
	return cmp.Or(cmp.Compare(r.due, q.due), cmp.Compare(r.seq, q.seq))
}

// firstRank sorts before all other ranks.
var firstRank = rank{math.MinInt64, 0}
