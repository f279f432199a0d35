package filequeue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"

	"github.com/hookferry/analytics/webhook"
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
// out the rest of the payloads. If a record of the last commit in a segment cannot be read,
// Open ignores that commit: it was never completed. But if a later segment says that this segment
// ends after that commit, Open keeps the readable records of the commit. All records about one
// delivery have the sequence number of its put.
const recordHeader = 68

// A kind says what a record is.
type kind uint8

const (
	// kindPut has a delivery as it was put. The tag is the destination. The rest of the payload is
	// the result of Delivery.AppendBinary. The size is the length of the body. If the time of the
	// put is noDedup, the dedup window ignores the put.
	kindPut kind = iota + 1
	// The next four kinds are states. A state record replaces what its delivery had before: the
	// state in the kindPut record, or an earlier state record. The payload is the result of
	// DeadLetter.AppendBinary, for a DeadLetter that has only Reason, Died, Due, Expires, Tries,
	// Closed and Attempts. The size is DeadLetter.Size. In kindDead and kindDelivered, due is the
	// time of death or of delivery.
	kindFresh
	kindRetry
	kindDead
	kindDelivered // the delivery is in the history
	// kindGone lists records that are not needed any more: deliveries that were delivered,
	// discarded or erased, and old versions of settings. The tag has the sequence number and the
	// segment of each, as uvarints.
	kindGone
	// kindLost has the same format as kindGone. It lists deliveries that the store has dropped
	// because they could not be read.
	kindLost
	// kindSetting has a setting. The tag is the length of the name as a uvarint, the name, and the
	// value. The sequence number is the version.
	kindSetting
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
	kindEnd // behind the last kind
)

func (k kind) state() bool { return k >= kindFresh && k <= kindDelivered }

// noDedup is the time of a put that the dedup window ignores.
const noDedup = 0

// A header is the decoded header of a record.
type header struct {
	length, tag uint32
	kind        kind
	first, last bool // the record is the first, or the last one, of its commit
	retry       bool // a kindPut that belongs to the retries
	user        uint32
	seq         uint64
	due, put    int64
	key         [16]byte
	size, sum   uint32
}

