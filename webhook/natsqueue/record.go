package natsqueue

import (
	"encoding/binary"
	"errors"
)

// formatVersion is the first byte of every record.
const formatVersion = 2

// A ref names a delivery: the sequence of its message, and its place among the records.
type ref struct {
	seq uint64
	i   uint32
}

// A record is a message in the log of a partition. Any node puts deliveries in records, and the
// owner stores its changes in records. The field node of an owner's last record names the present
// owner.
type record struct {
	node    string   // the node that puts the deliveries, or the owner from now on, "" for none
	serial  uint64   // the node's own number of the record: no two records are the same
	cursor  uint64   // of the owner: puts up to this sequence have been checked for duplicates
	ends    []ref    // of the owner: deliveries that were settled, moved or left out as duplicates
	records [][]byte // one encoded delivery each, which is put, put back or moved
	noDedup []uint32 // the places of the deliveries that the dedup window ignores: they are no duplicates, and their keys are not remembered
}

// append appends the fields in their order to b. For the deliveries, it first writes the lengths of
// all of them, and then the deliveries themselves.
func (r *record) append(b []byte) []byte {
	b = append(b, formatVersion)
	b = binary.AppendUvarint(b, uint64(len(r.node)))
	b = append(b, r.node...)
	b = binary.AppendUvarint(b, r.serial)
	b = binary.AppendUvarint(b, r.cursor)
	b = binary.AppendUvarint(b, uint64(len(r.ends)))
	last := uint64(0)
	for _, x := range r.ends { // each as the distance from the previous sequence
		b = binary.AppendUvarint(binary.AppendVarint(b, int64(x.seq-last)), uint64(x.i))
		last = x.seq
	}
	b = binary.AppendUvarint(b, uint64(len(r.noDedup)))
	for _, i := range r.noDedup {
		b = binary.AppendUvarint(b, uint64(i))
	}
	b = binary.AppendUvarint(b, uint64(len(r.records)))
	for _, d := range r.records {
		b = binary.AppendUvarint(b, uint64(len(d)))
	}
	for _, d := range r.records {
		b = append(b, d...)
	}
	return b
}

// parseRecord parses the result of append. The deliveries share the memory of b.
func parseRecord(b []byte) (*record, error) {
	p := parser{b: b}
	if p.byte() != formatVersion {
		return nil, errFormat
	}
	r := &record{node: string(p.bytes(p.count())), serial: p.uvarint(), cursor: p.uvarint(), ends: make([]ref, p.count())}
	last := uint64(0)
	for i := range r.ends {
		last += uint64(p.varint())
		r.ends[i] = ref{last, uint32(p.uvarint())}
	}
	r.noDedup = make([]uint32, p.count())
	for i := range r.noDedup {
		r.noDedup[i] = uint32(p.uvarint())
	}
	sizes := make([]int, p.count())
	for i := range sizes {
		sizes[i] = p.count()
	}
	r.records = make([][]byte, len(sizes))
	for i, n := range sizes {
		r.records[i] = p.bytes(n)
	}
	if p.failed || len(p.b) != 0 {
		return nil, errFormat
	}
	return r, nil
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

// varint reads what binary.AppendVarint has written: the sign is in the lowest bit.
func (p *parser) varint() int64 {
	v := p.uvarint()
	return int64(v>>1) ^ -int64(v&1)
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
