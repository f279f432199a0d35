package esjson

import (
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// special checks the eight bytes in w, in little-endian order. It sets the highest bit of each byte
// that cannot be copied into a string unchecked: control characters, the quote, the backslash, and
// bytes that are not ASCII. The lowest of these marks is always right. Higher marks may be wrong,
// because the subtractions borrow.
func special(w uint64) uint64 {
	const (
		space     = lowBits * ' '
		quote     = lowBits * '"'
		backslash = lowBits * '\\'
	)
	return (w | (w - space) | ((w ^ quote) - lowBits) | ((w ^ backslash) - lowBits)) & highBits
}

// plain returns the index of the first byte of b, from i on, that the function special marks. If
// there is none, it returns len(b).
func plain(b []byte, i int) int {
	for ; len(b)-i >= 8; i += 8 {
		if m := special(binary.LittleEndian.Uint64(b[i:])); m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
	}
	for i < len(b) && ' ' <= b[i] && b[i] < utf8.RuneSelf && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

// copyPlain copies b to the start of dst, which must be at least as long. At a byte that
// special marks it stops and returns false.
func copyPlain(dst, b []byte) bool {
	n := len(b)
	dst = dst[:n]
	switch {
	case n >= 8:
		// Check and copy the last eight bytes first. The loop then copies words of eight
		// bytes from the start of b. Its last word may overlap the last eight bytes.
		last := binary.LittleEndian.Uint64(b[n-8:])
		if special(last) != 0 {
			return false
		}
		binary.LittleEndian.PutUint64(dst[n-8:], last)
		for len(b) > 8 && len(dst) > 8 {
			w := binary.LittleEndian.Uint64(b)
			if special(w) != 0 {
				return false
			}
			binary.LittleEndian.PutUint64(dst, w)
			b, dst = b[8:], dst[8:]
		}
		return true
	case n >= 4:
		head, tail := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[n-4:])
		binary.LittleEndian.PutUint32(dst, head)
		binary.LittleEndian.PutUint32(dst[n-4:], tail)
		return special(uint64(head)|uint64(tail)<<32) == 0
	}
	for i, c := range b {
		if c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			return false
		}
		dst[i] = c
	}
	return true
}

// wellFormed returns the index of the first byte of b, from i on, that is ASCII or does not
// start a well-formed UTF-8 sequence. It returns len(b) if there is none.
func wellFormed(b []byte, i int) int {
	for i < len(b) && b[i] >= utf8.RuneSelf {
		switch c := b[i]; {
		case len(b)-i >= 2 && 0xc2 <= c && c <= 0xdf && isTail(b[i+1]):
			i += 2
		case len(b)-i >= 3 && 0xe1 <= c && c <= 0xef && c != 0xed && isTail(b[i+1]) && isTail(b[i+2]):
			i += 3
		default:
			r, size := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError {
				return i // a literal U+FFFD has taken the three-byte case above
			}
			i += size
		}
	}
	return i
}

func isTail(c byte) bool { return c&0xc0 == 0x80 }

// subpart returns the length of the maximal subpart of the ill-formed sequence at the start
// of b (Unicode 15, section 3.9, table 3-8). One U+FFFD replaces it, as the WHATWG Encoding
// Standard requires ("UTF-8 decoder").
func subpart(b []byte) int {
	size := 1
	for size < len(b) && !utf8.FullRune(b[:size+1]) { // b[:size+1] may be the start of a character
		size++
	}
	return size
}

const replacement = "\uFFFD"

// AppendString appends s as a JSON string with its quotes. Invalid UTF-8 in s becomes U+FFFD.
func AppendString(dst []byte, s string) []byte {
	dst, _ = appendString(dst, s)
	return dst
}

// appendString does the same as AppendString. The result mended reports whether s had
// invalid UTF-8.
func appendString(dst []byte, s string) (out []byte, mended bool) {
	if n := len(dst); cap(dst)-n >= len(s)+2 {
		out := dst[n : n+len(s)+2]
		if copyPlain(out[1:], bytesOf(s)) {
			out[0], out[len(out)-1] = '"', '"'
			return dst[:n+len(out)], false
		}
	}
	return appendOddString(dst, s)
}

