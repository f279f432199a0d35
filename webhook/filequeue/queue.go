package filequeue

import (
	"iter"
	"math"
	"slices"
	"sort"
)

// A queue holds entries in the order of their ranks, in chunks. push appends an entry that sorts
// after all others to the last chunk. For any other entry, it moves a part of one chunk.
type queue struct {
	chunks []entries // none is empty
	len    int
	bytes  int64 // the sum of the entries' bytes
}

// chunkLen bounds the entries of a chunk.
const chunkLen = 512

// entries are the entries of a chunk. Their sequence numbers are within low and high, so that some of
// them are found without looking at all chunks.
type entries struct {
	all       []entry
	low, high uint64
}

// chunkOf returns a chunk with a copy of these entries.
func chunkOf(all []entry) entries {
	c := entries{all: slices.Clone(all), low: math.MaxUint64}
	for i := range all {
		c.widen(all[i].seq)
	}
	return c
}

func (c *entries) widen(seq uint64) { c.low, c.high = min(c.low, seq), max(c.high, seq) }

func (c *entries) last() rank { return c.all[len(c.all)-1].rank() }

// find returns the chunk, and the index in it, of the first entry that is not before r.
func (q *queue) find(r rank) (c, i int) {
	c = len(q.chunks)
	if c == 0 || q.chunks[c-1].last().before(r) { // usual, and fast
		return c, 0
	}
	c = sort.Search(c, func(c int) bool { return !q.chunks[c].last().before(r) })
	all := q.chunks[c].all
	return c, sort.Search(len(all), func(i int) bool { return !all[i].rank().before(r) })
}

// push adds an entry.
func (q *queue) push(e entry) {
	q.len++
	q.bytes += e.bytes()
	c, i := q.find(e.rank())
	if c == len(q.chunks) { // behind all others
		if c--; c < 0 || len(q.chunks[c].all) == chunkLen {
			q.chunks = append(q.chunks, chunkOf([]entry{e}))
			return
		}
		i = len(q.chunks[c].all)
	}
	chunk := &q.chunks[c]
	chunk.all = slices.Insert(chunk.all, i, e)
	if chunk.widen(e.seq); len(chunk.all) <= chunkLen {
		return
	}
	low, high := chunkOf(chunk.all[:chunkLen/2]), chunkOf(chunk.all[chunkLen/2:])
	q.chunks[c] = low
	q.chunks = slices.Insert(q.chunks, c+1, high)
}

// first returns the first entry, or nil.
func (q *queue) first() *entry {
	if q.len == 0 {
		return nil
	}
	return &q.chunks[0].all[0]
}

// from returns the first entry that is not before r, or nil.
func (q *queue) from(r rank) *entry {
	c, i := q.find(r)
	if c == len(q.chunks) {
		return nil
	}
	return &q.chunks[c].all[i]
}

// at returns the entry with a rank, or nil.
func (q *queue) at(r rank) *entry {
	if e := q.from(r); e != nil && e.rank() == r {
		return e
	}
	return nil
}

// remove removes the entry with a rank, and reports whether there was one.
func (q *queue) remove(r rank) (e entry, ok bool) {
	c, i := q.find(r)
	if c == len(q.chunks) || q.chunks[c].all[i].rank() != r {
		return e, false
	}
	all := q.chunks[c].all
	e = all[i]
	q.len--
	q.bytes -= e.bytes()
	if i == 0 {
		all = all[1:]
	} else {
		all = slices.Delete(all, i, i+1)
	}
	if q.chunks[c].all = all; len(all) == 0 {
		q.chunks = slices.Delete(q.chunks, c, c+1)
	}
	return e, true
}

// after returns up to n entries behind a rank.
func (q *queue) after(r rank, n int) (some []entry) {
	for c, i := q.find(rank{r.due, r.seq + 1}); c < len(q.chunks) && len(some) < n; c, i = c+1, 0 {
		rest := q.chunks[c].all[i:]
		some = append(some, rest[:min(n-len(some), len(rest))]...)
	}
	return some
}

// numbered yields the entries with these sequence numbers, which are in order. It looks once at each
// chunk that may have some of them.
func (q *queue) numbered(seqs []uint64) iter.Seq[entry] {
	return func(yield func(entry) bool) {
		for i := range q.chunks {
			c := &q.chunks[i]
			from, _ := slices.BinarySearch(seqs, c.low)
			some := seqs[from:]
			if len(some) == 0 || some[0] > c.high {
				continue
			}
			for _, e := range c.all {
				if e.seq < some[0] || e.seq > some[len(some)-1] {
					continue
				}
				if _, found := slices.BinarySearch(some, e.seq); found && !yield(e) {
					return
				}
			}
		}
	}
}

// collect adds an entry without sorting, which is fast for many entries. The caller calls sort
// before any other method.
func (q *queue) collect(e entry) {
	if q.chunks == nil {
		q.chunks = make([]entries, 1)
	}
	q.chunks[0].all = append(q.chunks[0].all, e)
	q.len++
	q.bytes += e.bytes()
}

// collected returns the collected entries in order.
func (q *queue) collected() []entry {
	if q.chunks == nil {
		return nil
	}
	all := q.chunks[0].all
	slices.SortFunc(all, func(a, b entry) int { return a.rank().compare(b.rank()) })
	return all
}

// sort puts the collected entries in order.
func (q *queue) sort() {
	all := q.collected()
	q.chunks = nil
	for chunk := range slices.Chunk(all, chunkLen) {
		q.chunks = append(q.chunks, chunkOf(chunk))
	}
}
