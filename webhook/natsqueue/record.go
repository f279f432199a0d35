package natsqueue

import (
	"encoding/binary"
	"errors"
)

// formatVersion is the first byte of every chunk and record.
const formatVersion = 1

// A chunk has the deliveries of one message. It also names the node that put them, and that node's
// number for the chunk. The owner needs both to tell that node which deliveries are duplicates.
type chunk struct {
	noDedup bool // skip the dedup window: do not look for duplicates, and remember no keys
	node    string
	number  uint64
	records [][]byte // one delivery each
}

// append appends the chunk to b: the version, a flag, the node, the number, the count of the
// records, the length of each, and the records.
func (c *chunk) append(b []byte) []byte {
	flags := byte(0)
	if c.noDedup {
		flags = 1
	}
	b = append(b, formatVersion, flags)
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

// parseChunk parses what the method append of a chunk has written. The records share the memory of b.
func parseChunk(b []byte) (*chunk, error) {
	p := parser{b: b}
	if p.byte() != formatVersion {
		return nil, errFormat
	}
	c := &chunk{noDedup: p.byte() == 1, node: p.text(), number: p.uvarint()}
	sizes := make([]int, p.count())
	for i := range sizes {
		sizes[i] = p.count()
	}
	c.records = make([][]byte, len(sizes))
	for i, n := range sizes {
		c.records[i] = p.bytes(n)
	}
	if p.failed || len(p.b) != 0 {
		return nil, errFormat
	}
	return c, nil
}

// A ref names a delivery: the sequence of its message, and its place in the chunk.
type ref struct {
	seq uint64
	i   uint32
}

// A record is a message in which the owner of a partition stores changes. The server stores a
// record only if its writer knows the sequence of the previous record. So the node that wrote the
// last record is the owner.
type record struct {
	node   string // the owner from now on, "" for none
	serial uint64 // the node's own number of the record: no two records are the same
	cursor uint64 // puts up to this sequence have been checked for duplicates
	ends   []ref  // deliveries that were settled, moved or left out as duplicates
	chunk         // deliveries that were put back or moved
}

func (r *record) append(b []byte) []byte {
	b = append(b, formatVersion)
	b = appendText(b, r.node)
	b = binary.AppendUvarint(b, r.serial)
	b = binary.AppendUvarint(b, r.cursor)
	b = binary.AppendUvarint(b, uint64(len(r.ends)))
	last := uint64(0)
	for _, x := range r.ends { // each as the distance from the previous sequence
		b = binary.AppendUvarint(binary.AppendVarint(b, int64(x.seq-last)), uint64(x.i))
		last = x.seq
	}
	return r.chunk.append(b)
}

// parseRecord parses the result of append.
func parseRecord(b []byte) (*record, error) {
	p := parser{b: b}
	if p.byte() != formatVersion {
		return nil, errFormat
	}
	r := &record{node: p.text(), serial: p.uvarint(), cursor: p.uvarint(), ends: make([]ref, p.count())}
	last := uint64(0)
	for i := range r.ends {
		last += uint64(p.varint())
		r.ends[i] = ref{last, uint32(p.uvarint())}
	}
	if p.failed {
		return nil, errFormat
	}
	c, err := parseChunk(p.b)
	if err != nil {
		return nil, err
	}
	r.chunk = *c
	return r, nil
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

var errFormat = errors.New("natsqueue: a malformed message")

// A parser reads the fields of a message. After the first malformed field, failed is set and all
// further fields read as zero.
type parser struct {
	b      []byte
	failed bool
}

func (p *parser) fail() {
	p.b, p.failed = nil, true
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
		p.fail()
		return 0
	}
	p.b = p.b[n:]
	return v
}

func (p *parser) varint() int64 {
	v, n := binary.Varint(p.b)
	if n <= 0 {
		p.fail()
		return 0
	}
	p.b = p.b[n:]
	return v
}

// count reads the number of elements that follow. It fails if fewer bytes than elements are left.
func (p *parser) count() int {
	v := p.uvarint()
	if v > uint64(len(p.b)) {
		p.fail()
		return 0
	}
	return int(v)
}

func (p *parser) bytes(n int) []byte {
	if n > len(p.b) {
		p.fail()
		return nil
	}
	b := p.b[:n:n]
	p.b = p.b[n:]
	return b
}

func (p *parser) text() string { return string(p.bytes(p.count())) }
