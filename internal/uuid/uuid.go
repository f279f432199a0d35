// Package uuid writes random UUIDs.
package uuid

import (
	"encoding/binary"
	"slices"

	"github.com/hookferry/analytics/internal/random"
)

// Size is the length of a UUID's text in bytes.
const Size = 36

// Append appends the text of a random UUID, version 4 (RFC 9562, section 5.4). Its bits
// come from the runtime's ChaCha8 generator. Use it for names, not for secrets.
func Append(dst []byte) []byte {
	const (
		low     = 0x0f0f0f0f0f0f0f0f
		version = 0x0f << 32 // the thirteenth digit
		variant = 0x0f       // the seventeenth digit
	)
	a, b := random.Uint64(), random.Uint64()
	second := a>>4&low&^version | 4<<32
	third := b&low&^variant | 8 | b&3
	n := len(dst)
	dst = slices.Grow(dst, Size)[:n+Size]
	text := dst[n : n+Size]
	binary.LittleEndian.PutUint64(text[0:], hex(a&low))
	text[8] = '-'
	binary.LittleEndian.PutUint32(text[9:], uint32(hex(second)))
	text[13] = '-'
	binary.LittleEndian.PutUint32(text[14:], uint32(hex(second)>>32))
	text[18] = '-'
	binary.LittleEndian.PutUint32(text[19:], uint32(hex(third)))
	text[23] = '-'
	binary.LittleEndian.PutUint32(text[24:], uint32(hex(third)>>32))
	binary.LittleEndian.PutUint64(text[28:], hex(b>>4&low))
	return dst
}

// hex converts eight numbers below 16, one in each byte, to lower-case hex digits.
func hex(n uint64) uint64 {
	const ones = 0x0101010101010101
	letters := (n + 6*ones) >> 4 & ones // 1 in each byte of 10 and more
	return n + '0'*ones + letters*('a'-'0'-10)
}
