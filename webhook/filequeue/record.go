package filequeue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"

	"github.com/hookferry/analytics/webhook"
)

// A segment is a header, and then the records of one commit after the other. A record is
//
//	length of the payload        4 bytes
//	kind                         1
//	1 in the last of a commit    1
//	0                            2
//	sequence number              8
//	hash of the user             4, 0 if the record has no data of a user
//	CRC-32C of the payload       4
//	index in its commit          4
//	CRC-32C                      4, of the segment's salt, the record's offset and all above
//	payload
//	zeros                        to a multiple of 8
//
// with little-endian numbers. The salt is random, so that no body can hold bytes that pass
// for a record. A commit counts if all its records are there. All that is said of a delivery
// has its sequence number.
const recordHeader = 32

// A kind says what a record is.
type kind uint8

const (
	// kindPut has a delivery as it was put. The payload is the time of the put, in
	// microseconds or noDedup, 8 bytes, and the delivery's record.
	kindPut kind = iota + 1
	// These have the state that a delivery has instead of the one in its kindPut, or in an
	// earlier record of these kinds. The payload is the Size of the delivery, a uvarint, and
	// the record of a DeadLetter that has only Reason, Died, Due, Expires, Tries, Closed
	// and Attempts.
	kindFresh
	kindRetry
	kindDead
	kindDelivered // is kept in the history; Died is when it was delivered
	// kindGone lists what is gone: what was delivered, discarded or erased, and old versions
	// of settings. The payload is the sequence number and the segment of each, as uvarints. A
	// sequence number of 0 says that records were copied from that segment; see segment.sources.
	kindGone
	// kindLost is a kindGone of what could not be read.
	kindLost
	// kindSetting has a setting: name and value, each behind its length, a uvarint. The
	// version is the sequence number.
	kindSetting
	// kindKeys remembers puts whose segment is removed. The payload is the time of the
	// latest, in microseconds, 8 bytes, and their keys, 16 bytes each.
	kindKeys
	// kindSegments is the first record of a segment. The payload lists the earlier segments
	// that are there: where each ends and its number, as uvarints.
	kindSegments
	// kindDropped says that a segment is about to be removed: a uvarint.
	kindDropped
	// kindClosed is the last record of a store that was closed.
	kindClosed
	kindEnd // is none
)

// lists reports whether the payload is a list of refs.
func (k kind) lists() bool { return k == kindGone || k == kindLost || k == kindSegments }

func (k kind) state() bool { return k >= kindFresh && k <= kindDelivered }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A header is that of a record.
type header struct {
	size  uint32 // of the payload
	kind  kind
	last  bool
	seq   uint64
	user  uint32
	sum   uint32 // of the payload
	index uint32
}

// recordSize returns how many bytes a record with such a payload takes.
func recordSize(payload int) int64 { return (int64(payload) + recordHeader + 7) &^ 7 }

func (h *header) recordSize() int64 { return recordSize(int(h.size)) }

// encode writes the header to the first bytes of b.
func (h *header) encode(b []byte, salt uint64, off int64) {
	binary.LittleEndian.PutUint32(b, h.size)
	b[4], b[5], b[6], b[7] = byte(h.kind), 0, 0, 0
	if h.last {
		b[5] = 1
	}
	binary.LittleEndian.PutUint64(b[8:], h.seq)
	binary.LittleEndian.PutUint32(b[16:], h.user)
	binary.LittleEndian.PutUint32(b[20:], h.sum)
	binary.LittleEndian.PutUint32(b[24:], h.index)
	binary.LittleEndian.PutUint32(b[28:], headerSum(b, salt, off))
}

// decodeHeader reads the header at an offset of a segment, and reports whether it is one.
func decodeHeader(b []byte, salt uint64, off int64) (h header, ok bool) {
	if b[4] == 0 || kind(b[4]) >= kindEnd || binary.LittleEndian.Uint32(b[28:]) != headerSum(b, salt, off) {
		return h, false
	}
	return header{
		size:  binary.LittleEndian.Uint32(b),
		kind:  kind(b[4]),
		last:  b[5] == 1,
		seq:   binary.LittleEndian.Uint64(b[8:]),
		user:  binary.LittleEndian.Uint32(b[16:]),
		sum:   binary.LittleEndian.Uint32(b[20:]),
		index: binary.LittleEndian.Uint32(b[24:]),
	}, true
}

func headerSum(b []byte, salt uint64, off int64) uint32 {
	var place [16]byte
	binary.LittleEndian.PutUint64(place[:], salt)
	binary.LittleEndian.PutUint64(place[8:], uint64(off))
	return crc32.Update(crc32.Checksum(place[:], castagnoli), castagnoli, b[:28])
}

// A record is about to be written.
type record struct {
	summary
	payload []byte
	sum     uint32
}

// newRecord returns a record with this payload.
func newRecord(k kind, payload []byte) record {
	return record{summary: summary{kind: k, size: uint32(len(payload))}, payload: payload, sum: crc32.Checksum(payload, castagnoli)}
}

// userHash returns what the header of a record has of a user.
func userHash(user string) uint32 {
	if user == "" {
		return 0
	}
	h := fnv.New32a()
	h.Write([]byte(user))
	return max(h.Sum32(), 1)
}

