package esjson

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

const (
	problemEnd      = "unexpected end"
	problemTrailing = "more after the value"
)

func unexpected(src []byte, i int) *SyntaxError {
	if i >= len(src) {
		return &SyntaxError{len(src), problemEnd}
	}
	return &SyntaxError{i, "unexpected character"}
}

// skipSpace returns the end of the white space at src[i], which may be empty.
func skipSpace(src []byte, i int) int {
	if i < len(src) && src[i] > ' ' {
		return i
	}
	return skipSpaces(src, i)
}

// skipSpaces is the slow path of skipSpace. It is a function of its own so that skipSpace
// can be inlined.
//
//go:noinline
func skipSpaces(src []byte, i int) int {
	for i < len(src) && (src[i] == ' ' || src[i] == '\n' || src[i] == '\r' || src[i] == '\t') {
		i++
	}
	return i
}

// skipString returns the end of the string that should start at src[i].
func skipString(src []byte, i int) (int, *SyntaxError) {
	if i >= len(src) || src[i] != '"' {
		return i, unexpected(src, i)
	}
	// This loop is a copy of the function plain, because a call of plain would take as
	// long as scanning most strings.
	for i++; len(src)-i >= 8; i += 8 {
		if m := special(binary.LittleEndian.Uint64(src[i:])); m != 0 {
			if i += bits.TrailingZeros64(m) >> 3; src[i] == '"' {
				return i + 1, nil
			}
			break
		}
	}
	return skipRest(src, i)
}

// skipRest returns the end of the string whose remaining text starts at src[i].
func skipRest(src []byte, i int) (int, *SyntaxError) {
	for i = plain(src, i); i < len(src); i = plain(src, i) {
		switch c := src[i]; {
		case c == '"':
			return i + 1, nil
		case c >= utf8.RuneSelf:
			for i < len(src) && src[i] >= utf8.RuneSelf {
				i++ // invalid UTF-8 is allowed here: it becomes U+FFFD
			}
		case c == '\\':
			_, size := unescape(src[i:])
			if size == 0 {
				return i, &SyntaxError{i, problemEscape}
			}
			i += size
		default:
			return i, &SyntaxError{i, problemControl}
		}
	}
	return i, unexpected(src, i)
}

const (
	problemEscape  = "invalid escape sequence"
	problemControl = "control character in a string"
)

// skipLiteral checks that word starts at src[i], and returns the end of word.
func skipLiteral(src []byte, i int, word string) (int, *SyntaxError) {
	for j := range len(word) {
		if i+j >= len(src) || src[i+j] != word[j] {
			return i, unexpected(src, i+j)
		}
	}
	return i + len(word), nil
}

// skip returns the end of the value that should start at src[i]. Arrays and objects in
// the value may be nested at most limit deep. Each level takes one bit and no stack
// frame, so the depth may be as large as the number of bytes of src.
func skip(src []byte, i, limit int) (int, *SyntaxError) {
	level := 0
	var objects uint64 // one bit for each of up to 64 levels, set for an object; the lowest bit is the innermost
	var outer []uint64 // the bits of the levels further out, 64 in each element
	for {
		var err *SyntaxError
		if i >= len(src) {
			return i, unexpected(src, i)
		}
		switch c := src[i]; c {
		case '"':
			i, err = skipString(src, i)
		case '{', '[':
			if level >= limit {
				return i, &SyntaxError{i, problemDepth}
			}
			i = skipSpace(src, i+1)
			if i < len(src) && src[i] == closing(c == '{') {
				i++
				break
			}
			if level++; level&63 == 0 {
				outer = append(outer, objects)
			}
			objects <<= 1
			if c == '{' {
				objects |= 1
				if _, i, err = skipKey(src, i); err != nil {
					return i, err
				}
			}
			continue
		case 't':
			i, err = skipLiteral(src, i, "true")
		case 'f':
			i, err = skipLiteral(src, i, "false")
		case 'n':
			i, err = skipLiteral(src, i, "null")
		default:
			if c != '-' && !isDigit(c) {
				return i, unexpected(src, i)
			}
			i, _, err = skipNumber(src, i)
		}
		if err != nil {
			return i, err
		}

		// src[i] follows a value. Close the arrays and objects that end here, up to a
		// comma.
		for level > 0 {
			i = skipSpace(src, i)
			if i >= len(src) {
				return i, unexpected(src, i)
			}
			object := objects&1 == 1
			if src[i] == ',' {
				i = skipSpace(src, i+1)
				if object {
					if _, i, err = skipKey(src, i); err != nil {
						return i, err
					}
				}
				break
			}
			if src[i] != closing(object) {
				return i, unexpected(src, i)
			}
			i++
			objects >>= 1
			if level&63 == 0 {
				objects = outer[len(outer)-1]
				outer = outer[:len(outer)-1]
			}
			level--
		}
		if level == 0 {
			return i, nil
		}
	}
}

// closing returns the bracket that closes an object or an array.
func closing(object bool) byte {
	if object {
		return '}'
	}
	return ']'
}

// skipKey skips the key that should start at src[i] and the colon. It returns the end of the key,
// and the offset at which the value should start.
func skipKey(src []byte, i int) (end, value int, err *SyntaxError) {
	if end, err = skipString(src, i); err != nil {
		return end, end, err
	}
	i = skipSpace(src, end)
	if i >= len(src) || src[i] != ':' {
		return end, i, unexpected(src, i)
	}
	return end, skipSpace(src, i+1), nil
}

// skipItems returns the end of the array or object that starts at src[i] and ends with the bracket
// last. For every element or member it calls the function item, with the offset at which the
// element or member should start. The function item returns its end.
func skipItems(src []byte, i int, last byte, item func(i int) (int, *SyntaxError)) (int, *SyntaxError) {
	i = skipSpace(src, i+1)
	if i < len(src) && src[i] == last {
		return i + 1, nil
	}
	for {
		var err *SyntaxError
		if i, err = item(i); err != nil {
			return i, err
		}
		i = skipSpace(src, i)
		switch {
		case i < len(src) && src[i] == ',':
			i = skipSpace(src, i+1)
		case i < len(src) && src[i] == last:
			return i + 1, nil
		default:
			return i, unexpected(src, i)
		}
	}
}
