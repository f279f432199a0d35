package filequeue

import (
	"errors"
	"hash/crc32"
	"io"
	"slices"
)

// A scanned is the result of reading a whole segment.
type scanned struct {
	records []record // with their tags
	last    int64    // the offset where the last commit begins
	end     int64    // the offset where the records end
	gaps    []gap
	// incomplete says that the last commit may not have been completed, and that a part of it
	// cannot be read: the holes, and torn bytes after end.
	incomplete bool
	holes      []gap
	torn       int64
}

// intact reports whether all of the segment can be read.
func (c *scanned) intact() bool {
	return len(c.gaps) == 0 && !slices.ContainsFunc(c.records, func(r record) bool { return r.damaged })
}

// A gap is a part of a segment in which no record can be read.
type gap struct{ from, to int64 }

// scan reads a segment up to the offset limit. The commits up to the offset known were complete, so
// scan returns all of their records that can be read. The same holds for a commit that another one
// follows. If it is in doubt whether the last commit was complete, scan returns only the records of
// the ops that can be read as a whole. Where scan finds no valid header, it searches for the next one.
func scan(r io.ReaderAt, id segmentID, known, limit int64) (c scanned, err error) {
	const usual = 512 // bytes of an average record
	limit = max(known, limit)
	c.records = make([]record, 0, limit/usual)
	w := window{r: r, limit: limit}
	records, gaps := 0, 0            // the lengths of c.records and c.gaps at c.end
	begin, whole := int64(0), false  // where the current commit begins, and whether all of it can be read so far
	off, lost := int64(0), int64(-1) // lost is where the current gap began, -1 outside of gaps
	found := func(to int64) {        // ends the current gap
		if lost >= 0 {
			c.gaps = append(c.gaps, gap{lost, to})
			lost = -1
		}
	}
	complete := func(end int64) { records, gaps, c.last, c.end = len(c.records), len(c.gaps), begin, end }
	for {
		if off >= known {
			if c.end < known {
				found(known)
				complete(known)
			}
			if off+recordHeader > limit {
				break
			}
		}
		r, err := w.record(off, id)
		if err != nil {
			return c, err
		}
		if r.kind == 0 || lost >= 0 && r.damaged { // behind a gap, both checksums must be right
			if lost < 0 {
				if off >= known && w.zero(off) {
					break
				}
				lost, whole = off, false
			}
			off += 8
			continue
		}
		found(off)
		if r.has(flagFirst) {
			if off > c.end { // the commit before was complete, as this one follows it
				complete(off)
			}
			begin, whole = off, true
		}
		c.records = append(c.records, r)
		off += recordSize(int(r.length))
		whole = whole && !r.damaged
		if r.has(flagLast) && whole {
			complete(off)
			whole = false
		}
	}
	if lost >= 0 {
		off = limit
	}
	doubt := c.records[records:]
	c.records, c.gaps = c.records[:records], c.gaps[:gaps]
	c.incomplete = off > c.end
	c.keep(doubt)
	c.torn = max(off-c.end, 0)
	return c, nil
}

// keep appends the records of those ops that can be read as a whole to c.records. The argument rs has
// the readable records of the last commit, which begins at c.end.
func (c *scanned) keep(rs []record) {
	start := -1 // where the current op begins, -1 if it cannot be read
	next := int64(0)
	last := c.end
	for i := range rs {
		r := &rs[i]
		if r.has(flagBegin) {
			start = i
		} else if int64(r.pos.off) != next {
			start = -1
		}
		if next = int64(r.pos.off) + recordSize(int(r.length)); r.damaged {
			start = -1
		}
		if start < 0 || !r.has(flagEnd) {
			continue
		}
		if from := int64(rs[start].pos.off); from > c.end {
			c.holes = append(c.holes, gap{c.end, from})
		}
		c.records = append(c.records, rs[start:i+1]...)
		c.last, c.end, start = last, next, -1
	}
	if c.last == last && c.end > last {
		c.records[len(c.records)-1].flags |= flagLast
	}
}

// A window buffers a file that is read from front to back.
type window struct {
	r     io.ReaderAt
	limit int64
	b     []byte
	from  int64  // the offset of b
	tags  []byte // the memory of the tags of records
}

// windowLen is the number of bytes read at once. A longer record makes the window longer.
const windowLen = 256 << 10

// at returns n bytes at an offset, or fewer at the limit or the end of the file. The bytes are
// valid until the next call.
func (w *window) at(off, n int64) ([]byte, error) {
	n = min(n, w.limit-off)
	if off >= w.from && off+n <= w.from+int64(len(w.b)) {
		return w.b[off-w.from:][:n], nil
	}
	size := min(max(n, windowLen), w.limit-off)
	if int64(cap(w.b)) < size {
		w.b = make([]byte, size)
	}
	w.b, w.from = w.b[:size], off
	read, err := w.r.ReadAt(w.b, off)
	if w.b = w.b[:read]; err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return w.b[:min(n, int64(read))], nil
}

// record returns the record at an offset, with only its tag. If there is no valid header of a
// record, the result has the kind 0.
func (w *window) record(off int64, id segmentID) (r record, err error) {
	b, err := w.at(off, recordHeader)
	if err != nil || len(b) < recordHeader {
		return r, err
	}
	r, ok := decodeHeader(b, id, off)
	if !ok {
		return record{}, nil
	}
	size := recordHeader + int64(r.length)
	if b, err = w.at(off, size); err != nil || int64(len(b)) < size {
		return record{}, err
	}
	payload := b[recordHeader:]
	if cap(w.tags)-len(w.tags) < int(r.tag) {
		w.tags = make([]byte, 0, max(int(r.tag), 64<<10))
	}
	w.tags = append(w.tags, payload[:r.tag]...)
	r.payload = slices.Clip(w.tags[len(w.tags)-int(r.tag):])
	r.damaged = crc32.Checksum(payload, castagnoli) != r.sum
	return r, nil
}

// zero reports whether the file has only zeros from an offset on. Such bytes are space for later
// records.
func (w *window) zero(off int64) bool {
	for off < w.limit {
		b, err := w.at(off, windowLen)
		if err != nil || len(b) == 0 {
			break
		}
		if slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) {
			return false
		}
		off += int64(len(b))
	}
	return true
}

// mend completes the last commit of a segment, which begins with the bytes b, after scan has left out
// some of its ops.
func (c *scanned) mend(b []byte, salt uint64) {
	for _, p := range c.holes {
		hole := b[p.from-c.last : p.to-c.last]
		clear(hole)
		r := record{kind: kindGone, length: uint32(len(hole) - recordHeader), flags: flagBegin | flagEnd}
		if p.from == c.last {
			r.flags |= flagFirst
		}
		r.sum = crc32.Checksum(hole[recordHeader:], castagnoli)
		r.append(hole[:0], salt, p.from)
	}
	if n := len(c.records); n > 0 {
		r := &c.records[n-1]
		r.append(b[int64(r.pos.off)-c.last:][:0], salt, int64(r.pos.off))
	}
}
