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
	// torn is the number of bytes after end that belong to an incomplete commit. It is zero if the
	// argument known of scan was true.
	torn int64
	gaps []gap
}

// intact reports whether all of the segment can be read.
func (c *scanned) intact() bool {
	return len(c.gaps) == 0 && !slices.ContainsFunc(c.records, func(r record) bool { return r.damaged })
}

// A gap is a part of a segment in which no record can be read.
type gap struct{ from, to int64 }

// scan reads a segment up to the offset limit. The argument known says that the records end there.
// Otherwise they end with the last complete commit, and the bytes after this commit are torn.
//
// If another commit follows an incomplete one, the incomplete commit was complete once, so scan
// returns its readable records. Where scan finds no valid header, it searches for the next one.
func scan(r io.ReaderAt, id segmentID, limit int64, known bool) (c scanned, err error) {
	const usual = 512 // bytes of an average record
	c.records = make([]record, 0, limit/usual)
	w := window{r: r, limit: limit}
	records, gaps := 0, 0            // the lengths of c.records and c.gaps before the current commit
	whole := false                   // all records of the current commit can be read so far
	off, lost := int64(0), int64(-1) // lost is where the current gap began, -1 outside of gaps
	for off+recordHeader <= limit {
		r, err := w.record(off, id)
		if err != nil {
			return c, err
		}
		if r.kind == 0 || lost >= 0 && r.damaged { // behind a gap, both checksums must be right
			if lost < 0 {
				if !known && w.zero(off) {
					break
				}
				lost, whole = off, false
			}
			off += 8
			continue
		}
		if lost >= 0 {
			c.gaps = append(c.gaps, gap{lost, off})
			lost = -1
		}
		if r.first {
			records, gaps, whole = len(c.records), len(c.gaps), true
		}
		c.records = append(c.records, r)
		off += recordSize(int(r.length))
		whole = whole && !r.damaged
		if r.last && whole {
			c.last, c.end = int64(c.records[records].off), off
			records, whole = len(c.records), false
		}
	}
	if known {
		if lost < 0 && off < limit {
			lost = off
		}
		if c.end = limit; lost >= 0 {
			c.gaps = append(c.gaps, gap{lost, limit})
		}
		return c, nil
	}
	if lost >= 0 {
		off = limit
	}
	if c.records, c.gaps = c.records[:records], c.gaps[:gaps]; off > c.end {
		c.torn = off - c.end
	}
	return c, nil
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
	h, ok := decodeHeader(b, id.salt, off)
	if !ok {
		return r, nil
	}
	size := recordHeader + int64(h.length)
	if b, err = w.at(off, size); err != nil || int64(len(b)) < size {
		return r, err
	}
	payload := b[recordHeader:]
	if cap(w.tags)-len(w.tags) < int(h.tag) {
		w.tags = make([]byte, 0, max(int(h.tag), 64<<10))
	}
	w.tags = append(w.tags, payload[:h.tag]...)
	tag := slices.Clip(w.tags[len(w.tags)-int(h.tag):])
	return record{header: h, place: place{id.number, uint32(off)}, payload: tag, damaged: crc32.Checksum(payload, castagnoli) != h.sum}, nil
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
