package filequeue

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/fnv"

	"github.com/hookferry/analytics/webhook/store"
)

// A segment is a sequence of commits, and a commit is a sequence of records. A record is a header
// of 68 bytes, the payload, and zeros up to a multiple of 8 bytes. The header has these
// little-endian numbers:
//
//	length of the payload            4 bytes
//	length of the tag                4
//	kind                             1
//	flags                            1
//	always 0                         2
//	hash of the user                 4, 0 if the record has no data of a user
//	sequence number                  8
//	due                              8, in microseconds
//	time of the put                  8, in microseconds
//	key in the dedup window         16
//	size                             4
//	CRC-32C of the payload           4
//	CRC-32C of the segment's salt, the record's offset and all above  4
//
// The tag is the beginning of the payload. The index needs only headers and tags, so a hint leaves
// out the rest of the payloads. All records about one delivery have the same sequence number.
//
// If the last commit in a segment has an unreadable record, perhaps it was never completed. Open then
// ignores each op with an unreadable record, and keeps the others. But if a mark, or a later segment,
// says that this segment ends after that commit, Open keeps all readable records of the commit.
const recordHeader = 68

// A kind says what a record is.
type kind uint8

const (
	// The first four kinds have a delivery in one of its states. The payload of a whole record is
	// the tag and the result of Record.AppendBinary. The tag is the destination and, with flagKeyed,
	// the hash of the key in 8 bytes. A later record without a tag has only what changes: Reason, At,
	// Due, Expires, Tries, Closed and Attempts.
	// The size is the length of the body or, in kindDead and kindDelivered, the result
	// of Delivery.Size. In these two kinds, due is the time of death or of delivery. If the time of
	// the put is noDedup, the dedup window ignores the put.
	kindFresh kind = iota + 1
	kindRetry
	kindDead
	kindDelivered // the delivery is kept, and not yet in a table
	// kindGone lists records that are not needed any more: deliveries that were delivered,
	// discarded, erased or lost. The tag has the sequence number and
	// the segment of each, as uvarints. The size is the number of lost deliveries among them, which
	// the store has dropped because they could not be read.
	kindGone
	// kindDocument has a change of a document. The tag is the path and the value; the size is that of
	// the path. due is 1 if the document was removed. The sequence number is the version.
	kindDocument
	// kindKeys has the dedup keys of puts whose segment was removed. The tag consists of the keys.
	// The header field due is the time of the latest of these puts.
	kindKeys
	// kindSegments lists the segments that the store needs. The tag has two uvarints for each: the
	// offset where the segment ended before this commit, and its number. The segment with this
	// record, and those with higher numbers, are needed, too. Each segment begins with a commit of
	// such a record. Its size is the number of deliveries that were lost before, and its sequence
	// number the next unused one. The store also writes a record of this kind before it removes a
	// segment.
	kindSegments
	// kindTables lists the tables that the store needs: as many of documents as its size says, the newest
	// first, and then those of the history. The tag has two uvarints for each: the size of the file, and
	// the number. due is the version up to which the tables have all changes of documents; later ones are
	// in the log. Each segment has one behind its first record, and each change of the tables writes one.
	kindTables
	kindEnd // behind the last kind

	kindBehind // of no record: lane.behind has deliveries of kindFresh
)

// noDedup is the time of a put that the dedup window ignores.
const noDedup = 0

// A record is a record that was read from a segment, or that is about to be written.
type record struct {
	length, tag uint32
	kind        kind
	flags       uint8
	user        uint32
	seq         uint64
	due, stored int64
	key         [16]byte
	size, sum   uint32

	pos     position
	payload []byte // only the tag if the record comes from scan or a hint
	damaged bool   // scan found that the payload cannot be read
}

// The flags of records.
const (
	flagFirst = 1 << iota // the first one of its commit
	flagLast              // the last one of its commit
	flagBegin             // the first one of its op
	flagEnd               // the last one of its op
	flagKeyed             // a whole record of a delivery that has a key
)

