package filequeue

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// A hint stands behind the records of a sealed segment. It has the header and the tag of each
// record; see recordHeader for both. It ends with a CRC-32C of all that, in 4 bytes. If the hint is
// valid, Open need not read the records.

// appendHint appends the hint of a segment with the records rs to b.
func appendHint(b []byte, rs []record, salt uint64) []byte {
	for _, r := range rs {
		b = append(r.append(b, salt, int64(r.pos.off)), r.payload...)
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
		r, ok := decodeHeader(b, id, off)
		if b = b[recordHeader:]; !ok || int64(r.tag) > int64(len(b)) {
			return dst, false
		}
		r.payload = b[:r.tag:r.tag]
		rs = append(rs, r)
		b = b[r.tag:]
		off += recordSize(int(r.length))
	}
	return rs, len(b) == 0 && off == end
}
