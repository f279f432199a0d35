package esjson

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"slices"
	"sort"
)

// A member is one member of an object. It lies in output[start:end], without a comma around
// it. Its key lies in output[start:keyEnd], including the quotes.
type member struct {
	start, keyEnd, end int
	print              uint64 // fingerprint of the key
}

// A part is a member that reorder keeps. It lies in output[start:end].
type part struct {
	start, end int
	index      int64 // the arrayIndex of the key
}

// A move is a change that reorder has yet to make: the object in output[start:end] gets
// the members parts[first:last], in this order.
type move struct{ start, end, first, last int }

// notIndex is the arrayIndex of a key that is not an array index. All array indices are
// smaller.
const notIndex = 1<<32 - 1

// arrayIndex returns the array index that key spells: 0 to 4294967294 in canonical decimal
// form (ECMA-262, section 6.1.7). For any other key it returns notIndex.
func arrayIndex(key []byte) int64 {
	if len(key) == 0 || len(key) > 10 || !isDigit(key[0]) || key[0] == '0' && len(key) > 1 {
		return notIndex
	}
	n := int64(0)
	for _, c := range key {
		if !isDigit(c) {
			return notIndex
		}
		n = n*10 + int64(c-'0')
	}
	return min(n, notIndex)
}

// fingerprint returns a hash of the key. Most different keys have different fingerprints.
// Keys with the same fingerprint still have to be compared; see sameKeys.
func fingerprint(key []byte) uint64 {
	n := len(key)
	var head, tail uint64
	switch {
	case n >= 8:
		head = binary.LittleEndian.Uint64(key)
		tail = binary.LittleEndian.Uint64(key[n-8:])
	case n >= 4:
		head = uint64(binary.LittleEndian.Uint32(key))
		tail = uint64(binary.LittleEndian.Uint32(key[n-4:])) << 32
	case n > 0:
		head = uint64(key[0]) | uint64(key[n/2])<<8 | uint64(key[n-1])<<16
	}
	return head ^ bits.RotateLeft64(tail, 29) ^ uint64(n)<<56
}

// few is the largest number of members for which sameKeys compares all pairs. For more
// members, it uses a hash table.
const few = 16

// sameKeys reports whether two of members[first:] have the same key.
func (c *copier) sameKeys(first int) bool {
	members := c.members[first:]
	if len(members) > few {
		return c.distinct(members, nil) < len(members)
	}
	for i := range members {
		a := &members[i]
		for j := range members[:i] {
			if members[j].print == a.print && c.sameKey(&members[j], a) {
				return true
			}
		}
	}
	return false
}

// distinct returns the number of different keys in members. If later is not nil, distinct
// calls later(first, again) for each repetition of a key: members[first] is the first
// member with that key, and members[again] repeats it. The hashes of the keys have a random
// seed. So the time is linear even if an attacker has chosen the keys.
func (c *copier) distinct(members []member, later func(first, again int)) (n int) {
	size := 1 << bits.Len(uint(2*len(members)))
	c.table = slices.Grow(c.table[:0], size)[:size]
	clear(c.table) // an entry is an index into members plus 1, or 0
	for i := range members {
		m := &members[i]
		h := int(maphash.Bytes(seed, c.output(m.start, m.keyEnd))) & (size - 1)
		for c.table[h] != 0 && !c.sameKey(&members[c.table[h]-1], m) {
			h = (h + 1) & (size - 1)
		}
		if c.table[h] == 0 {
			c.table[h] = uint32(i + 1)
			n++
		} else if later != nil {
			later(int(c.table[h]-1), i)
		}
	}
	return n
}

var seed = maphash.MakeSeed()

// move records the new order of members[first:] of the object in output[start:end]: array
// indices first, then the other keys. A key that appears twice keeps its first place and
// its last value.
func (c *copier) move(start, first, end int) {
	members := c.members[first:]
	c.distinct(members, func(first, again int) {
		members[first], members[again] = members[again], member{}
	})
	members = slices.DeleteFunc(members, func(m member) bool { return m == member{} })
	from := len(c.parts)
	for i := range members {
		m := &members[i]
		if index := c.index(m); index != notIndex {
			c.parts = append(c.parts, part{m.start, m.end, index})
		}
	}
	slices.SortFunc(c.parts[from:], func(a, b part) int { return cmp.Compare(a.index, b.index) })
	for i := range members {
		m := &members[i]
		if index := c.index(m); index == notIndex {
			c.parts = append(c.parts, part{m.start, m.end, index})
		}
	}
	c.moves = append(c.moves, move{start, end, from, len(c.parts)})
}

// index returns the arrayIndex of the key of m.
func (c *copier) index(m *member) int64 {
	return arrayIndex(c.output(m.start+1, m.keyEnd-1))
}

// reorder carries out the moves, all in one pass over the output.
func (c *copier) reorder() {
	slices.SortFunc(c.moves, func(a, b move) int { return cmp.Compare(a.start, b.start) })
	c.scratch = c.emit(c.scratch[:0], c.base, len(c.dst))
	c.dst = append(c.dst[:c.base], c.scratch...)
}

// emit appends output[start:end] to the argument to, with the members of its objects in
// their final order. Each object that starts in output[start:end] must also end there.
func (c *copier) emit(to []byte, start, end int) []byte {
	for {
		i := sort.Search(len(c.moves), func(i int) bool { return c.moves[i].start >= start })
		if i == len(c.moves) || c.moves[i].start >= end {
			return append(to, c.dst[start:end]...)
		}
		m := c.moves[i]
		to = append(to, c.dst[start:m.start]...)
		to = append(to, '{')
		for j, p := range c.parts[m.first:m.last] {
			if j > 0 {
				to = append(to, ',')
			}
			to = c.emit(to, p.start, p.end)
		}
		to = append(to, '}')
		start = m.end
	}
}
