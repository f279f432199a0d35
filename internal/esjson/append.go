package esjson

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"sync"
	"unicode/utf8"
)

// Append appends the JSON text src in the form that ECMAScript writes after reading it.
// White space around src is allowed. On error, a *SyntaxError, Append returns dst with its
// length unchanged, but the bytes between its length and its capacity may have changed. dst
// and src must not overlap.
//
// The time is proportional to the length of src, whatever src holds, except for sorting
// array indices that are out of order. Apart from growing dst, Append usually allocates
// only to parse numbers of more than 32 bytes.
func Append(dst, src []byte) ([]byte, error) {
	if n := len(src); n > 1 && src[0] == '"' && plain(src, 1) == n-1 && src[n-1] == '"' {
		return append(dst, src...), nil // most strings take this path
	}
	out, err := appendAt(dst, src, 0)
	if err != nil {
		return dst, err
	}
	return out, nil
}

// appendAt does the same as Append, for a text inside other arrays and objects. The argument depth
// says how many of them enclose the text.
func appendAt(dst, src []byte, depth int) ([]byte, *SyntaxError) {
	c := copiers.Get().(*copier)
	defer c.release()
	c.src, c.dst = src, dst
	form, i, err := c.form(skipSpace(src, 0), depth)
	if err != nil {
		return dst, err
	}
	if i = skipSpace(src, i); i < len(src) {
		return dst, &SyntaxError{i, problemTrailing}
	}
	if len(c.dst) == len(dst) {
		return append(dst, form...), nil
	}
	return c.dst, nil
}

// A copier copies a JSON text from src to dst. It copies text that needs no change in runs
// that are as long as possible. The current run is src[run:] up to the current position.
// The copier has yet to append it to dst. Offsets in the output count the current run as if
// it were in dst already, so appending it does not change them.
type copier struct {
	src  []byte
	dst  []byte
	run  int
	base int // the offset in dst at which the output starts

	// members are the members of all open objects, outer objects before inner.
	members []member
	// moves lists the objects whose members change their order or number. Until reorder
	// makes these changes, the output holds all members of these objects in the order of
	// the source.
	moves []move
	// parts are the members that the objects in moves keep, in their new order.
	parts []part

	table   []uint32 // the hash table of distinct
	scratch []byte   // the buffer of reorder
}

var copiers = sync.Pool{New: func() any { return new(copier) }}

// maxKept is how many elements each slice of a pooled copier or encoder may have. A
// call of 32 KB needs far fewer.
const maxKept = 1 << 15

func (c *copier) release() {
	c.src, c.dst = nil, nil
	c.members = c.members[:0]
	if cap(c.members) > maxKept || cap(c.moves) > maxKept || cap(c.parts) > maxKept ||
		cap(c.table) > maxKept || cap(c.scratch) > 8*maxKept {
		return
	}
	copiers.Put(c)
}

// form returns the canonical form of a value, and the end of the value in src. The value should
// start at src[i], nested in depth arrays and objects. If nothing has to change, the result is
// src[i:end] itself. Otherwise form appends the canonical form to dst and returns that part of dst.
func (c *copier) form(i, depth int) (form []byte, end int, err *SyntaxError) {
	c.base, c.run = len(c.dst), i
	c.moves, c.parts = c.moves[:0], c.parts[:0]
	if end, err = c.value(i, depth); err != nil {
		return nil, end, err
	}
	if c.run == i && len(c.moves) == 0 {
		return c.src[i:end:end], end, nil
	}
	c.flush(end)
	if len(c.moves) > 0 {
		c.reorder()
	}
	return c.dst[c.base:len(c.dst):len(c.dst)], end, nil
}

// flush appends the current run, which ends at src[end], to dst.
func (c *copier) flush(end int) {
	c.dst = append(c.dst, c.src[c.run:end]...)
	c.run = end
}

// offset returns the offset in the output at which src[i] is, or will be after the current run
// is in dst. i must be the current position.
func (c *copier) offset(i int) int { return len(c.dst) + i - c.run }

// space skips the white space at src[i] and returns its end. Skipped white space does not reach the
// output.
func (c *copier) space(i int) int {
	if i < len(c.src) && c.src[i] > ' ' {
		return i
	}
	return c.skipSpace(i)
}

// skipSpace is the slow path of space. It is a function of its own so that space can be
// inlined.
//
//go:noinline
func (c *copier) skipSpace(i int) int {
	end := skipSpace(c.src, i)
	if end > i {
		c.flush(i)
		c.run = end
	}
	return end
}

// value copies the value that should start at src[i], nested in depth arrays and
// objects, and returns its end.
func (c *copier) value(i, depth int) (int, *SyntaxError) {
	if i >= len(c.src) {
		return i, unexpected(c.src, i)
	}
	switch b := c.src[i]; b {
	case '"':
		return c.string(i)
	case '{':
		return c.object(i, depth)
	case '[':
		return c.array(i, depth)
	case 't':
		return skipLiteral(c.src, i, "true")
	case 'f':
		return skipLiteral(c.src, i, "false")
	case 'n':
		return skipLiteral(c.src, i, "null")
	default:
		if b != '-' && !isDigit(b) {
			return i, unexpected(c.src, i)
		}
		end, canonical, err := skipNumber(c.src, i)
		if err == nil && !canonical {
			c.flush(i)
			c.dst = appendNumber(c.dst, c.src[i:end])
			c.run = end
		}
		return end, err
	}
}

