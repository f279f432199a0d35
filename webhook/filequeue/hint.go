package filequeue

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"

	"github.com/hookferry/analytics/internal/disk"
)

// A hint file has the header and the tag of each record of a sealed segment; see recordHeader for
// both. If the hint file is valid, Open need not read the segment. The format:
//
//	"hookhnt3"             8 bytes
//	where the segment ends 8
//	the header and the tag of each record
//	CRC-32C of all above   4
const (
	hintMagic     = "hookhnt3"
	hintStart     = 16
	hintTemporary = "hint" // the name of a hint file that is being written
)

// maxHint is how much of a hint file is read, in bytes. A longer file cannot be decoded.
const maxHint = 256 << 20

// encodeHint returns the hint file of a segment that has the records rs and ends at end.
func encodeHint(rs []record, salt uint64, end int64) []byte {
	size := hintStart + 4
	for _, r := range rs {
		size += recordHeader + len(r.payload)
	}
	b := append(make([]byte, 0, size), hintMagic...)
	b = binary.LittleEndian.AppendUint64(b, uint64(end))
	for _, r := range rs {
		b = append(r.append(b, salt, int64(r.off)), r.payload...)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

var errHint = errors.New("malformed hint file")

// decodeHint appends the records in the hint file b to dst. The payload of each record is only its
// tag, and shares the memory of b.
func decodeHint(b []byte, salt uint64, end int64, dst []record) ([]record, error) {
	n := len(b) - 4
	if n < hintStart || string(b[:8]) != hintMagic || int64(binary.LittleEndian.Uint64(b[8:])) != end ||
		crc32.Checksum(b[:n], castagnoli) != binary.LittleEndian.Uint32(b[n:]) {
		return nil, errHint
	}
	off := int64(0)
	dst = slices.Grow(dst, n/recordHeader)
	for b = b[hintStart:n]; len(b) > 0; {
		if len(b) < recordHeader {
			return nil, errHint
		}
		h, ok := decodeHeader(b, salt, off)
		if b = b[recordHeader:]; !ok || int64(h.tag) > int64(len(b)) {
			return nil, errHint
		}
		dst = append(dst, record{header: h, off: uint32(off), payload: b[:h.tag:h.tag]})
		b = b[h.tag:]
		off += recordSize(int(h.length))
	}
	return dst, nil
}

// records returns the records of a segment up to the offset end, where a record ends. It reads the
// hint file if the hint file is valid, and otherwise the segment. The payload of each record is
// only its tag.
func (g *segment) records(d disk.Disk, end int64) ([]record, error) {
	if b, err := readAll(d, g.hint(), maxHint); err == nil {
		if rs, err := decodeHint(b, g.salt, end, nil); err == nil {
			return rs, nil
		}
	}
	c, err := scan(g.file, g.salt, end, true)
	return c.records, err
}

// replace replaces the content of a file. It writes b to a temporary file, syncs it, and renames
// it.
func replace(d disk.Disk, temporary, name string, b []byte) error {
	if err := d.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := d.Create(temporary)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(b, 0); err == nil {
		err = f.Sync()
	}
	f.Close()
	if err == nil {
		err = d.Rename(temporary, name)
	}
	if err != nil {
		d.Remove(temporary)
	}
	return err
}

// readAll reads a file, up to limit bytes.
func readAll(d disk.Disk, name string, limit int64) ([]byte, error) {
	f, err := d.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(size, limit))
	n, err := f.ReadAt(b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}
