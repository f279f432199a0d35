package boltqueue

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// The bucket waiting is written in segments, one after the other, and sorted by
// lane within each. So what many lanes put at about the same time is written to
// the same pages, and read from and deleted in the same ones, as it is delivered
// at about the same time again. A directory says which lanes a segment has rows of.

// segmentBytes is how much is written to a segment before the next begins, counted
// as tailBytes is: while a backlog grows, a checkpoint fills one.
const segmentBytes = tailBytes / 2

// A segment is the one that is being filled.
type segment struct {
	number uint32
	bytes  int64
}

// A part is the rows of one lane in one segment.
type part struct {
	lane  uint32
	rows  int64
	first lanes.Order // no row is before it
}

// A directory is the parts of a segment, by lane.
type directory []part

// AppendBinary implements encoding.BinaryAppender. Each part is what it is more
// than the one before.
func (d directory) AppendBinary(b []byte) ([]byte, error) {
	var last part
	for _, p := range d {
		b = binary.AppendUvarint(b, uint64(p.lane-last.lane))
		b = binary.AppendUvarint(b, uint64(p.rows))
		b = binary.AppendVarint(b, p.first.At-last.first.At)
		b = binary.AppendVarint(b, int64(p.first.Seq-last.first.Seq))
		last = p
	}
	return b, nil
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler.
func (d *directory) UnmarshalBinary(b []byte) error {
	*d = slices.Grow((*d)[:0], len(b)/8)
	r := opReader{b: b}
	var last part
	for len(r.b) > 0 {
		lane, rows := uint64(last.lane)+r.uvarint(), r.uvarint()
		p := part{lane: uint32(lane), rows: int64(rows)}
		p.first.At = last.first.At + r.varint()
		p.first.Seq = last.first.Seq + uint64(r.varint())
		if lane>>32 != 0 || lane <= uint64(last.lane) || p.rows < 1 {
			r.fail()
		}
		*d = append(*d, p)
		last = p
	}
	if r.failed {
		return fmt.Errorf("%w: of %d bytes in %q", errRow, len(b), bucketSegments)
	}
	return nil
}

// A change is what a transaction has done to a part: rows of them were put, or
// deleted if it is negative. First is lanes.Last then.
type change struct {
	segment uint32
	part
}

// merge returns the directory after changes, which are sorted by lane.
func (d directory) merge(changes []change) (directory, error) {
	merged := make(directory, 0, len(d)+len(changes))
	add := func(p part) {
		if n := len(merged); n == 0 || merged[n-1].lane != p.lane {
			merged = append(merged, p)
			return
		}
		last := &merged[len(merged)-1]
		last.rows += p.rows
		last.first = minOrder(last.first, p.first)
	}
	for _, c := range changes {
		for len(d) > 0 && d[0].lane <= c.lane {
			add(d[0])
			d = d[1:]
		}
		add(c.part)
	}
	merged = append(merged, d...)
	for _, p := range merged {
		if p.rows < 0 {
			return nil, fmt.Errorf("%w: %d rows more than there were are gone from lane %d of a segment", errRow, -p.rows, p.lane)
		}
	}
	return slices.DeleteFunc(merged, func(p part) bool { return p.rows == 0 }), nil
}

// writeDirectories brings the directories up to date with what a transaction has
// done to waiting.
func writeDirectories(tx *bolt.Tx, changes []change) error {
	b := tx.Bucket(bucketSegments)
	slices.SortFunc(changes, func(x, y change) int {
		return cmp.Or(cmp.Compare(x.segment, y.segment), cmp.Compare(x.lane, y.lane))
	})
	for len(changes) > 0 {
		number, n := changes[0].segment, 1
		for n < len(changes) && changes[n].segment == number {
			n++
		}
		key := segmentKey(number)
		var d directory
		if v := b.Get(key); v != nil {
			if err := unseal(v, &d); err != nil {
				return fmt.Errorf("segment %d: %w", number, err)
			}
		}
		d, err := d.merge(changes[:n])
		if err != nil {
			return fmt.Errorf("segment %d: %w", number, err)
		}
		if len(d) == 0 {
			err = b.Delete(key)
		} else {
			var v []byte
			if v, err = seal(d, 8*len(d)); err == nil {
				err = b.Put(key, v)
			}
		}
		if err != nil {
			return err
		}
		changes = changes[n:]
	}
	return nil
}

// nextSegment returns the number of a segment that is not in the database yet.
func nextSegment(tx *bolt.Tx) (uint32, error) {
	k, _ := tx.Bucket(bucketSegments).Cursor().Last()
	if k == nil {
		return 1, nil
	}
	if len(k) != 4 {
		return 0, fmt.Errorf("%w: key of %d bytes in %q", errRow, len(k), bucketSegments)
	}
	return binary.BigEndian.Uint32(k) + 1, nil
}

func segmentKey(number uint32) []byte { return binary.BigEndian.AppendUint32(nil, number) }

// deleteWaiting deletes rows of waiting by their keys, which it sorts, and appends
// what that changes.
func deleteWaiting(tx *bolt.Tx, keys [][]byte, changes []change) ([]change, error) {
	slices.SortFunc(keys, bytes.Compare) // so a page is visited once
	b := tx.Bucket(bucketWaiting)
	for _, k := range keys {
		if err := b.Delete(k); err != nil {
			return nil, err
		}
		changes = append(changes, goneFrom(k))
	}
	return changes, nil
}

// goneFrom is the change to a part by the deletion of a row.
func goneFrom(key []byte) change {
	s, lane, _ := readWaitingKey(key)
	return change{s, part{lane: lane, rows: -1, first: lanes.Last}}
}

// writeWaiting deletes and puts rows of waiting.
func (e *edit) writeWaiting() (err error) {
	keys := make([][]byte, len(e.tail.gone))
	for i, g := range e.tail.gone {
		keys[i] = waitingKey(nil, g.segment, g.lane, g.order)
	}
	if e.changes, err = deleteWaiting(e.tx, keys, e.changes); err != nil {
		return err
	}
	// So the rows are sorted by their keys.
	slices.SortFunc(e.lanes, func(x, y changed) int { return cmp.Compare(homeOf(x.lane).number, homeOf(y.lane).number) })
	b := e.bucket(bucketWaiting)
	b.FillPercent = 0.9 // mostly at the end
	var key []byte      // bbolt keeps a copy
	for _, ch := range e.lanes {
		number := homeOf(ch.lane).number
		e.changes = append(e.changes, change{e.segment.number, part{number, int64(len(ch.moved)), ch.moved[0].item.Order}})
		for _, c := range ch.moved {
			key = waitingKey(key[:0], e.segment.number, number, c.item.Order)
			if err := b.Put(key, c.row); err != nil {
				return err
			}
		}
	}
	return writeDirectories(e.tx, e.changes)
}

// A span is what memory knows of the rows of a lane that are not in memory, in one
// segment or, while they are far from being next, in some of a window of segments.
type span struct {
	segment uint32
	rough   uint32      // 0, or the segments, as bits, of the window that begins with segment
	first   lanes.Order // of the rows that are not in memory; if rough, it or one before
}

// windowSize is how many segments a span may stand for.
const windowSize = 32

// roughSpan returns the span of a lane's part of a segment none of which is in memory.
func roughSpan(segment uint32, first lanes.Order) span {
	return span{segment / windowSize * windowSize, 1 << (segment % windowSize), first}
}

func compareSpans(a, b span) int { return compareOrders(a.first, b.first) }

// insertSpan puts a span among others, which are sorted.
func insertSpan(spans []span, s span) []span {
	i, _ := slices.BinarySearchFunc(spans, s, compareSpans)
	return slices.Insert(spans, i, s)
}

// sharpen makes the first of the spans, which are sorted, exact. A span for a window is
// taken apart for that. Segments without rows, beside those to skip, are left out; empty
// is one of them, or 0.
func sharpen(spans []span, c *bolt.Cursor, lane uint32, skip skip) (sharp []span, empty uint32) {
	for len(spans) > 0 && spans[0].rough != 0 {
		s := spans[0]
		spans = slices.Delete(spans, 0, 1)
		for left := s.rough; left != 0; left &= left - 1 {
			one := span{segment: s.segment + uint32(bits.TrailingZeros32(left)), first: s.first}
			if one.locate(c, lane, skip) {
				spans = insertSpan(spans, one)
			} else {
				empty = one.segment
			}
		}
	}
	return spans, empty
}

// locate makes first exact, and reports whether there is a row, beside those to skip.
func (s *span) locate(c *bolt.Cursor, lane uint32, skip skip) bool {
	prefix := waitingPrefix(s.segment, lane)
	for k, _ := c.Seek(orderKey(prefix, s.first)); len(k) == waitingKeyLen && bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		if !skip.has(k) {
			_, _, s.first = readWaitingKey(k)
			return true
		}
	}
	return false
}

