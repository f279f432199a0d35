package filequeue

import (
	"slices"
	"sort"
)

// A queue holds entries in the order of their ranks, in chunks. push appends an entry that sorts
// after all others to the last chunk. For any other entry, it moves a part of one chunk.
type queue struct {
	chunks [][]entry // none is empty
	len    int
	bytes  int64 // the sum of the entries' bytes
}

// chunkLen bounds the entries of a chunk.
const chunkLen = 512

// find returns the chunk, and the index in it, of the first entry that is not before r.
func (q *queue) find(r rank) (c, i int) {
	c = len(q.chunks)
	if c == 0 || q.chunks[c-1][len(q.chunks[c-1])-1].rank().before(r) { // usual, and fast
		return c, 0
	}
	c = sort.Search(c, func(c int) bool { return !q.chunks[c][len(q.chunks[c])-1].rank().before(r) })
	return c, sort.Search(len(q.chunks[c]), func(i int) bool { return !q.chunks[c][i].rank().before(r) })
}

// push adds an entry.
func (q *queue) push(e entry) {
	q.len++
	q.bytes += e.bytes()
	c, i := q.find(e.rank())
	if last := len(q.chunks) - 1; c > last { // behind all others
		if last < 0 || len(q.chunks[last]) == chunkLen {
			q.chunks = append(q.chunks, []entry{e})
		} else {
			q.chunks[last] = append(q.chunks[last], e)
		}
		return
	}
	chunk := slices.Insert(q.chunks[c], i, e)
	if len(chunk) <= chunkLen {
		q.chunks[c] = chunk
		return
	}
	half := len(chunk) / 2
	q.chunks[c] = slices.Clone(chunk[:half])
	q.chunks = slices.Insert(q.chunks, c+1, slices.Clone(chunk[half:]))
}

// first returns the first entry, or nil.
func (q *queue) first() *entry {
	if q.len == 0 {
		return nil
	}
	return &q.chunks[0][0]
}

// at returns the entry with a rank, or nil.
func (q *queue) at(r rank) *entry {
	c, i := q.find(r)
	if c == len(q.chunks) || q.chunks[c][i].rank() != r {
		return nil
	}
	return &q.chunks[c][i]
}

// remove removes the entry with a rank, and reports whether there was one.
func (q *queue) remove(r rank) (e entry, ok bool) {
	c, i := q.find(r)
	if c == len(q.chunks) || q.chunks[c][i].rank() != r {
		return e, false
	}
	chunk := q.chunks[c]
	e = chunk[i]
	q.len--
	q.bytes -= e.bytes()
	if i == 0 {
		chunk = chunk[1:]
	} else {
		chunk = slices.Delete(chunk, i, i+1)
	}
	if q.chunks[c] = chunk; len(chunk) == 0 {
		q.chunks = slices.Delete(q.chunks, c, c+1)
	}
	return e, true
}

// after returns up to n entries behind a rank.
func (q *queue) after(r rank, n int) (some []entry) {
	for c, i := q.find(rank{r.due, r.seq + 1}); c < len(q.chunks) && len(some) < n; c, i = c+1, 0 {
		rest := q.chunks[c][i:]
		some = append(some, rest[:min(n-len(some), len(rest))]...)
	}
	return some
}

// before returns up to n entries in front of a rank, in reverse order.
func (q *queue) before(r rank, n int) (some []entry) {
	for c, i := q.find(r); len(some) < n && c+i > 0; i-- {
		if i == 0 {
			c--
			i = len(q.chunks[c])
		}
		some = append(some, q.chunks[c][i-1])
	}
	return some
}

// collect adds an entry without sorting, which is fast for many entries. The caller calls sort
// before any other method.
func (q *queue) collect(e entry) {
	if q.chunks == nil {
		q.chunks = make([][]entry, 1)
	}
	q.chunks[0] = append(q.chunks[0], e)
	q.len++
	q.bytes += e.bytes()
}

// sort puts the collected entries in order.
func (q *queue) sort() {
	all := slices.Concat(q.chunks...)
	slices.SortFunc(all, func(a, b entry) int { return a.rank().compare(b.rank()) })
	q.chunks = nil
	for chunk := range slices.Chunk(all, chunkLen) {
		q.chunks = append(q.chunks, slices.Clone(chunk))
	}
}

// named returns the entries with these keys.
func (q *queue) named(keys ...string) (all []entry) {
	for _, key := range keys {
		if e := q.at(rankOf(key)); e != nil {
			all = append(all, *e)
		}
	}
	return all
}
