package filequeue

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/webhook"
)

// A segmentID is the name of a segment. The random salt is part of the checksums of headers, so no
// body can have bytes that pass for a record of the segment.
type segmentID struct {
	number uint32
	salt   uint64
}

func (id segmentID) name() string { return fmt.Sprintf("segment-%08d-%016x.log", id.number, id.salt) }

// parseName returns the segment with a name. ok reports whether it is the name of a segment.
func parseName(name string) (id segmentID, ok bool) {
	_, err := fmt.Sscanf(name, "segment-%d-%x", &id.number, &id.salt)
	return id, err == nil && name == id.name()
}

// A segment is a file of records. index.mu guards the fields from end on.
type segment struct {
	segmentID
	file disk.File
	pins atomic.Int32 // one for the index, and one for each reader; the last unpin closes the file

	end    int64 // the offset where the records end; it grows while the segment is active
	live   int64 // bytes of the records of deliveries and settings that are needed
	keys   int64 // bytes of the records of kindKeys
	sealed bool  // no record is appended any more
	hinted bool  // it has a hint
	copied bool  // a merge has copied records out of it: no other segment is removed before this one
}

func (g *segment) needed() int64 { return g.live + g.keys }

func (g *segment) unpin() {
	if g.pins.Add(-1) == 0 {
		g.file.Close()
	}
}

// errDamaged says that the disk returned bytes, but that they are no valid record.
var errDamaged = errors.New("damaged")

// read reads the record at a place, whose payload has up to length bytes. It checks that the record
// has the sequence number seq. read uses the memory of b if b is large enough. If the error is
// errDamaged, r has the bytes that were read.
func (g *segment) read(at place, length int, seq uint64, b []byte) (r record, err error) {
	n := recordHeader + length
	if cap(b) < n {
		b = make([]byte, n)
	}
	if _, err := g.file.ReadAt(b[:n], int64(at.off)); err != nil {
		if errors.Is(err, io.EOF) {
			err = errDamaged
		}
		return r, fmt.Errorf("segment %d, offset %d: %w", g.number, at.off, err)
	}
	return g.decode(at, seq, b[:n])
}

// decode does the same as read, for a record whose bytes b are in memory already.
func (g *segment) decode(at place, seq uint64, b []byte) (r record, err error) {
	h, ok := decodeHeader(b, g.salt, int64(at.off))
	r = record{header: h, place: at, payload: b[recordHeader:]}
	if ok = ok && h.seq == seq && int(h.length) <= len(r.payload); ok {
		r.payload = r.payload[:h.length]
		ok = crc32.Checksum(r.payload, castagnoli) == h.sum
	}
	if !ok {
		err = fmt.Errorf("segment %d, offset %d: %w", g.number, at.off, errDamaged)
	}
	return r, err
}

// segments holds the segments of a store by number. index.mu guards the map.
type segments map[uint32]*segment

// numbers returns all numbers in order.
func (s segments) numbers() []uint32 { return slices.Sorted(maps.Keys(s)) }

// record returns a record of kindSegments that lists all segments except the one with the number
// without. The commit of the record may begin a new segment, so the active segment is listed, too.
func (s segments) record(without uint32) record {
	var refs []ref
	for _, n := range s.numbers() {
		if n != without {
			refs = append(refs, ref{uint64(s[n].end), n})
		}
	}
	return listing(kindSegments, refs)
}

// bytes returns the size of all segments, and how much of it is needed.
func (s segments) bytes() (total, live int64) {
	for _, g := range s {
		total += g.end
		live += g.live
	}
	return total, live
}

// A pinned is an entry that can be read without holding index.mu: its files stay open until
// release.
type pinned struct {
	entry
	put, state *segment // state is nil if there is no state record
}

func (s segments) pin(e entry) pinned {
	p := pinned{entry: e, put: s[e.put.seg]}
	p.put.pins.Add(1)
	if e.units > 0 {
		p.state = s[e.state.seg]
		p.state.pins.Add(1)
	}
	return p
}

func (p *pinned) release() {
	p.put.unpin()
	if p.state != nil {
		p.state.unpin()
	}
}

// buffers pools the memory that records are read into.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxPooled is the size of the largest buffer, in bytes, that goes back to the pool buffers.
const maxPooled = 64 << 10

// load reads a delivery into d, and returns the header of its whole record. If the caller has read
// the bytes of that record already, b has these bytes; otherwise b is nil. After an errDamaged, d
// has the parts that could be read. If only the state record is damaged, load logs that, and d is
// the delivery as it was put, with the due time or the time of death of its state. Only the state
// said when the retry window ends. The window may be over, so it ends with the due time.
func (s *Store) load(p *pinned, d *webhook.DeadLetter, b []byte) (h header, err error) {
	buf := buffers.Get().(*[]byte)
	defer func() {
		if cap(*buf) <= maxPooled {
			buffers.Put(buf)
		}
	}()
	var r record
	if b != nil {
		r, err = p.put.decode(p.entry.put, p.seq, b)
	} else if r, err = p.put.read(p.entry.put, int(p.length), p.seq, *buf); err == nil {
		*buf = r.payload[:0]
	}
	if derr := r.readDelivery(d); err == nil && derr != nil {
		err = fmt.Errorf("segment %d, offset %d: %w: %w", p.put.number, p.entry.put.off, errDamaged, derr)
	}
	if err != nil || p.units == 0 {
		return r.header, err
	}
	h = r.header
	if r, err = p.state.read(p.entry.state, p.stateLength(), p.seq, nil); err == nil {
		if err = r.readDelivery(d); err == nil {
			return h, nil
		}
		err = fmt.Errorf("segment %d, offset %d: %w", p.state.number, p.entry.state.off, errDamaged)
	}
	if errors.Is(err, errDamaged) {
		complain(s, "the attempts of a delivery cannot be read; a waiting delivery is attempted at most once more", p.seq, d, err)
		d.Due, d.Expires, d.Died = p.dueAt(), p.dueAt(), p.dueAt()
		err = nil
	}
	return h, err
}

// unhinted returns the sealed segments that need a hint and have none, the latest last.
func (s segments) unhinted() (all []*segment) {
	for _, n := range s.numbers() {
		if g := s[n]; g.sealed && !g.hinted && g.live > 0 {
			all = append(all, g)
		}
	}
	return all
}
