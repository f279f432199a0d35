package filequeue

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
)

// A scanned is what a reading of a whole segment has found.
type scanned struct {
	summaries []summary
	// last is where the last commit begins, and end where the records end.
	last, end int64
	// torn is how many bytes follow that belong to a commit which was never completed. Zero
	// if the end was known.
	torn int64
	// gaps are stretches in which no record can be read.
	gaps []gap
}

type gap struct{ from, to int64 }

// scan reads a segment up to limit. If known is set the records end there; else they end with
// the last complete commit, and what follows is torn.
//
// A commit that is incomplete, but is followed by another, was complete once: what can be read of
// it counts. Where a header cannot be read, the scan looks for the next that can.
func scan(r io.ReaderAt, sh *segmentHeader, limit int64, known bool) (c scanned, err error) {
	c.last, c.end = segmentStart, segmentStart
	var commit []summary // the present one
	var gaps []gap
	flush := func() {
		c.summaries, commit = append(c.summaries, commit...), nil
		c.gaps, gaps = append(c.gaps, gaps...), nil
	}
	complete := false // the commit is, or was followed by another
	whole := true     // no record of the commit is damaged
	err = walk(r, sh, limit, known, func(w *walked) error {
		if w.gap.to > 0 {
			gaps = append(gaps, w.gap)
			return nil
		}
		if w.index == 0 {
			flush()
			whole = true
		}
		s := summary{kind: w.kind, seq: w.seq, user: w.user, off: uint32(w.off), size: w.size, damaged: !w.ok}
		if w.ok && s.summarize(w.payload) != nil {
			s.damaged = true
		}
		whole = whole && !s.damaged
		commit = append(commit, s)
		if complete = w.last && whole && len(commit) == int(w.index)+1 && len(gaps) == 0; complete {
			c.last = int64(commit[0].off)
			flush()
			c.end = w.off + w.recordSize()
		}
		return nil
	})
	if known {
		flush()
		c.end = limit
	} else if len(commit) > 0 {
		c.torn = int64(commit[len(commit)-1].off) + recordSize(int(commit[len(commit)-1].size)) - c.end
	} else if len(gaps) > 0 {
		c.torn = gaps[len(gaps)-1].to - c.end
	}
	return c, err
}

// A walked is a record, or a gap if that has a length.
type walked struct {
	header
	off     int64
	payload []byte // valid until visit returns
	ok      bool   // the payload is as it was written
	gap     gap
}

// walk visits the records of a segment up to limit, and the gaps between them. Unless it is known
// that there are records up to limit, zeros behind the last are no gap.
func walk(r io.ReaderAt, sh *segmentHeader, limit int64, known bool, visit func(w *walked) error) error {
	w := window{r: r, limit: limit}
	var lost *gap
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
			b, err = w.at(off, recordHeader+int64(h.size))
			if err != nil {
				return err
			}
			// Two checks have to agree before a record behind a gap is believed.
			ok = int64(len(b)) == recordHeader+int64(h.size) && (lost == nil || crc32.Checksum(b[recordHeader:], castagnoli) == h.sum)
		}
		if !ok {
			if lost == nil {
				if !known && binary.LittleEndian.Uint64(b) == 0 && w.zero(off) {
					return nil
				}
				lost = &gap{from: off}
			}
			off += 8
			continue
		}
		if lost != nil {
			lost.to = off
			if err := visit(&walked{gap: *lost}); err != nil {
				return err
			}
			lost = nil
		}
		payload := b[recordHeader:]
		v := walked{header: h, off: off, payload: payload, ok: crc32.Checksum(payload, castagnoli) == h.sum}
		if err := visit(&v); err != nil {
			return err
		}
		off += h.recordSize()
	}
	if lost == nil && known && off < limit {
		lost = &gap{from: off}
	}
	if lost != nil {
		lost.to = limit
		return visit(&walked{gap: *lost})
	}
	return nil
}

// A window reads a file from the front.
type window struct {
	r     io.ReaderAt
	limit int64
	b     []byte
	from  int64 // where b is
}

// windowLen is how much is read at once, in bytes. A longer record makes the window longer.
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

// zero reports whether nothing but zeros follows, as in space that was made for records to come.
func (w *window) zero(off int64) bool {
	b := make([]byte, 64<<10)
	for off < w.limit {
		n, err := w.r.ReadAt(b[:min(int64(len(b)), w.limit-off)], off)
		for _, c := range b[:n] {
			if c != 0 {
				return false
			}
		}
		if off += int64(n); err != nil || n == 0 {
			return true
		}
	}
	return true
}
