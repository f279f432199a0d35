package esjson

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"strings"
)

// An entry is a key of a map. The field value is set for a map[string]any. For other
// maps it may be nil, and the value is looked up by its key.
type entry struct {
	key   string
	value any
}

// rankOf returns the rank of a key, which is the number by which keys are sorted. Array
// indices get ranks in numeric order. All other keys get higher ranks, in the order of
// their first eight bytes. The lowest 31 bits of an array index's rank are zero, so the
// method sort may overwrite these bits.
func rankOf(key string) uint64 {
	const notIndexRank = 1 << 63
	b := bytesOf(key)
	if len(b) > 0 && isDigit(b[0]) {
		if index := arrayIndex(b); index != notIndex {
			return uint64(index) << 31
		}
	}
	var head uint64
	switch n := len(b); {
	case n >= 8:
		head = binary.BigEndian.Uint64(b)
	case n >= 4:
		head = uint64(binary.BigEndian.Uint32(b))<<32 | uint64(binary.BigEndian.Uint32(b[n-4:]))<<(64-8*n)
	default:
		for i, c := range b {
			head |= uint64(c) << (56 - 8*i)
		}
	}
	return notIndexRank | head>>1
}

// add adds an entry to the innermost map.
func (e *encoder) add(key string, value any) {
	e.ranks = append(e.ranks, rankOf(key))
	e.entries = append(e.entries, entry{key, value})
}

// sort sorts ranks[first:], the ranks of the innermost map, into output order. It replaces
// the lowest bits of each rank by the index of its entry in entries[first:], and returns
// the mask of these bits.
func (e *encoder) sort(first int) (mask uint64) {
	ranks := e.ranks[first:]
	width := bits.Len(uint(len(ranks)))
	mask = 1<<width - 1
	for i := range ranks {
		ranks[i] = ranks[i]&^mask | uint64(i)
	}
	if len(ranks) > 16 {
		slices.Sort(ranks)
	} else {
		// The iteration order of a map is random, so the processor would often mispredict
		// a branch that depends on a comparison. This insertion sort has no such branch:
		// it compares each rank with all ranks before it.
		for i, r := range ranks {
			for j, other := range ranks[:i] {
				ranks[j] = min(r, other)
				r = max(r, other)
			}
			ranks[i] = r
		}
	}
	for i := 1; i < len(ranks); i++ {
		if ranks[i]>>width != ranks[i-1]>>width {
			continue
		}
		// The ranks are equal without the bits of mask, so compare the keys themselves.
		start := i - 1
		for i++; i < len(ranks) && ranks[i]>>width == ranks[start]>>width; i++ {
		}
		entries := e.entries[first:]
		slices.SortFunc(ranks[start:i], func(a, b uint64) int {
			return strings.Compare(entries[a&mask].key, entries[b&mask].key)
		})
	}
	return mask
}

// minMember is the size of the shortest possible member of an object, in bytes, with
// its comma.
const minMember = len(`"":0,`)

func (e *encoder) object(dst []byte, m map[string]any, depth int) ([]byte, *ValueError) {
	if m == nil {
		return append(dst, "null"...), nil
	}
	if !e.fits(dst, minMember*len(m)) {
		return e.tooLong(dst)
	}
	first := len(e.entries)
	entries, ranks := e.entries, e.ranks // local copies, which stay in registers
	for k, v := range m {
		ranks = append(ranks, rankOf(k))
		entries = append(entries, entry{k, v})
	}
	e.entries, e.ranks = entries, ranks
	return e.sorted(dst, first, depth, nil)
}

// sorted appends entries[first:] as an object and removes the entries. If value is not nil, it
// appends the value of a key.
func (e *encoder) sorted(dst []byte, first, depth int, value func(dst []byte, key string) ([]byte, *ValueError)) ([]byte, *ValueError) {
	if depth >= MaxDepth {
		return dst, tooDeep()
	}
	mask := e.sort(first)
	open := byte('{')
	for i := first; i < len(e.ranks); i++ {
		entry := &e.entries[first+int(e.ranks[i]&mask)]
		dst = e.appendKey(dst, open, entry.key)
		open = ','
		var err *ValueError
		if value == nil {
			dst, err = e.value(dst, entry.value, depth+1)
		} else {
			dst, err = value(dst, entry.key)
		}
		if err != nil {
			return dst, err.within(entry.key)
		}
		if !e.fits(dst, 0) {
			return e.tooLong(dst)
		}
	}
	if open == '{' {
		dst = append(dst, '{')
	}
	clear(e.entries[first:])
	e.entries, e.ranks = e.entries[:first], e.ranks[:first]
	return append(dst, '}'), nil
}

// appendMap appends m. It calls the function value to append each value of m.
func appendMap[V any](e *encoder, dst []byte, m map[string]V, depth int, value func([]byte, V) ([]byte, *ValueError)) ([]byte, *ValueError) {
	if m == nil {
		return append(dst, "null"...), nil
	}
	if !e.fits(dst, minMember*len(m)) {
		return e.tooLong(dst)
	}
	first := len(e.entries)
	for k := range m {
		e.add(k, nil)
	}
	return e.sorted(dst, first, depth, func(dst []byte, key string) ([]byte, *ValueError) { return value(dst, m[key]) })
}

// appendKey appends open, which is a brace or a comma, then the key and the colon.
func (e *encoder) appendKey(dst []byte, open byte, key string) []byte {
	if n := len(dst); cap(dst)-n >= len(key)+4 {
		out := dst[n : n+len(key)+4]
		if copyPlain(out[2:], bytesOf(key)) {
			out[0], out[1], out[len(out)-2], out[len(out)-1] = open, '"', '"', ':'
			return dst[:n+len(out)]
		}
	}
	if !e.fits(dst, len(key)) {
		e.limit = -1 // the caller's next check of the limit fails, and stops the encoding
		return dst
	}
	dst, mended := appendOddString(append(dst, open), key)
	e.mended = e.mended || mended
	return append(dst, ':')
}
