package boltqueue

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
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
	*d = make(directory, 0, len(b)/8)
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

// A row is one of a bucket.
type row struct{ key, value []byte }

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

// putWaiting puts rows into waiting, which it sorts.
func putWaiting(tx *bolt.Tx, rows []row) error {
	slices.SortFunc(rows, func(x, y row) int { return bytes.Compare(x.key, y.key) })
	b := tx.Bucket(bucketWaiting)
	b.FillPercent = 0.9 // mostly at the end
	for _, r := range rows {
		if err := b.Put(r.key, r.value); err != nil {
			return err
		}
	}
	return nil
}

// goneFrom is the change to a part by the deletion of a row.
func goneFrom(key []byte) change {
	s, lane, _ := readWaitingKey(key)
	return change{s, part{lane: lane, rows: -1, first: lanes.Last}}
}

// writeWaiting deletes and puts rows of waiting.
func (e *edit) writeWaiting() (err error) {
	keys := make([][]byte, len(e.q.tail.gone))
	for i, g := range e.q.tail.gone {
		keys[i] = waitingKey(nil, g.segment, g.lane, g.order)
	}
	if e.changes, err = deleteWaiting(e.tx, keys, e.changes); err != nil {
		return err
	}
	rows := make([]row, 0, len(e.moved))
	n := 0
	for _, ch := range e.lanes {
		number := homeOf(ch.lane).number
		e.changes = append(e.changes, change{e.segment.number, part{number, int64(len(ch.rows)), e.moved[n].Order}})
		for _, v := range ch.rows {
			it := e.moved[n]
			n++
			if v == nil {
				if v, err = seal(&it.Delivery, len(it.Body)); err != nil {
					return err
				}
			}
			rows = append(rows, row{waitingKey(nil, e.segment.number, number, it.Order), v})
		}
	}
	if err := putWaiting(e.tx, rows); err != nil {
		return err
	}
	return writeDirectories(e.tx, e.changes)
}

// A span is what memory knows of a lane's part of a segment that is not all in
// memory.
type span struct {
	segment uint32
	rough   bool        // first was read from the directory
	first   lanes.Order // of the rows that are not in memory; if rough, it or one before
}

func compareSpans(a, b span) int { return compareOrders(a.first, b.first) }

// locate makes first exact, and reports whether there is a row.
func (s *span) locate(c *bolt.Cursor, lane uint32) bool {
	s.rough = false
	prefix := waitingPrefix(s.segment, lane)
	k, _ := c.Seek(orderKey(prefix, s.first))
	if len(k) != waitingKeyLen || !bytes.HasPrefix(k, prefix) {
		return false
	}
	_, _, s.first = readWaitingKey(k)
	return true
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
func (h *home) place(s span) {
	i, _ := slices.BinarySearchFunc(h.spans, s, compareSpans)
	h.spans = slices.Insert(h.spans, i, s)
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