func (c *copier) array(i, depth int) (int, *SyntaxError) {
	if depth >= MaxDepth {
		return i, &SyntaxError{i, problemDepth}
	}
	i = c.space(i + 1)
	if i < len(c.src) && c.src[i] == ']' {
		return i + 1, nil
	}
	for {
		var err *SyntaxError
		if i, err = c.value(i, depth+1); err != nil {
			return i, err
		}
		i = c.space(i)
		switch {
		case i < len(c.src) && c.src[i] == ',':
			i = c.space(i + 1)
		case i < len(c.src) && c.src[i] == ']':
			return i + 1, nil
		default:
			return i, unexpected(c.src, i)
		}
	}
}

func (c *copier) object(i, depth int) (int, *SyntaxError) {
	if depth >= MaxDepth {
		return i, &SyntaxError{i, problemDepth}
	}
	start := c.offset(i)
	first := len(c.members)
	ordered := true   // the array indices come first and ascend
	last := int64(-1) // the largest arrayIndex of the keys so far
	i = c.space(i + 1)
	if i < len(c.src) && c.src[i] == '}' {
		return i + 1, nil
	}
	for {
		at := len(c.members)
		end, index, err := c.key(i)
		if err != nil {
			return i, err
		}
		if index < last {
			ordered = false
		}
		last = max(last, index)

		i = c.space(end)
		if i >= len(c.src) || c.src[i] != ':' {
			return i, unexpected(c.src, i)
		}
		i = c.space(i + 1)
		if i, err = c.value(i, depth+1); err != nil {
			return i, err
		}
		c.members[at].end = c.offset(i)

		i = c.space(i)
		if i < len(c.src) && c.src[i] == ',' {
			i = c.space(i + 1)
			continue
		}
		if i < len(c.src) && c.src[i] == '}' {
			i++
			break
		}
		return i, unexpected(c.src, i)
	}
	if !ordered || c.sameKeys(first) {
		c.move(start, first, c.offset(i))
	}
	c.members = c.members[:first]
	return i, nil
}

// key copies the key that should start at src[i], and appends a member with this key to
// c.members. It returns the end of the key in src, and the arrayIndex of the key.
func (c *copier) key(i int) (end int, index int64, err *SyntaxError) {
	start := c.offset(i)
	if end, err = c.string(i); err != nil {
		return i, 0, err
	}
	text := c.src[i+1 : end-1]
	if c.run > i {
		// The key has changed in copying, so its beginning is in dst already. Copy the rest now, so
		// that the whole key lies in dst.
		c.flush(end)
		text = c.dst[start+1 : len(c.dst)-1]
	}
	c.members = append(c.members, member{start: start, keyEnd: start + len(text) + 2, print: fingerprint(text)})
	return end, arrayIndex(text), nil
}

// string copies the string that should start at src[i].
func (c *copier) string(i int) (int, *SyntaxError) {
	src := c.src
	if i >= len(src) || src[i] != '"' {
		return i, unexpected(src, i)
	}
	// This loop is a copy of plain, as in skipString.
	for i++; len(src)-i >= 8; i += 8 {
		if m := special(binary.LittleEndian.Uint64(src[i:])); m != 0 {
			if i += bits.TrailingZeros64(m) >> 3; src[i] == '"' {
				return i + 1, nil
			}
			break
		}
	}
	for i = plain(src, i); i < len(src); i = plain(src, i) {
		switch b := src[i]; {
		case b == '"':
			return i + 1, nil
		case b >= utf8.RuneSelf:
			i = wellFormed(src, i)
			if i < len(src) && src[i] >= utf8.RuneSelf {
				c.flush(i)
				c.dst = append(c.dst, replacement...)
				i += subpart(src[i:])
				c.run = i
			}
		case b == '\\':
			r, size := unescape(src[i:])
			switch {
			case size == 0:
				return i, &SyntaxError{i, problemEscape}
			case size > 2 || r == '/':
				c.flush(i)
				c.dst = appendUnit(c.dst, r)
				c.run = i + size
			}
			i += size
		default:
			return i, &SyntaxError{i, problemControl}
		}
	}
	return i, unexpected(src, i)
}

// output returns output[start:end], which must lie completely in dst or completely in the
// run.
func (c *copier) output(start, end int) []byte {
	if end <= len(c.dst) {
		return c.dst[start:end]
	}
	at := c.run - len(c.dst)
	return c.src[at+start : at+end]
}

// sameKey reports whether the members a and b have the same key. In the output all keys
// are in canonical form, so equal keys have equal bytes.
func (c *copier) sameKey(a, b *member) bool {
	return a.print == b.print && a.keyEnd-a.start == b.keyEnd-b.start &&
		bytes.Equal(c.output(a.start, a.keyEnd), c.output(b.start, b.keyEnd))
}