// A skip is the rows of waiting that are gone by the journal, when the process that
// had them in memory is gone too.
type skip [2]map[string]bool

func (s skip) has(key []byte) bool { return s[0][string(key)] || s[1][string(key)] }

// skip returns what is to be skipped in the database as it is. The queue is locked.
func (q *Queue) skip() (s skip) {
	s[0] = q.tail.skip
	if q.sealed != nil {
		s[1] = q.sealed.skip
	}
	return s
}

// beyond returns the place of the first row of the lane that is in waiting and not
// in memory.
func (h *home) beyond() lanes.Order {
	if len(h.spans) == 0 {
		return lanes.Last
	}
	return h.spans[0].first
}

// place puts a span among the others.
func (h *home) place(s span) { h.spans = insertSpan(h.spans, s) }

const (
	// nearSpans is how many spans of a lane stay one for each segment.
	nearSpans = 16
	// foldSpans is how many a lane has more before they are folded again. One that was
	// taken apart is not folded for that.
	foldSpans = windowSize
)

// fold has the spans that are far from being next stand for windows, once there are
// many: so a lane of a large backlog takes little memory. That of the segment which is
// being filled stays as it is. Nothing that is in memory, or was, and is still in those
// segments comes after the first of such a span: all that was read of a lane comes before
// what was not.
func (h *home) fold(filling uint32) {
	if len(h.spans) < h.folded+foldSpans {
		return
	}
	far := h.spans[nearSpans:]
	slices.SortFunc(far, func(a, b span) int { return cmp.Compare(a.segment, b.segment) })
	windows := far[:0]
	for _, s := range far {
		if s.rough == 0 && s.segment != filling {
			s = roughSpan(s.segment, s.first)
		}
		if n := len(windows) - 1; n >= 0 && s.rough != 0 && windows[n].segment == s.segment {
			windows[n].rough |= s.rough
			windows[n].first = minOrder(windows[n].first, s.first)
		} else {
			windows = append(windows, s)
		}
	}
	slices.SortFunc(windows, compareSpans)
	h.spans = slices.Clone(h.spans[:nearSpans+len(windows)])
	h.folded = len(h.spans)
}

// displace takes out the span of a segment, if there is one.
func (h *home) displace(segment uint32) (s span, ok bool) {
	// It was placed lately, mostly.
	for i := len(h.spans) - 1; i >= 0; i-- {
		if s = h.spans[i]; s.segment == segment {
			h.spans = slices.Delete(h.spans, i, i+1)
			return s, true
		}
	}
	return span{}, false
}
