package natsqueue

import (
	"encoding/binary"
	"errors"
	"math"
)

// formatVersion is the first number of every record.
const formatVersion = 3

// A ref names a delivery: the sequence of its message, and its place among the records. The place
// erasedUpTo stands for no delivery: all messages up to seq may have bytes of an erased user.
type ref struct {
	seq uint64
	i   uint32
}

const erasedUpTo = math.MaxUint32

// A record is a message in the log of a partition. Any node puts deliveries in records, and the owner
// stores its changes in records. The field node of an owner's last record names the present owner.
type record struct {
	node    string   // the node that puts the deliveries, or the owner from now on, "" for none
	serial  uint64   // the node's own number of the record: no two records are the same
	cursor  uint64   // of the owner: puts up to this sequence have been checked for duplicates
	ends    []ref    // of the owner: deliveries that were settled, moved, erased or left out as duplicates
	records []stored // deliveries that are put, put back or moved
}

// A stored is an encoded delivery in a record.
type stored struct {
	data    []byte
	noDedup bool // the dedup window ignores it: it is no duplicate, and its key is not remembered
}

// append appends the fields in their order to b, lists and texts after their length.
func (r *record) append(b []byte) []byte {
	b = binary.AppendUvarint(b, formatVersion)
	b = binary.AppendUvarint(b, uint64(len(r.node)))
	b = append(b, r.node...)
	b = binary.AppendUvarint(b, r.serial)
	b = binary.AppendUvarint(b, r.cursor)
	b = binary.AppendUvarint(b, uint64(len(r.ends)))
	for _, x := range r.ends {
		b = binary.AppendUvarint(binary.AppendUvarint(b, x.seq), uint64(x.i))
	}
	b = binary.AppendUvarint(b, uint64(len(r.records)))
	for _, d := range r.records {
		flag := byte(0)
		if d.noDedup {
			flag = 1
		}
		b = append(binary.AppendUvarint(append(b, flag), uint64(len(d.data))), d.data...)
	}
	return b
}

// parseRecord parses the result of append. The deliveries share the memory of b.
func parseRecord(b []byte) (*record, error) {
	p := parser{b: b}
	if p.uvarint() != formatVersion {
		return nil, errFormat
	}
	r := &record{node: string(p.bytes()), serial: p.uvarint(), cursor: p.uvarint(), ends: make([]ref, p.count())}
	for i := range r.ends {
		r.ends[i] = ref{p.uvarint(), uint32(p.uvarint())}
	}
	r.records = make([]stored, p.count())
	for i := range r.records {
		r.records[i].noDedup = p.uvarint() == 1
		r.records[i].data = p.bytes()
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

func (p *parser) uvarint() uint64 {
	v, n := binary.Uvarint(p.b)
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

// bytes reads the bytes that follow their length.
func (p *parser) bytes() []byte {
	n := p.count()
	b := p.b[:n:n]
	p.b = p.b[n:]
	return b
}
