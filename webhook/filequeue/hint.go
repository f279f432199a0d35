package filequeue

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
)

// A hint stands behind the records of a sealed segment. It has the header and the tag of each
// record; see recordHeader for both. It ends with a CRC-32C of all that, in 4 bytes. If the hint is
// valid, Open need not read the records.

// appendHint appends the hint of a segment with the records rs to b.
func appendHint(b []byte, rs []record, salt uint64) []byte {
	for _, r := range rs {
		b = append(r.append(b, salt, int64(r.off)), r.payload...)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeHint appends the records in the hint b to dst, with only their tags, which share the memory of
// b. ok reports whether the hint is valid, and has all records up to the offset end.
func decodeHint(b []byte, id segmentID, end int64, dst []record) (rs []record, ok bool) {
	n := len(b) - 4
	if n < recordHeader || crc32.Checksum(b[:n], castagnoli) != binary.LittleEndian.Uint32(b[n:]) {
		return dst, false
	}
	off := int64(0)
	rs = slices.Grow(dst, n/recordHeader)
	for b = b[:n]; len(b) >= recordHeader; {
		h, ok := decodeHeader(b, id.salt, off)
		if b = b[recordHeader:]; !ok || int64(h.tag) > int64(len(b)) {
			return dst, false
		}
		rs = append(rs, record{header: h, place: place{id.number, uint32(off)}, payload: b[:h.tag:h.tag]})
		b = b[h.tag:]
		off += recordSize(int(h.length))
	}
	return rs, len(b) == 0 && off == end
}

// hint appends the records of a segment to dst, if the segment ends at the offset end and has a
// valid hint there.
func (g *segment) hint(end int64, dst []record) (rs []record, ok bool) {
	size, err := g.file.Size()
	if err != nil || size <= end {
		return dst, false
	}
	b := make([]byte, size-end)
	if _, err := g.file.ReadAt(b, end); err != nil {
		return dst, false
	}
	return decodeHint(b, g.segmentID, end, dst)
}

// writeHint writes the hint of a sealed segment. It writes none if a part of the segment is damaged,
// so that each Open reads the segment and reports that part. The error is errUnread if the disk
// cannot read a part.
func (j *janitor) writeHint(g *segment) error {
	c, err := scan(g.file, g.segmentID, g.end, g.end)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnread, err)
	}
	if c.intact() {
		if err = g.file.Truncate(g.end); err == nil {
			_, err = g.file.WriteAt(appendHint(nil, c.records, g.salt), g.end)
		}
		if err == nil {
			err = g.file.Sync()
		}
		if err != nil {
			return err
		}
	}
	j.index.mu.Lock()
	g.hinted = true
	j.index.mu.Unlock()
	return nil
}

// records returns the records of a segment up to the offset end, where a record ends. It reads only
// the hint if there is one. The payload of each record is only its tag.
func (g *segment) records(end int64) ([]record, error) {
	if rs, ok := g.hint(end, nil); ok {
		return rs, nil
	}
	c, err := scan(g.file, g.segmentID, end, end)
	return c.records, err
}
