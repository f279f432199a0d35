package filequeue

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/internal/disk"
)

// A segmentID is the name of a segment. Names sort by their numbers. The random salt is part of the
// checksums of headers, so no body can have bytes that pass for a record of the segment.
type segmentID struct {
	number uint32
	salt   uint64
}

func (id segmentID) name() string { return string(id.append(make([]byte, 0, 64))) }

// append appends the name to b.
func (id segmentID) append(b []byte) []byte {
	b = append(b, "segment"...)
	at := len(b)
	b = strconv.AppendUint(b, 1e10+uint64(id.number), 10) // 10 digits behind the first one
	b[at] = '-'
	var salt [8]byte
	binary.BigEndian.PutUint64(salt[:], id.salt)
	return append(hex.AppendEncode(append(b, '-'), salt[:]), ".log"...)
}

// parseName returns the segment with a name. ok reports whether it is the name of a segment.
func parseName(name string) (id segmentID, ok bool) {
	_, err := fmt.Sscanf(name, "segment-%d-%x", &id.number, &id.salt)
	return id, err == nil && name == id.name()
}

// A segment is a file of records. index.mu guards the fields from end on.
type segment struct {
	id   segmentID
	file disk.File
	pins atomic.Int32 // one for the index, and one for each reader; the last unpin closes the file

	end    int64 // the offset where the records end; it grows while the segment is active
	live   int64 // bytes of the records of deliveries and documents that are needed
	keys   int64 // bytes of the records of kindKeys
	sealed bool  // no record is appended any more
	hinted bool  // it has a hint, or can have none because it is damaged
	copied bool  // it has an old copy of a record that is needed elsewhere

	later time.Time // until then the janitor leaves it alone; only the janitor uses this
}

func (g *segment) needed() int64 { return g.live + g.keys }

func (g *segment) unpin() {
	if g.pins.Add(-1) == 0 {
		g.file.Close()
	}
}

// segments holds the segments of a store by number. index.mu guards the map.
type segments map[uint32]*segment

// numbers returns all numbers in order.
func (s segments) numbers() []uint32 { return slices.Sorted(maps.Keys(s)) }

// record returns a record of kindSegments that lists all segments with a commit, except the number
// without. It lists the active one, too, because the commit of the record may begin a new segment.
func (s segments) record(without uint32) record {
	var refs []ref
	for _, n := range s.numbers() {
		if n != without && s[n].end > 0 {
			refs = append(refs, ref{uint64(s[n].end), n})
		}
	}
	return listing(kindSegments, refs)
}

// live returns the bytes that Config.MaxBytes bounds.
func (s segments) live() (bytes int64) {
	for _, g := range s {
		bytes += g.live
	}
	return bytes
}

// bytes reads n bytes of a segment. It uses the memory of b if b is long enough.
func (g *segment) bytes(off, n int64, b []byte) ([]byte, error) {
	if int64(len(b)) < n {
		b = make([]byte, n)
	}
	_, err := g.file.ReadAt(b[:n], off)
	if errors.Is(err, io.EOF) {
		err = errDamaged
	}
	if err != nil {
		return nil, fmt.Errorf("segment %d, offset %d: %w", g.id.number, off, err)
	}
	return b[:n], nil
}

// decode decodes the record at a position, which begins with the bytes b. It checks that the record has
// the sequence number seq. If the error is errDamaged, r has the bytes that can be read.
func (g *segment) decode(at position, seq uint64, b []byte) (r record, err error) {
	r, ok := decodeHeader(b, g.id, int64(at.off))
	r.payload = b[recordHeader:]
	if ok = ok && r.seq == seq && int(r.length) <= len(r.payload); ok {
		r.payload = r.payload[:r.length]
		ok = crc32.Checksum(r.payload, castagnoli) == r.sum
	}
	if !ok {
		err = fmt.Errorf("segment %d, offset %d: %w", g.id.number, at.off, errDamaged)
	}
	return r, err
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
	return decodeHint(b, g.id, end, dst)
}

// records returns the records of a segment up to the offset end, where a record ends. It reads only
// the hint if there is one. The payload of each record is only its tag.
func (g *segment) records(end int64) ([]record, error) {
	if rs, ok := g.hint(end, nil); ok {
		return rs, nil
	}
	c, err := scan(g.file, g.id, end, end)
	return c.records, err
}

// pin returns an entry with its segments pinned.
func (s segments) pin(e entry, i int) pinned {
	p := pinned{entry: e, put: s[e.put.seg], i: i}
	p.put.pins.Add(1)
	if e.units > 0 {
		p.state = s[e.state.seg]
		p.state.pins.Add(1)
	}
	return p
}
