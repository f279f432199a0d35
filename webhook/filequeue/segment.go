package filequeue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/webhook"
)

// A segmentHeader is at the beginning of a segment, twice, so that one damaged sector does
// not hide the salt:
//
//	"hookseg1"  8 bytes
//	number      4
//	number of the segment before  4, 0 if there is none
//	salt        8
//	where the segment before ends  8
//	the next sequence number  8
//	CRC-32C     4
type segmentHeader struct {
	number, prev uint32
	salt         uint64
	prevEnd      int64
	seq          uint64
}

const (
	segmentMagic = "hookseg1"
	headerCopy   = 512  // where the second copy is
	segmentStart = 1024 // where the records begin
	headerLen    = 44
)

func (h *segmentHeader) encode() []byte {
	b := make([]byte, 0, segmentStart)
	b = append(b, segmentMagic...)
	b = binary.LittleEndian.AppendUint32(b, h.number)
	b = binary.LittleEndian.AppendUint32(b, h.prev)
	b = binary.LittleEndian.AppendUint64(b, h.salt)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.prevEnd))
	b = binary.LittleEndian.AppendUint64(b, h.seq)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	b = b[:segmentStart]
	copy(b[headerCopy:], b[:headerLen])
	return b
}

// errHeader says that neither copy of a segment's header can be read.
var errHeader = errors.New("the header of the segment cannot be read")

func readSegmentHeader(f disk.File) (h segmentHeader, err error) {
	b := make([]byte, segmentStart)
	if n, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return h, err
	} else if n < segmentStart {
		clear(b[n:])
	}
	for _, off := range []int{0, headerCopy} {
		c := b[off : off+headerLen]
		if string(c[:8]) == segmentMagic && crc32.Checksum(c[:40], castagnoli) == binary.LittleEndian.Uint32(c[40:]) {
			return segmentHeader{
				number:  binary.LittleEndian.Uint32(c[8:]),
				prev:    binary.LittleEndian.Uint32(c[12:]),
				salt:    binary.LittleEndian.Uint64(c[16:]),
				prevEnd: int64(binary.LittleEndian.Uint64(c[24:])),
				seq:     binary.LittleEndian.Uint64(c[32:]),
			}, nil
		}
	}
	return h, errHeader
}

func segmentName(n uint32) string { return fmt.Sprintf("segment-%08d.log", n) }
func hintName(n uint32) string    { return fmt.Sprintf("segment-%08d.hint", n) }

// segmentNumber returns the number in the name of a segment or, with another ending, of a hint.
func segmentNumber(name, ending string) (uint32, bool) {
	digits, ok := strings.CutPrefix(name, "segment-")
	if !ok {
		return 0, false
	}
	if digits, ok = strings.CutSuffix(digits, ending); !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), err == nil && n > 0
}

// A segment is a file of records. The fields below file are guarded by the store's lock.
type segment struct {
	segmentHeader
	file disk.File
	pins atomic.Int32 // one for the set of segments, and one for each reader

	end  int64 // where the records end; grows while the segment is active
	live int64 // bytes of records that are needed
	// sources are the segments from which a merge copied records to this one. While one of
	// them is there, this one has to be, too: what is gone refers to the copies.
	sources map[uint32]struct{}
	turn    uint64 // of the dedup window when the latest record was written
	sealed  bool   // nothing is written to it any more
	hint    *hintWriter
}

func (g *segment) unpin() {
	if g.pins.Add(-1) == 0 {
		g.file.Close()
	}
}

// hasRecord reports whether the header of a record is at an offset.
func (g *segment) hasRecord(off int64) bool {
	b := make([]byte, recordHeader)
	if n, err := g.file.ReadAt(b, off); n < len(b) {
		return !errors.Is(err, io.EOF) // not known, so the segment is read
	}
	_, ok := decodeHeader(b, g.salt, off)
	return ok
}

// errDamaged is the error of a record that cannot be read, though the disk can.
var errDamaged = errors.New("damaged")

