package natsqueue

import (
	"encoding/binary"
	"errors"
)

// recordVersion is the first byte of every message in a partition.
const recordVersion = 1

// A chunk of deliveries is a message, or the end of one. It names the node that waits to learn
// which of them are duplicates, by a number of its own.
type chunk struct {
	revived bool // dead letters that are revived, which are no duplicates
	noDedup bool // the dedup window leaves them out
	node    string
	number  uint64
	records [][]byte // each of a delivery
}

// append appends the chunk: a version, flags, the node, the number, how many records
// there are and how long each is, and the records.
func (c *chunk) append(b []byte) []byte {
	flags := byte(0)
	if c.revived {
		flags = 1
	}
	if c.noDedup {
		flags |= 2
	}
	b = append(b, recordVersion, flags)
	b = appendText(b, c.node)
	b = binary.AppendUvarint(b, c.number)
	b = binary.AppendUvarint(b, uint64(len(c.records)))
	for _, r := range c.records {
		b = binary.AppendUvarint(b, uint64(len(r)))
	}
	for _, r := range c.records {
		b = append(b, r...)
	}
	return b
}

// parseChunk reads what append wrote. The records are parts of b.
func parseChunk(b []byte) (*chunk, error) {
	p := parser{b: b}
	if p.byte() != recordVersion {
		return nil, errRecord
	}
	flags := p.byte()
	c := &chunk{revived: flags&1 > 0, noDedup: flags&2 > 0, node: p.text(), number: p.uvarint()}
	sizes := make([]int, p.count())
	for i := range sizes {
		sizes[i] = p.count()
	}
	c.records = make([][]byte, len(sizes))
	for i, n := range sizes {
		c.records[i] = p.bytes(n)
	}
	if p.failed || len(p.b) != 0 {
		return nil, errRecord
	}
	return c, nil
}

// A ref names a delivery: by the sequence of the message that has it, and its place in the chunk.
type ref struct {
	seq uint64
	i   uint32
}

// A record is a message of the owner of a partition. Each takes the place behind the one before:
// so who writes a record is the owner, and the sequence of the first is his epoch.
type record struct {
	node   string // the owner from now on, "" for none
	serial uint64 // of the record, among those of the node
	cursor uint64 // up to here the puts were looked at
	drops  []ref  // that were duplicates
	ends   []ref  // that were settled or moved
	chunk         // what begins
}

func (r *record) append(b []byte) []byte {
	b = append(b, recordVersion)
	b = appendText(b, r.node)
	b = binary.AppendUvarint(b, r.serial)
	b = binary.AppendUvarint(b, r.cursor)
	b = appendRefs(b, r.drops)
	b = appendRefs(b, r.ends)
	return r.chunk.append(b)
}

func parseRecord(b []byte) (*record, error) {
	p := parser{b: b}
	if p.byte() != recordVersion {
		return nil, errRecord
	}
	r := &record{node: p.text(), serial: p.uvarint(), cursor: p.uvarint(), drops: p.refs(), ends: p.refs()}
	if p.failed {
		return nil, errRecord
	}
	c, err := parseChunk(p.b)
	if err != nil {
		return nil, err
	}
	r.chunk = *c
	return r, nil
}

// appendRefs appends how many refs there are, and of each its distance in the stream from the one
// before, and its place.
func appendRefs(b []byte, refs []ref) []byte {
	b = binary.AppendUvarint(b, uint64(len(refs)))
	last := uint64(0)
	for _, r := range refs {
		b = binary.AppendUvarint(binary.AppendVarint(b, int64(r.seq-last)), uint64(r.i))
		last = r.seq
	}
	return b
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

var errRecord = errors.New("natsqueue: a malformed record")

// A parser takes a message apart. After the first thing that does not fit, failed is set and
// everything reads as zero.
type parser struct {
	b      []byte
	failed bool
}

func (p *parser) byte() byte {
	if b := p.bytes(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (p *parser) uvarint() uint64 {
	v, n := binary.Uvarint(p.b)
	if n <= 0 {
		p.b, p.failed = nil, true
		return 0
	}
	p.b = p.b[n:]
	return v
}

func (p *parser) varint() int64 {
	v := p.uvarint() // in zigzag, as binary.AppendVarint has it
	return int64(v>>1) ^ -int64(v&1)
}

// count reads how many things follow, of a byte at least each.
func (p *parser) count() int {
	v := p.uvarint()
	if v > uint64(len(p.b)) {
		p.b, p.failed = nil, true
		return 0
	}
	return int(v)
}

func (p *parser) bytes(n int) []byte {
	if n > len(p.b) {
		p.b, p.failed = nil, true
		return nil
	}
	b := p.b[:n:n]
	p.b = p.b[n:]
	return b
}

func (p *parser) text() string { return string(p.bytes(p.count())) }

func (p *parser) refs() []ref {
	refs := make([]ref, p.count())
	last := uint64(0)
	for i := range refs {
		last += uint64(p.varint())
		refs[i] = ref{last, uint32(p.uvarint())}
	}
	return refs
}