// appendOddString does the same as appendString, but does not try copyPlain first, for
// strings that copyPlain refuses.
func appendOddString(dst []byte, s string) (out []byte, mended bool) {
	dst = append(dst, '"')
	b := bytesOf(s)
	run := 0
	for i := plain(b, 0); i < len(b); i = plain(b, i) {
		if b[i] >= utf8.RuneSelf {
			i = wellFormed(b, i)
			if i < len(b) && b[i] >= utf8.RuneSelf {
				dst = append(dst, b[run:i]...)
				dst = append(dst, replacement...)
				i += subpart(b[i:])
				run = i
				mended = true
			}
			continue
		}
		dst = append(dst, b[run:i]...)
		dst = appendEscaped(dst, b[i])
		i++
		run = i
	}
	dst = append(dst, b[run:]...)
	return append(dst, '"'), mended
}

const lowerHex = "0123456789abcdef"

// appendEscaped appends the escape sequence of a quote, a backslash or a control
// character.
func appendEscaped(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, '\\', 'b')
	case '\f':
		return append(dst, '\\', 'f')
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', lowerHex[c>>4], lowerHex[c&15])
}

// appendUnit appends the character u, which unescape has decoded. If JSON requires an escape for u,
// or u is a lone surrogate, it appends an escape sequence.
func appendUnit(dst []byte, u rune) []byte {
	switch {
	case u < ' ' || u == '"' || u == '\\':
		return appendEscaped(dst, byte(u))
	case utf16.IsSurrogate(u):
		return append(dst, '\\', 'u', 'd', lowerHex[u>>8&15], lowerHex[u>>4&15], lowerHex[u&15])
	}
	return utf8.AppendRune(dst, u)
}

// unit decodes the four hex digits at the start of b.
func unit(b []byte) (u rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	var n [2]byte
	_, err := hex.Decode(n[:], b[:4])
	return rune(n[0])<<8 | rune(n[1]), err == nil
}

// unescape decodes the escape sequence at the start of b, the rest of a string. It decodes
// a surrogate pair, which is two escape sequences, as a whole. It returns the code point,
// which may be a lone surrogate, and the number of bytes read, which is 0 for an invalid
// escape sequence.
func unescape(b []byte) (r rune, size int) {
	if len(b) < 2 {
		return 0, 0
	}
	switch b[1] {
	case '"', '\\', '/':
		return rune(b[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
	default:
		return 0, 0
	}
	r, ok := unit(b[2:])
	if !ok {
		return 0, 0
	}
	if len(b) >= 12 && b[6] == '\\' && b[7] == 'u' {
		if second, ok := unit(b[8:]); ok {
			if pair := utf16.DecodeRune(r, second); pair != utf8.RuneError {
				return pair, 12
			}
		}
	}
	return r, 6
}

// AppendText appends the text that a JSON string literal stands for, in UTF-8. The literal
// includes its quotes. A lone surrogate becomes U+FFFD. On error, a *SyntaxError,
// AppendText returns dst unchanged.
func AppendText(dst, literal []byte) ([]byte, error) {
	end, err := skipString(literal, 0)
	if err != nil {
		return dst, err
	}
	if end != len(literal) {
		return dst, &SyntaxError{end, problemTrailing}
	}
	return appendText(dst, literal[1:end-1]), nil
}

// appendText appends the decoded text of s, a valid string without its quotes.
func appendText(dst, s []byte) []byte {
	run := 0
	for i := plain(s, 0); i < len(s); i = plain(s, i) {
		if s[i] >= utf8.RuneSelf {
			i = wellFormed(s, i)
			if i < len(s) && s[i] >= utf8.RuneSelf {
				dst = append(dst, s[run:i]...)
				dst = append(dst, replacement...)
				i += subpart(s[i:])
				run = i
			}
			continue
		}
		dst = append(dst, s[run:i]...)
		r, size := unescape(s[i:])
		dst = utf8.AppendRune(dst, r) // a surrogate becomes U+FFFD
		i += size
		run = i
	}
	return append(dst, s[run:]...)
}