// read reads and checks the record at an offset, and returns its payload, in b if it fits. It
// returns the payload with an errDamaged, too.
func (g *segment) read(off uint32, size int, seq uint64, b []byte) (_ []byte, h header, err error) {
	n := recordHeader + size
	if cap(b) < n {
		b = make([]byte, n)
	}
	b = b[:n]
	if _, err := g.file.ReadAt(b, int64(off)); err != nil {
		if errors.Is(err, io.EOF) {
			err = errDamaged
		}
		return nil, header{}, fmt.Errorf("segment %d, offset %d: %w", g.number, off, err)
	}
	var ok bool
	h, ok = decodeHeader(b, g.salt, int64(off))
	if !ok || h.seq != seq || int(h.size) > size {
		return b[recordHeader:], h, fmt.Errorf("segment %d, offset %d: %w", g.number, off, errDamaged)
	}
	if b = b[recordHeader : recordHeader+int(h.size)]; crc32.Checksum(b, castagnoli) != h.sum {
		err = fmt.Errorf("segment %d, offset %d: %w", g.number, off, errDamaged)
	}
	return b, h, err
}

// segments are those of a store, by their numbers. They are guarded by the store's lock.
type segments map[uint32]*segment

// numbers returns the numbers of all, in their order.
func (s segments) numbers() []uint32 { return slices.Sorted(maps.Keys(s)) }

// count adds the bytes of the records that an entry needs, or no longer needs if by is -1.
func (s segments) count(e *entry, by int64) {
	if g := s[e.put.seg]; g != nil {
		g.live += by * recordSize(int(e.size))
	}
	if e.units > 0 {
		if g := s[e.state.seg]; g != nil {
			g.live += by * 8 * int64(e.units)
		}
	}
}

// bytes returns what the files of all take, and what is needed of it.
func (s segments) bytes() (total, live int64) {
	for _, g := range s {
		total += g.end
		live += g.live
	}
	return total, live
}

// A pinned entry can be read without the lock.
type pinned struct {
	entry
	put, state *segment // state is nil if it has none
}

// pin keeps the files that an entry is in open until release.
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

// buffers holds memory to read records into.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxPooled is how large a buffer is kept, in bytes.
const maxPooled = 64 << 10

// load reads a delivery. An error that wraps errDamaged says that it cannot be read; then d has
// what could be read of it.
func (p *pinned) load(d *webhook.DeadLetter) (err error) {
	buf := buffers.Get().(*[]byte)
	defer func() {
		if cap(*buf) <= maxPooled {
			buffers.Put(buf)
		}
	}()
	if p.put == nil {
		return fmt.Errorf("segment %d is missing: %w", p.entry.put.seg, errDamaged)
	}
	b, _, err := p.put.read(p.entry.put.off, int(p.size), p.seq, *buf)
	if err != nil {
		if errors.Is(err, errDamaged) {
			readPut(b, &d.Delivery) // its ids may be whole
		}
		return err
	}
	if err := readPut(b, &d.Delivery); err != nil {
		return fmt.Errorf("segment %d, offset %d: %w: %w", p.put.number, p.entry.put.off, errDamaged, err)
	}
	*buf = b[:0]
	if p.units == 0 {
		return nil
	}
	if p.state == nil {
		return fmt.Errorf("segment %d is missing: %w", p.entry.state.seg, errState)
	}
	b, _, err = p.state.read(p.entry.state.off, 8*int(p.units)-recordHeader, p.seq, nil)
	if err == nil {
		if err = readState(b, d); err != nil {
			err = fmt.Errorf("segment %d, offset %d: %w", p.state.number, p.entry.state.off, errDamaged)
		}
	}
	if errors.Is(err, errDamaged) {
		return fmt.Errorf("%w: %w", errState, err)
	}
	return err
}

// errState says that a delivery can be read as it was put, but not what happened to it since.
var errState = errors.New("its attempts cannot be read")

// source notes the segments that records of g were copied from, if s lists any.
func (g *segment) source(s *summary) {
	for _, r := range s.refs {
		if s.kind == kindGone && r.seq == 0 {
			g.sources[r.seg] = struct{}{}
		}
	}
}

// needed reports whether a segment may not be removed.
func (s segments) needed(g *segment) bool {
	if g.live > 0 || !g.sealed {
		return true
	}
	for n := range g.sources {
		if s[n] != nil {
			return true
		}
	}
	return false
}

// sealed reports whether nothing is written to any of them.
func (s segments) sealed() bool {
	for _, g := range s {
		if !g.sealed {
			return false
		}
	}
	return true
}