const (
	flagFirst = 1 << iota
	flagLast
	flagRetry
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// recordSize returns how many bytes a record with a payload of this length takes.
func recordSize(payload int) int64 { return (int64(payload) + recordHeader + 7) &^ 7 }

// append appends the encoded header of a record at an offset of a segment.
func (h *header) append(b []byte, salt uint64, off int64) []byte {
	flags := byte(0)
	if h.first {
		flags |= flagFirst
	}
	if h.last {
		flags |= flagLast
	}
	if h.retry {
		flags |= flagRetry
	}
	from := len(b)
	le := binary.LittleEndian
	b = le.AppendUint32(le.AppendUint32(b, h.length), h.tag)
	b = append(b, byte(h.kind), flags, 0, 0)
	b = le.AppendUint64(le.AppendUint32(b, h.user), h.seq)
	b = le.AppendUint64(le.AppendUint64(b, uint64(h.due)), uint64(h.put))
	b = append(b, h.key[:]...)
	b = le.AppendUint32(le.AppendUint32(b, h.size), h.sum)
	return le.AppendUint32(b, headerSum(b[from:], salt, off))
}

// decodeHeader decodes the header of the record at an offset of a segment. ok reports whether b has
// a valid header.
func decodeHeader(b []byte, salt uint64, off int64) (h header, ok bool) {
	le := binary.LittleEndian
	if b[8] == 0 || kind(b[8]) >= kindEnd || le.Uint32(b[64:]) != headerSum(b[:64], salt, off) {
		return h, false
	}
	h = header{
		length: le.Uint32(b), tag: le.Uint32(b[4:]), kind: kind(b[8]),
		first: b[9]&flagFirst != 0, last: b[9]&flagLast != 0, retry: b[9]&flagRetry != 0,
		user: le.Uint32(b[12:]), seq: le.Uint64(b[16:]), due: int64(le.Uint64(b[24:])), put: int64(le.Uint64(b[32:])),
		key: [16]byte(b[40:]), size: le.Uint32(b[56:]), sum: le.Uint32(b[60:]),
	}
	return h, h.tag <= h.length
}

// headerSum returns the checksum of a header. It begins with the place of the record instead of
// zero, so a copy of the header elsewhere has another checksum.
func headerSum(b []byte, salt uint64, off int64) uint32 {
	return crc32.Update(uint32(salt)^uint32(salt>>32)^uint32(off), castagnoli, b)
}

// A record holds the header and the payload of a record that was read from a segment, or that is
// about to be written.
type record struct {
	header
	off     uint32 // in its segment
	payload []byte // only the tag if the record comes from scan or a hint
	damaged bool   // scan found that the payload cannot be read
}

// tagged returns a record of kind k whose payload consists only of the tag.
func tagged(k kind, tag []byte) record {
	return record{header: header{kind: k, length: uint32(len(tag)), tag: uint32(len(tag)), sum: crc32.Checksum(tag, castagnoli)}, payload: tag}
}

// putRecord returns the record of a put. now is the time of the put, in microseconds. It appends
// the payload to b.
func putRecord(b []byte, now int64, d *webhook.Delivery) (record, error) {
	payload, err := d.AppendBinary(append(b, d.Destination...))
	if err != nil {
		return record{}, fmt.Errorf("filequeue: %w", err)
	}
	r := tagged(kindPut, payload)
	r.tag, r.retry, r.user = uint32(len(d.Destination)), !d.Expires.IsZero(), userHash(d.User)
	r.due, r.put, r.key, r.size = d.Due.UnixMicro(), now, keyOf(d), uint32(len(d.Body))
	return r, nil
}

// readPut decodes the delivery of a kindPut into d.
func (r *record) readPut(d *webhook.Delivery) error {
	if int(r.tag) > len(r.payload) {
		return errDamaged
	}
	return d.UnmarshalBinary(r.payload[r.tag:])
}

// waitingKind returns the kind of the state of a waiting delivery.
func waitingKind(retry bool) kind {
	if retry {
		return kindRetry
	}
	return kindFresh
}

// stateRecord returns the state record of a delivery. d may lack its body, so the caller passes as
// size what d.Size returns with the body.
func stateRecord(k kind, d *webhook.DeadLetter, size int64) (record, error) {
	state := webhook.DeadLetter{Reason: d.Reason, Died: d.Died, Delivery: webhook.Delivery{
		Due: d.Due, Expires: d.Expires, Tries: d.Tries, Closed: d.Closed, Attempts: d.Attempts,
	}}
	b, err := state.AppendBinary(nil)
	if err == nil && recordSize(len(b)) > maxState {
		err = fmt.Errorf("the attempts of a delivery have %d bytes; the limit is %d", len(b), maxState)
	}
	if err != nil {
		return record{}, fmt.Errorf("filequeue: %w", err)
	}
	r := tagged(k, b)
	r.tag, r.user, r.size, r.due = 0, userHash(d.User), uint32(size), d.Due.UnixMicro()
	if k == kindDead || k == kindDelivered {
		r.due = d.Died.UnixMicro()
	}
	return r, nil
}

// readState decodes a state record into d, which has the delivery as it was put.
func (r *record) readState(d *webhook.DeadLetter) error {
	var state webhook.DeadLetter
	if err := state.UnmarshalBinary(r.payload); err != nil {
		return err
	}
	d.Reason, d.Died = state.Reason, state.Died
	d.Due, d.Expires, d.Tries, d.Closed, d.Attempts = state.Due, state.Expires, state.Tries, state.Closed, state.Attempts
	return nil
}

// userHash returns the hash of a user id for the header field user. Only the empty user has the
// hash 0.
func userHash(user string) uint32 {
	if user == "" {
		return 0
	}
	h := fnv.New32a()
	h.Write([]byte(user))
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

// refs returns the refs in a record that the function listing has made, and nil for any other
// record, and for one that cannot be read.
func (r *record) refs() (refs []ref) {
	if r.damaged || r.kind != kindGone && r.kind != kindLost && r.kind != kindSegments {
		return nil
	}
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

// settingRecord returns the record of a setting.
func settingRecord(s *webhook.Setting) record {
	b := binary.AppendUvarint(nil, uint64(len(s.Name)))
	b = append(append(b, s.Name...), s.Value...)
	return tagged(kindSetting, b)
}

var errPayload = errors.New("malformed payload")

// readSetting decodes a setting. The result shares no memory with the record.
func (r *record) readSetting() (s webhook.Setting, err error) {
	n, m := binary.Uvarint(r.payload)
	if m <= 0 || n == 0 || n > uint64(len(r.payload)-m) {
		return s, errPayload
	}
	name, value := r.payload[m:m+int(n)], r.payload[m+int(n):]
	return webhook.Setting{Name: string(name), Value: append([]byte{}, value...), Version: r.seq}, nil
}