// A summary is what the index needs of a record. A hint file has those of a segment.
type summary struct {
	kind kind
	seq  uint64
	user uint32
	off  uint32
	size uint32 // of the payload
	// due is that of a put and of kindFresh and kindRetry, or when it died or was delivered,
	// in microseconds.
	due int64
	// Of a put: body is how long the body is, at when it was put, retry that it belongs to
	// the retries.
	body  uint32
	at    int64 // of keys, too
	retry bool
	dest  string
	key   [16]byte
	// bytes is the Size of a dead or delivered one.
	bytes int64
	refs  []ref  // of what lists, and of kindDropped
	name  string // of a setting
	// damaged says that the payload cannot be read: only the fields before due are known.
	damaged bool
}

// A ref names a record that is gone. In a kindSegments, seq is where the segment ends.
type ref struct {
	seq uint64
	seg uint32
}

var errPayload = errors.New("malformed payload")

// summarize reads what the index needs of a payload.
func (s *summary) summarize(payload []byte) error {
	r := payloadReader{b: payload}
	switch {
	case s.kind == kindPut:
		s.at = r.int64()
		var d webhook.Delivery
		if err := d.UnmarshalBinary(r.b); err != nil {
			return err
		}
		s.summarizePut(&d)
		return nil
	case s.kind.state():
		var d webhook.DeadLetter
		size := r.uvarint()
		if err := d.UnmarshalBinary(r.b); err != nil {
			return err
		}
		s.summarizeState(&d, int64(size))
		return nil
	case s.kind.lists():
		for len(r.b) > 0 {
			s.refs = append(s.refs, ref{r.uvarint(), uint32(r.uvarint())})
		}
	case s.kind == kindSetting:
		s.name = string(r.text())
	case s.kind == kindKeys:
		s.at = r.int64()
		if len(r.b)%16 != 0 {
			return errPayload
		}
	case s.kind == kindDropped:
		s.refs = []ref{{0, uint32(r.uvarint())}}
	}
	if r.failed {
		return errPayload
	}
	return nil
}

func (s *summary) summarizePut(d *webhook.Delivery) {
	s.user, s.due, s.body, s.retry, s.dest = userHash(d.User), d.Due.UnixMicro(), uint32(len(d.Body)), !d.Expires.IsZero(), d.Destination
	s.key = keyOf(d)
}

func (s *summary) summarizeState(d *webhook.DeadLetter, size int64) {
	s.bytes, s.due = size, d.Due.UnixMicro()
	if s.kind == kindDead || s.kind == kindDelivered {
		s.due = d.Died.UnixMicro()
	}
}

// putPayload appends the payload of a kindPut.
func putPayload(b []byte, at int64, d *webhook.Delivery) ([]byte, error) {
	return d.AppendBinary(binary.LittleEndian.AppendUint64(b, uint64(at)))
}

// waitingKind returns the kind of the state of a delivery that waits.
func waitingKind(retry bool) kind {
	if retry {
		return kindRetry
	}
	return kindFresh
}

// stateRecord returns the record of a state: what d has that may change. size is the Size of d.
func stateRecord(k kind, d *webhook.DeadLetter, size int64) (record, error) {
	state := webhook.DeadLetter{Reason: d.Reason, Died: d.Died, Delivery: webhook.Delivery{
		Due: d.Due, Expires: d.Expires, Tries: d.Tries, Closed: d.Closed, Attempts: d.Attempts,
	}}
	b, err := state.AppendBinary(binary.AppendUvarint(nil, uint64(size)))
	if err == nil && recordSize(len(b)) > maxState {
		err = fmt.Errorf("attempts of %d bytes, more than %d", len(b), maxState)
	}
	if err != nil {
		return record{}, fmt.Errorf("filequeue: %w", err)
	}
	r := newRecord(k, b)
	r.user = userHash(d.User)
	r.summarizeState(d, size)
	return r, nil
}

// readPut reads the payload of a kindPut.
func readPut(payload []byte, d *webhook.Delivery) error {
	if len(payload) < 8 {
		return errPayload
	}
	return d.UnmarshalBinary(payload[8:])
}

// readState reads the payload of a state into d, which is as it was put.
func readState(payload []byte, d *webhook.DeadLetter) error {
	_, n := binary.Uvarint(payload)
	var state webhook.DeadLetter
	if n <= 0 {
		return errPayload
	}
	if err := state.UnmarshalBinary(payload[n:]); err != nil {
		return err
	}
	d.Reason, d.Died = state.Reason, state.Died
	d.Due, d.Expires, d.Tries, d.Closed, d.Attempts = state.Due, state.Expires, state.Tries, state.Closed, state.Attempts
	return nil
}

func gonePayload(refs []ref) []byte {
	var b []byte
	for _, r := range refs {
		b = binary.AppendUvarint(b, r.seq)
		b = binary.AppendUvarint(b, uint64(r.seg))
	}
	return b
}

// listRecord returns a record that lists refs.
func listRecord(k kind, refs []ref) record {
	r := newRecord(k, gonePayload(refs))
	r.refs = refs
	return r
}

// A payloadReader takes a payload apart. After the first thing that does not fit, failed is
// set and everything reads as zero.
type payloadReader struct {
	b      []byte
	failed bool
}

func (r *payloadReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.b, r.failed = nil, true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *payloadReader) varint() int64 {
	v := r.uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

func (r *payloadReader) bytes(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.b, r.failed = nil, true
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *payloadReader) text() []byte { return r.bytes(r.uvarint()) }

func (r *payloadReader) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *payloadReader) int64() int64 {
	if b := r.bytes(8); b != nil {
		return int64(binary.LittleEndian.Uint64(b))
	}
	return 0
}
