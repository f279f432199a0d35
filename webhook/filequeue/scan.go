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
	// torn is the number of bytes behind end that belong to a commit which was never completed. It is
	// zero if the end was known.
	torn int64
	gaps []gap
}

// A gap is a part of a segment in which no record can be read.
type gap struct{ from, to int64 }

// scan reads a segment up to limit. If known is set, the records end there. Otherwise they end with the
// last complete commit, and what follows is torn.
//
// An incomplete commit that another commit follows was complete once: its records count. Where a header
// cannot be read, scan looks for the next one.
func scan(r io.ReaderAt, sh *segmentHeader, limit int64, known bool) (c scanned, err error) {
	c.last, c.end = segmentStart, segmentStart
	var commit []record // the records of the current commit
	var gaps []gap
	flush := func() {
		c.records, commit = append(c.records, commit...), commit[:0]
		c.gaps, gaps = append(c.gaps, gaps...), nil
	}
	var tags []byte // the memory of the tags
	whole := true   // every record of the current commit can be read
	err = walk(r, sh, limit, known, func(w *record, g gap) {
		if g.to > 0 {
			gaps = append(gaps, g)
			return
		}
		if w.ordinal == 0 {
			flush()
			whole = true
		}
		s := *w
		if cap(tags)-len(tags) < int(s.tag) {
			tags = make([]byte, 0, max(int(s.tag), 64<<10))
		}
		tags = append(tags, w.payload[:s.tag]...)
		s.payload = slices.Clip(tags[len(tags)-int(s.tag):])
		whole = whole && !s.damaged
		commit = append(commit, s)
		if s.last && whole && len(commit) == int(s.ordinal)+1 && len(gaps) == 0 {
			c.last, c.end = int64(commit[0].off), int64(s.off)+recordSize(int(s.length))
			flush()
		}
	})
	switch {
	case known:
		flush()
		c.end = limit
	case len(commit) > 0:
		final := &commit[len(commit)-1]
		c.torn = int64(final.off) + recordSize(int(final.length)) - c.end
	case len(gaps) > 0:
		c.torn = gaps[len(gaps)-1].to - c.end
	}
	return c, err
}

// walk calls visit with each record of a segment up to limit, and with each gap between records. The
// payload is valid until visit returns. Unless known says that records go up to limit, zeros behind
// the last record are no gap.
func walk(r io.ReaderAt, sh *segmentHeader, limit int64, known bool, visit func(r *record, g gap)) error {
	w := window{r: r, limit: limit}
	lost := int64(0) // where a gap began
	off := int64(segmentStart)
	for off+recordHeader <= limit {
		b, err := w.at(off, recordHeader)
		if err != nil {
			return err
		}
		if len(b) < recordHeader {
			break
		}
		h, ok := decodeHeader(b, sh.salt, off)
		if ok {
			if b, err = w.at(off, recordHeader+int64(h.length)); err != nil {
				return err
			}
			ok = int64(len(b)) == recordHeader+int64(h.length)
		}
		if ok {
			h.damaged = h.damaged || crc32.Checksum(b[recordHeader:], castagnoli) != h.sum
			ok = lost == 0 || !h.damaged // behind a gap, both checksums must be right
		}
		if !ok {
			if lost == 0 {
				if !known && binary.LittleEndian.Uint64(b) == 0 && w.zero(off) {
					return nil
				}
				lost = off
			}
			off += 8
			continue
		}
		if lost > 0 {
			visit(nil, gap{lost, off})
			lost = 0
		}
		visit(&record{header: h, off: uint32(off), payload: b[recordHeader:]}, gap{})
		off += recordSize(int(h.length))
	}
	if lost == 0 && known && off < limit {
		lost = off
	}
	if lost > 0 {
		visit(nil, gap{lost, limit})
	}
	return nil
}

// A window reads a file from front to back.
type window struct {
	r     io.ReaderAt
	limit int64
	b     []byte
	from  int64 // the offset of b
}

// windowLen is the number of bytes read at once. A longer record makes the window longer.
const windowLen = 256 << 10

// at returns n bytes at an offset, fewer at the limit or the end of the file.
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

// zero reports whether only zeros follow, as in space that was reserved for more records.
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
