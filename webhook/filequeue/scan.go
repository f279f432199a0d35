package filequeue

import (
	"encoding/binary"
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

// A gap is a part of a segment in which no record can be read.
type gap struct{ from, to int64 }

// scan reads a segment up to the offset limit. The argument known says that the records end there.
// Otherwise they end with the last complete commit, and the bytes after this commit are torn.
//
// If another commit follows an incomplete one, the incomplete commit was complete once, so scan
// returns its readable records. Where scan finds no valid header, it searches for the next one.
func scan(r io.ReaderAt, salt uint64, limit int64, known bool) (c scanned, err error) {
	const usual = 512 // bytes of an average record
	c.records = make([]record, 0, limit/usual)
	w := window{r: r, limit: limit}
	var tags []byte // the memory of the tags
	// The variables records and gaps are the lengths that c.records and c.gaps had before the
	// current commit.
	records, gaps := 0, 0
	whole := true                    // every record of the current commit can be read
	off, lost := int64(0), int64(-1) // lost is where the current gap began, -1 outside of gaps
	for off+recordHeader <= limit {
		b, err := w.at(off, recordHeader)
		if err != nil {
			return c, err
		}
		if len(b) < recordHeader {
			break
		}
		h, ok := decodeHeader(b, salt, off)
		if ok {
			if b, err = w.at(off, recordHeader+int64(h.length)); err != nil {
				return c, err
			}
			ok = int64(len(b)) == recordHeader+int64(h.length)
		}
		if ok {
			h.damaged = h.damaged || crc32.Checksum(b[recordHeader:], castagnoli) != h.sum
			ok = lost < 0 || !h.damaged // behind a gap, both checksums must be right
		}
		if !ok {
			if lost < 0 {
				if !known && binary.LittleEndian.Uint64(b) == 0 && w.zero(off) {
					break
				}
				lost = off
			}
			off += 8
			continue
		}
		if lost >= 0 {
			c.gaps = append(c.gaps, gap{lost, off})
			lost = -1
		}
		if h.ordinal == 0 {
			records, gaps, whole = len(c.records), len(c.gaps), true
		}
		if cap(tags)-len(tags) < int(h.tag) {
			tags = make([]byte, 0, max(int(h.tag), 64<<10))
		}
		tags = append(tags, b[recordHeader:][:h.tag]...)
		c.records = append(c.records, record{header: h, off: uint32(off), payload: slices.Clip(tags[len(tags)-int(h.tag):])})
		off += recordSize(int(h.length))
		whole = whole && !h.damaged
		if h.last && whole && len(c.records) == records+int(h.ordinal)+1 && len(c.gaps) == gaps {
			c.last, c.end = int64(c.records[records].off), off
			records = len(c.records)
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
	from  int64 // the offset of b
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

// zero reports whether the file has only zeros from an offset on. Such bytes are space for later
// records.
func (w *window) zero(off int64) bool {
	b := make([]byte, 64<<10)
	for off < w.limit {
		n, err := w.r.ReadAt(b[:min(int64(len(b)), w.limit-off)], off)
		if slices.ContainsFunc(b[:n], func(c byte) bool { return c != 0 }) {
			return false
		}
		if off += int64(n); err != nil || n == 0 {
			return true
		}
	}
	return true
}
