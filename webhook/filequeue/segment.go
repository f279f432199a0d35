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

	end     int64 // the offset where the records end; it grows while the segment is active
	live    int64 // bytes of the records that are needed
	sealed  bool  // no record is appended any more
	hinted  bool  // it has a hint, or gets none
	copied  bool  // a merge has copied records out of it: no other segment is removed before this one
	damaged bool  // the loader could not read all of it
}

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
	r = record{header: h, off: at.off, payload: b[recordHeader:]}
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

// count adds the bytes of an entry's records to the needed bytes of their segments. If by is -1, it
// subtracts them.
func (s segments) count(e *entry, by int64) {
	if g := s[e.put.seg]; g != nil {
		g.live += by * recordSize(int(e.length))
	}
	if e.units > 0 {
		if g := s[e.state.seg]; g != nil {
			g.live += by * 8 * int64(e.units)
		}
	}
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
	put, state *segment // nil if the segment is missing; state also if there is no state record
}

func (s segments) pin(e entry) pinned {
	p := pinned{entry: e, put: s[e.put.seg]}
	if p.put != nil {
		p.put.pins.Add(1)
	}
	if e.units > 0 {
		if p.state = s[e.state.seg]; p.state != nil {
			p.state.pins.Add(1)
		}
	}
	return p
}

func (p *pinned) release() {
	if p.put != nil {
		p.put.unpin()
	}
	if p.state != nil {
		p.state.unpin()
	}
}

// buffers pools the memory that records are read into.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxPooled is the size of the largest buffer, in bytes, that goes back to the pool buffers.
const maxPooled = 64 << 10

// load reads a delivery into d. If the caller has read the bytes of the put record already, b has
// these bytes; otherwise b is nil. After an errDamaged, d has the parts that could be read. After
// an errState, d has the delivery as it was put, with the due time or the time of death of its
// state, because the rest of the state cannot be read.
func (p *pinned) load(d *webhook.DeadLetter, b []byte) (err error) {
	buf := buffers.Get().(*[]byte)
	defer func() {
		if cap(*buf) <= maxPooled {
			buffers.Put(buf)
		}
	}()
	if p.put == nil {
		return fmt.Errorf("segment %d is missing: %w", p.entry.put.seg, errDamaged)
	}
	var r record
	if b != nil {
		r, err = p.put.decode(p.entry.put, p.seq, b)
	} else if r, err = p.put.read(p.entry.put, int(p.length), p.seq, *buf); err == nil {
		*buf = r.payload[:0]
	}
	if err != nil {
		if errors.Is(err, errDamaged) {
			r.readPut(&d.Delivery) // the ids may be readable
		}
		return err
	}
	if err := r.readPut(&d.Delivery); err != nil {
		return fmt.Errorf("segment %d, offset %d: %w: %w", p.put.number, p.entry.put.off, errDamaged, err)
	}
	if p.units == 0 {
		return nil
	}
	if p.state == nil {
		err = fmt.Errorf("segment %d is missing: %w", p.entry.state.seg, errDamaged)
	} else if r, err = p.state.read(p.entry.state, p.stateLength(), p.seq, nil); err == nil {
		if err = r.readState(d); err != nil {
			err = fmt.Errorf("segment %d, offset %d: %w", p.state.number, p.entry.state.off, errDamaged)
		}
	}
	if errors.Is(err, errDamaged) {
		d.Due, d.Died = p.dueAt(), p.dueAt()
		return fmt.Errorf("%w: %w", errState, err)
	}
	return err
}

// errState says that a delivery can be read as it was put, but that its state record cannot be
// read.
var errState = errors.New("its attempts cannot be read")

// unhinted returns the sealed segments that need a hint and have none, the latest last.
func (s segments) unhinted() (all []*segment) {
	for _, n := range s.numbers() {
		if g := s[n]; g.sealed && !g.hinted && g.live > 0 {
			all = append(all, g)
		}
	}
	return all
}
