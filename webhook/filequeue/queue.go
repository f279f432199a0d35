package filequeue

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"
)

// A place is the offset of a record in a segment.
type place struct{ seg, off uint32 }

// An entry is the part of a delivery, or of another record, that the index keeps: 40 bytes, without
// the body, the id and the name.
type entry struct {
	due    int64 // in microseconds; the time of death in index.dead, of delivery in index.history
	seq    uint64
	put    place
	state  place  // of the state record, unless units is 0
	length uint32 // of the payload of put
	over   uint16 // total() - bytes(), but at most 65,535
	units  uint16 // the length of the state record, in multiples of 8 bytes
}

// maxState is the length of the longest state record, in bytes.
const maxState = 8 * math.MaxUint16

// entryOf returns the entry of a whole record, or of a setting.
func entryOf(r *record) entry {
	e := entry{due: r.due, seq: r.seq, put: r.place, length: r.length}
	e.setBytes(int64(r.size))
	return e
}

// bytes returns the length of the body of a waiting delivery, or the Size of a dead or delivered
// one. The result is too large if the field over is at its bound of 65,535.
func (e *entry) bytes() int64 { return e.total() - int64(e.over) }

func (e *entry) total() int64 { return int64(e.length) + 8*int64(e.units) }

// setBytes makes n the result of bytes.
func (e *entry) setBytes(n int64) { e.over = uint16(min(max(e.total()-n, 0), math.MaxUint16)) }

// setState makes r the state record of the entry.
func (e *entry) setState(r *record) {
	e.state, e.units, e.due = r.place, uint16(recordSize(int(r.length))/8), r.due
	e.setBytes(int64(r.size))
}

// dueAt returns when an entry is due, or zero if e is nil.
func (e *entry) dueAt() time.Time {
	if e == nil {
		return time.Time{}
	}
	return time.UnixMicro(e.due).UTC()
}

// A point is a position in a queue: entries are in the order of due, and then of seq.
type point struct {
	due int64
	seq uint64
}

func (e *entry) point() point { return point{e.due, e.seq} }

func (p point) before(q point) bool { return p.compare(q) < 0 }

func (p point) compare(q point) int {
	return cmp.Or(cmp.Compare(p.due, q.due), cmp.Compare(p.seq, q.seq))
}

// firstPoint sorts before all other points, and lastPoint after them.
var (
	firstPoint = point{math.MinInt64, 0}
	lastPoint  = point{math.MaxInt64, math.MaxUint64}
)

// A queue holds entries in the order of their points, in chunks. push appends an entry that sorts
// after all others to the last chunk. For any other entry, it moves a part of one chunk.
type queue struct {
	chunks [][]entry // none is empty
	len    int
	bytes  int64 // the sum of the entries' bytes
}

// chunkLen bounds the entries of a chunk.
const chunkLen = 512

// find returns the chunk, and the index in it, of the first entry that is not before p.
func (q *queue) find(p point) (c, i int) {
	c = len(q.chunks)
	if c == 0 || q.chunks[c-1][len(q.chunks[c-1])-1].point().before(p) { // usual, and fast
		return c, 0
	}
	c = sort.Search(c, func(c int) bool { return !q.chunks[c][len(q.chunks[c])-1].point().before(p) })
	return c, sort.Search(len(q.chunks[c]), func(i int) bool { return !q.chunks[c][i].point().before(p) })
}

// push adds an entry.
func (q *queue) push(e entry) {
	q.len++
	q.bytes += e.bytes()
	c, i := q.find(e.point())
	if last := len(q.chunks) - 1; c > last { // behind all others
		if last < 0 || len(q.chunks[last]) == chunkLen {
			q.chunks = append(q.chunks, []entry{e})
		} else {
			q.chunks[last] = append(q.chunks[last], e)
		}
		return
	}
	chunk := slices.Insert(q.chunks[c], i, e)
	if len(chunk) <= chunkLen {
		q.chunks[c] = chunk
		return
	}
	half := len(chunk) / 2
	q.chunks[c] = slices.Clone(chunk[:half])
	q.chunks = slices.Insert(q.chunks, c+1, slices.Clone(chunk[half:]))
}

// first returns the first entry, or nil.
func (q *queue) first() *entry {
	if q.len == 0 {
		return nil
	}
	return &q.chunks[0][0]
}

// at returns the entry at a point, or nil.
func (q *queue) at(p point) *entry {
	c, i := q.find(p)
	if c == len(q.chunks) || q.chunks[c][i].point() != p {
		return nil
	}
	return &q.chunks[c][i]
}

// remove removes the entry at a point and reports whether there was one.
func (q *queue) remove(p point) (e entry, ok bool) {
	c, i := q.find(p)
	if c == len(q.chunks) || q.chunks[c][i].point() != p {
		return e, false
	}
	chunk := q.chunks[c]
	e = chunk[i]
	q.len--
	q.bytes -= e.bytes()
	if i == 0 {
		chunk = chunk[1:]
	} else {
		chunk = slices.Delete(chunk, i, i+1)
	}
	if q.chunks[c] = chunk; len(chunk) == 0 {
		q.chunks = slices.Delete(q.chunks, c, c+1)
	}
	return e, true
}

// after returns up to n entries behind a point.
func (q *queue) after(p point, n int) (some []entry) {
	for c, i := q.find(point{p.due, p.seq + 1}); c < len(q.chunks) && len(some) < n; c, i = c+1, 0 {
		rest := q.chunks[c][i:]
		some = append(some, rest[:min(n-len(some), len(rest))]...)
	}
	return some
}

// before returns up to n entries in front of a point, in reverse order.
func (q *queue) before(p point, n int) (some []entry) {
	for c, i := q.find(p); len(some) < n && c+i > 0; i-- {
		if i == 0 {
			c--
			i = len(q.chunks[c])
		}
		some = append(some, q.chunks[c][i-1])
	}
	return some
}

// collect adds an entry without sorting, which is fast for many entries. The caller calls sort
// before any other method.
func (q *queue) collect(e entry) {
	if q.chunks == nil {
		q.chunks = make([][]entry, 1)
	}
	q.chunks[0] = append(q.chunks[0], e)
	q.len++
	q.bytes += e.bytes()
}

// sort puts the collected entries in order.
func (q *queue) sort() {
	all := slices.Concat(q.chunks...)
	slices.SortFunc(all, func(a, b entry) int { return a.point().compare(b.point()) })
	q.chunks = nil
	for chunk := range slices.Chunk(all, chunkLen) {
		q.chunks = append(q.chunks, slices.Clone(chunk))
	}
}
