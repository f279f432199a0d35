package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/hookferry/analytics/internal/uuid"
)

// This is the format of a segment file. All numbers are little-endian.
//
//	offset           bytes         what
//	0                8             magic; zero in a file without messages
//	8                4             version, 1
//	12               4             M, the maximum number of messages
//	16               4             D, the size of the data area in bytes
//	20               4             length of the head in the data
//	24               8             sequence, by which segments are ordered
//	32               8             opened, in nanoseconds since 1970
//	40               36            id
//	76               4             CRC-32C of bytes 8 to 76
//	80               48            zero
//	128              8 M           index
//	128 + 8 M        D             data: the head, then the messages with commas between
//
// An entry of the index has 8 bytes. The first 4 are the end of the message, counted from
// the start of the data. The other 4 are its checksum. A message begins after the comma
// that follows the previous message. The entry is written in one store, after its message.
// So a message without an entry is incomplete.
//
// The checksum is the CRC-32C of the message XOR the CRC-32C of the header. After a loss of
// power, an entry of an earlier use of the file may reappear. Its checksum does not match,
// because the sequence and the id in the header differ.
//
// A file may end before its data area does. The missing bytes were not used.
const (
	magic      = 0x6765736c6f6f7073 // "spoolseg"
	version    = 1
	headerSize = 128
	entrySize  = 8
	separator  = ','
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the checksum of a message, for Append. Computing it takes most of the
// time of an append. Checksum needs no lock, so callers can call it before they take
// their own lock.
func Checksum(message []byte) uint32 { return crc32.Checksum(message, castagnoli) }

// An ID is the caller's name for a segment. It has the length of a UUID as text, 36 bytes, but any
// bytes will do.
type ID [uuid.Size]byte

// A layout says how much a segment can hold.
type layout struct {
	messages int
	data     int // bytes
}

func (l layout) dataAt() int { return headerSize + l.messages*entrySize }

// size returns the full size of the file in bytes.
func (l layout) size() int { return l.dataAt() + l.data }

// A header is the decoded header of a segment file.
type header struct {
	layout   layout
	head     int // bytes of data before the first message
	sequence uint64
	opened   int64 // nanoseconds since 1970
	id       ID
	sum      uint32
}

// put encodes h into b, without the magic, and sets h.sum.
func (h *header) put(b []byte) {
	le := binary.LittleEndian
	le.PutUint32(b[8:], version)
	le.PutUint32(b[12:], uint32(h.layout.messages))
	le.PutUint32(b[16:], uint32(h.layout.data))
	le.PutUint32(b[20:], uint32(h.head))
	le.PutUint64(b[24:], h.sequence)
	le.PutUint64(b[32:], uint64(h.opened))
	copy(b[40:76], h.id[:])
	h.sum = crc32.Checksum(b[8:76], castagnoli)
	le.PutUint32(b[76:], h.sum)
}

// errVacant is returned for a file without messages: its creation was interrupted, it was a
// spare segment, or its messages have been sent.
var errVacant = errors.New("no segment")

// parseHeader decodes the header at the start of b. A shorter b means that the file has no
// complete header. The error is errVacant, or describes the damage.
func parseHeader(b []byte) (header, error) {
	var h header
	le := binary.LittleEndian
	if len(b) < headerSize {
		if slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) {
			return h, fmt.Errorf("it ends within its header, after %d of %d bytes", len(b), headerSize)
		}
		return h, errVacant
	}
	switch m := le.Uint64(b); {
	case m == 0:
		return h, errVacant
	case m != magic:
		return h, errors.New("it is not a segment file of this package")
	}
	if v := le.Uint32(b[8:]); v != version {
		return h, fmt.Errorf("its format has version %d, the newest known is %d", v, version)
	}
	h.sum = le.Uint32(b[76:])
	if crc32.Checksum(b[8:76], castagnoli) != h.sum {
		return h, errors.New("its header does not match its checksum")
	}
	room, data, head := le.Uint32(b[12:]), le.Uint32(b[16:]), le.Uint32(b[20:])
	if room > maxMessages || data > maxData || head > data {
		return h, fmt.Errorf("its header has impossible numbers: room for %d messages, and %d bytes of data, %d of them before the first message", room, data, head)
	}
	h.layout = layout{messages: int(room), data: int(data)}
	h.head = int(head)
	h.sequence = le.Uint64(b[24:])
	h.opened = int64(le.Uint64(b[32:]))
	copy(h.id[:], b[40:76])
	return h, nil
}

// checkIndex returns an error unless a file has its complete index.
func (h *header) checkIndex(file []byte) error {
	if len(file) < h.layout.dataAt() {
		return fmt.Errorf("it ends within its index, after %d of %d bytes", len(file), h.layout.dataAt())
	}
	return nil
}

// makeEntry makes an entry of the index. The methods end and sum decode it.
func makeEntry(end int, sum uint32) entry { return entry(uint32(end)) | entry(sum)<<32 }

type entry uint64

func (e entry) end() uint32 { return uint32(e) }
func (e entry) sum() uint32 { return uint32(e >> 32) }

// native returns e as a number that is little-endian in memory on this machine.
func (e entry) native() uint64 {
	var b [entrySize]byte
	binary.LittleEndian.PutUint64(b[:], uint64(e))
	return binary.NativeEndian.Uint64(b[:])
}

// count returns the number of entries in an index.
func count(index []byte) int {
	n := 0
	for ; len(index) >= entrySize; index = index[entrySize:] {
		if binary.LittleEndian.Uint64(index) != 0 {
			n++
		}
	}
	return n
}

// salvage returns the messages of a file that match their checksums, joined as in a segment
// with the given head, and the ends of the messages. A damaged entry costs at most its own
// message and the next message, whose start the entry defines. The file must contain the
// complete index.
func (h *header) salvage(file []byte, head string) (data []byte, ends []int32) {
	index, stored := file[headerSize:h.layout.dataAt()], file[h.layout.dataAt():]
	data = append(make([]byte, 0, len(head)+len(stored)), head...)
	start := h.head
	for ; len(index) > 0; index = index[entrySize:] {
		e := entry(binary.LittleEndian.Uint64(index))
		if e == 0 {
			continue
		}
		end := len(stored) + 1 // beyond the data, so the message cannot match
		if e.end() <= uint32(len(stored)) {
			end = int(e.end())
		}
		if start < end && end <= len(stored) && Checksum(stored[start:end])^h.sum == e.sum() {
			if len(ends) > 0 {
				data = append(data, separator)
			}
			data = append(data, stored[start:end]...)
			ends = append(ends, int32(len(data)))
		}
		start = end + 1
	}
	return data, ends
}