// has reports whether the record has a flag.
func (r *record) has(flag uint8) bool { return r.flags&flag != 0 }

// flag sets the flags first and last of the first and the last record, and clears them elsewhere.
func flag(rs []*record, first, last uint8) {
	for i, r := range rs {
		if r.flags &^= first | last; i == 0 {
			r.flags |= first
		}
		if i == len(rs)-1 {
			r.flags |= last
		}
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// recordSize returns how many bytes a record with a payload of this length takes.
func recordSize(payload int) int64 { return (int64(payload) + recordHeader + 7) &^ 7 }

// append appends the encoded header of a record at an offset of a segment.
func (r *record) append(b []byte, salt uint64, off int64) []byte {
	from := len(b)
	le := binary.LittleEndian
	b = le.AppendUint32(le.AppendUint32(b, r.length), r.tag)
	b = append(b, byte(r.kind), r.flags, 0, 0)
	b = le.AppendUint64(le.AppendUint32(b, r.user), r.seq)
	b = le.AppendUint64(le.AppendUint64(b, uint64(r.due)), uint64(r.stored))
	b = append(b, r.key[:]...)
	b = le.AppendUint32(le.AppendUint32(b, r.size), r.sum)
	return le.AppendUint32(b, headerSum(b[from:], salt, off))
}

// decodeHeader returns the record at an offset of a segment, without its payload. ok reports whether
// b has a valid header.
func decodeHeader(b []byte, id segmentID, off int64) (r record, ok bool) {
	le := binary.LittleEndian
	if b[8] == 0 || kind(b[8]) >= kindEnd || le.Uint32(b[64:]) != headerSum(b[:64], id.salt, off) {
		return r, false
	}
	r = record{
		length: le.Uint32(b), tag: le.Uint32(b[4:]), kind: kind(b[8]), flags: b[9],
		user: le.Uint32(b[12:]), seq: le.Uint64(b[16:]), due: int64(le.Uint64(b[24:])), stored: int64(le.Uint64(b[32:])),
		key: [16]byte(b[40:]), size: le.Uint32(b[56:]), sum: le.Uint32(b[60:]),
		pos: position{id.number, uint32(off)},
	}
	return r, r.tag <= r.length
}

// headerSum returns the checksum of a header. It begins with the position of the record instead
// of zero, so a copy of the header elsewhere has another checksum.
func headerSum(b []byte, salt uint64, off int64) uint32 {
	return crc32.Update(uint32(salt)^uint32(salt>>32)^uint32(off), castagnoli, b)
}

// tagged returns a record of kind k whose payload consists only of the tag.
func tagged(k kind, tag []byte) record {
	return record{kind: k, length: uint32(len(tag)), tag: uint32(len(tag)), sum: crc32.Checksum(tag, castagnoli), payload: tag}
}

// delivery reports whether the record has a delivery, or a change of one.
func (r *record) delivery() bool { return r.kind <= kindDelivered }

// whole reports whether the record has a delivery with its body.
func (r *record) whole() bool { return r.delivery() && r.tag > 0 }

// destination returns the destination in the tag of a whole record, and the hash of its key or 0.
func (r *record) destination() (name []byte, key uint64) {
	name = r.payload[:min(int(r.tag), len(r.payload))]
	if n := len(name) - 8; r.has(flagKeyed) && n >= 0 {
		return name[:n], binary.LittleEndian.Uint64(name[n:])
	}
	return name, 0
}

// waitingKind returns the kind of a waiting delivery.
func waitingKind(retry bool) kind {
	if retry {
		return kindRetry
	}
	return kindFresh
}

// deliveryRecord returns the record of a delivery in state k: a whole one, or one with only what
// changes. The payload is appended to b. It has no Seq, which is the sequence number of the record, so
// deliveryRecord clears that of d.
func deliveryRecord(b []byte, k kind, d *store.Record, whole bool) (record, error) {
	part, from, flags := d, len(b), uint8(0)
	if d.Seq = 0; whole {
		b = append(b, d.Destination...)
		if key := keyHash(d.Destination, d.Key); key != 0 {
			b, flags = binary.LittleEndian.AppendUint64(b, key), flagKeyed
		}
	} else {
		part = &store.Record{Reason: d.Reason, At: d.At, Delivery: store.Delivery{
			Due: d.Due, Expires: d.Expires, Tries: d.Tries, Closed: d.Closed, Attempts: d.Attempts,
		}}
	}
	tag := len(b) - from
	payload, err := part.AppendBinary(b)
	if err == nil && !whole && recordSize(len(payload)) > maxState {
		err = fmt.Errorf("the attempts of a delivery have %d bytes; the limit is %d", len(payload), maxState)
	}
	if err != nil {
		return record{}, fmt.Errorf("filequeue: %w", err)
	}
	r := tagged(k, payload)
	r.tag, r.flags, r.user, r.due, r.size = uint32(tag), flags, textHash(d.User), d.Due.UnixMicro(), uint32(len(d.Body))
	if k == kindDead || k == kindDelivered {
		r.due, r.size = d.At.UnixMicro(), uint32(d.Size())
	}
	return r, nil
}

// readDelivery decodes a whole record into d. From any other record it takes only the fields that
// the record changes.
func (r *record) readDelivery(d *store.Record) error {
	if r.tag > 0 {
		return d.UnmarshalBinary(r.payload[min(int(r.tag), len(r.payload)):])
	}
	var state store.Record
	if err := state.UnmarshalBinary(r.payload); err != nil {
		return err
	}
	d.Reason, d.At = state.Reason, state.At
	d.Due, d.Expires, d.Tries, d.Closed, d.Attempts = state.Due, state.Expires, state.Tries, state.Closed, state.Attempts
	return nil
}

// textHash returns the hash of a user id, for the header field user, or of another text. Only the empty
// text has the hash 0.
func textHash(text string) uint32 {
	if text == "" {
		return 0
	}
	h := fnv.New32a()
	h.Write([]byte(text))
	return max(h.Sum32(), 1)
}

// A ref names a record that is not needed any more, by its sequence number and its segment. In a
// record of kindSegments, a ref names a segment, and seq is the offset where the segment ends.
type ref struct {
	seq uint64
	seg uint32
}

// listing returns a record that lists refs.
func listing(k kind, refs []ref) record {
	b := make([]byte, 0, 8*len(refs))
	for _, r := range refs {
		b = binary.AppendUvarint(binary.AppendUvarint(b, r.seq), uint64(r.seg))
	}
	return tagged(k, b)
}

// refs returns the refs in a record that the function listing has made.
func (r *record) refs() (refs []ref) {
	for b := r.payload; len(b) > 0; {
		seq, n := binary.Uvarint(b)
		seg, m := binary.Uvarint(b[max(n, 0):])
		if n <= 0 || m <= 0 {
			return refs // cannot happen, as the checksum is right
		}
		refs = append(refs, ref{seq, uint32(seg)})
		b = b[n+m:]
	}
	return refs
}

// documentRecord returns the record of a row. If its version is zero, the record has no sequence
// number yet.
func documentRecord(d *row) record {
	r := tagged(kindDocument, append([]byte(d.path), d.value...))
	r.seq, r.size = d.version, uint32(len(d.path))
	if d.value == nil {
		r.due = 1
	}
	return r
}

// keysRecord returns the record of dedup keys. last is the time of the latest put.
func keysRecord(keys []byte, last int64) record {
	r := tagged(kindKeys, keys)
	r.due = last
	return r
}

// row decodes a change of a document. The result shares no memory with the record.
func (r *record) row() *row {
	n := min(int(r.size), len(r.payload))
	d := &row{path: string(r.payload[:n]), version: r.seq}
	if r.due == 0 {
		d.value = append([]byte{}, r.payload[n:]...)
	}
	return d
}
