package boltqueue

import (
	"encoding/binary"
	"fmt"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// The payload of an entry is the time of the commit, in microseconds, and what
// it did: an op, then
//
//	put    number, due, row
//	done   place
//	retry  place, number, due, row
//	bury   place, number, time of death, row
//	next   the epoch that follows, in the last entry of one
//
// A place is where the delivery was until then: in the journal, by number; in
// a block, by the block's number and the bit; or in waiting, by segment, lane, due
// and number. What was in the entries of the epoch before may have gone into a block
// since, which has the number too. Numbers and lengths are varints.
const (
	opPut   = 1
	opDone  = 2
	opRetry = 3
	opBury  = 4
	opNext  = 5

	inJournal = 0
	inBlock   = 1
	inWaiting = 2
)

// A place is where the row of a delivery is.
type place struct {
	kind          byte
	block         uint64
	index         int
	segment, lane uint32
	order         lanes.Order // of one in the journal only Seq
}

// placeOf returns where the row of it is.
func placeOf(it *lanes.Item) place {
	switch h := it.Home.(type) {
	case *block:
		return place{kind: inBlock, block: h.number, index: it.Index}
	case *tail:
		return place{kind: inJournal, order: it.Order}
	}
	return place{kind: inWaiting, segment: uint32(it.Index), lane: homeOf(it.Lane()).number, order: it.Order}
}

func appendPut(b []byte, o lanes.Order, row []byte) []byte {
	return appendRow(append(b, opPut), o, row)
}

func appendEnd(b []byte, verdict webhook.Verdict, p place, o lanes.Order, row []byte) []byte {
	op := byte(opDone)
	switch verdict {
	case webhook.Retry:
		op = opRetry
	case webhook.Bury:
		op = opBury
	}
	b = append(b, op, p.kind)
	switch p.kind {
	case inJournal:
		b = binary.AppendUvarint(b, p.order.Seq)
	case inBlock:
		b = binary.AppendUvarint(b, p.block)
		b = append(b, byte(p.index))
	default:
		b = binary.AppendUvarint(b, uint64(p.segment))
		b = binary.AppendUvarint(b, uint64(p.lane))
		b = binary.AppendVarint(b, p.order.At)
		b = binary.AppendUvarint(b, p.order.Seq)
	}
	if op == opDone {
		return b
	}
	return appendRow(b, o, row)
}

func appendRow(b []byte, o lanes.Order, row []byte) []byte {
	b = binary.AppendUvarint(b, o.Seq)
	b = binary.AppendVarint(b, o.At)
	b = binary.AppendUvarint(b, uint64(len(row)))
	return append(b, row...)
}

func appendNext(b []byte, e epoch) []byte { return append(append(b, opNext), e[:]...) }

// An op is one of an entry's, taken apart.
type op struct {
	code  byte
	place place
	order lanes.Order
	row   []byte
	next  epoch
}

// ops calls each with what the payload of an entry says.
func ops(b []byte, each func(micros int64, o op) error) error {
	r := opReader{b: b}
	micros := r.varint()
	for !r.failed && len(r.b) > 0 {
		o := op{code: r.byte()}
		if o.code != opPut && o.code != opNext {
			o.place.kind = r.byte()
			switch o.place.kind {
			case inJournal:
				o.place.order.Seq = r.uvarint()
			case inBlock:
				o.place.block = r.uvarint()
				o.place.index = int(r.byte())
				r.failed = r.failed || o.place.index >= maxEntries
			case inWaiting:
				segment, lane := r.uvarint(), r.uvarint()
				o.place.segment, o.place.lane = uint32(segment), uint32(lane)
				o.place.order.At = r.varint()
				o.place.order.Seq = r.uvarint()
				r.failed = r.failed || (segment|lane)>>32 != 0
			default:
				r.failed = true
			}
		}
		switch o.code {
		case opDone:
		case opNext:
			copy(o.next[:], r.take(len(o.next)))
		case opPut, opRetry, opBury:
			o.order.Seq = r.uvarint()
			o.order.At = r.varint()
			o.row = r.bytes()
		default:
			r.failed = true
		}
		if r.failed {
			break
		}
		if err := each(micros, o); err != nil {
			return err
		}
	}
	if r.failed || len(r.b) > 0 {
		return fmt.Errorf("%w: what it says cannot be understood", errRow)
	}
	return nil
}

// An opReader takes a payload apart. After the first thing that does not fit,
// failed is set and everything reads as zero.
type opReader struct {
	b      []byte
	failed bool
}

func (r *opReader) fail() { r.b, r.failed = nil, true }

func (r *opReader) byte() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *opReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *opReader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *opReader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	return r.take(int(n))
}

func (r *opReader) take(n int) []byte {
	if n > len(r.b) {
		r.fail()
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}
