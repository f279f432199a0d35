package natsqueue

import (
	"container/heap"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// fit returns how many of n elements a question or an answer has room for, at least one. most and room
// bound their number and the sum of their sizes.
func fit(n, most int, room int64, size func(i int) int64) int {
	for i := range n {
		if room -= size(i); i > 0 && (room < 0 || i == most) {
			return i
		}
	}
	return n
}

// refSize is about how many bytes a ref has in a question or an answer.
func refSize(r store.Ref) int64 { return int64(len(r.Destination)) + 32 }

// maxLooked is how many places list looks at, so that it locks the index for less than a millisecond.
const maxLooked = 4000

// list returns the next deliveries of p in the list of q, up to q.Max: those that its query may select,
// as far as the data in memory tells. If it has looked at maxLooked places, it returns those that it has
// found, maybe none.
func (p *partition) list(q *question) (a answer) {
	p.index.mu.Lock()
	defer p.index.mu.Unlock()
	user := hash(q.Query.User)
	lanes := p.lanes
	if len(q.Query.Destinations) > 0 {
		lanes = make(map[string]*lane)
		for _, name := range q.Query.Destinations {
			if l := p.lanes[name]; l != nil {
				lanes[name] = l
			}
		}
	}
	w := &walks{oldest: q.Query.Oldest}
	for _, l := range lanes {
		if i := l.first(q.After, w.oldest); i >= 0 && i < len(l.list) && l.has(&q.Query) {
			w.all = append(w.all, walk{l, i})
		}
	}
	heap.Init(w)
	room := p.conn.answerRoom()
	for looked := 0; len(w.all) > 0 && len(a.Refs) < q.Max && looked < maxLooked; looked++ {
		x := w.all[0].place()
		r := store.Ref{Destination: w.all[0].lane.name, Seq: x.seq}
		if s := x.state(); s != "" && q.Query.HasState(s) && (q.Query.User == "" || x.user() == user) {
			if room -= refSize(r); room < 0 && len(a.Refs) > 0 {
				break
			}
			a.Refs = append(a.Refs, r)
		}
		a.After = x.seq
		w.step()
	}
	a.More = len(w.all) > 0
	return a
}

// walks go through the lists of several lanes, and visit their places in the order of a list. They are a
// heap.
type walks struct {
	all    []walk
	oldest bool
}

// A walk is before a place of the list of a lane.
type walk struct {
	lane *lane
	i    int
}

// step goes on behind the next place, which is that of the first walk.
func (w *walks) step() {
	x := &w.all[0]
	if x.i--; w.oldest {
		x.i += 2
	}
	if x.i < 0 || x.i == len(x.lane.list) {
		heap.Pop(w)
	} else {
		heap.Fix(w, 0)
	}
}

func (x walk) place() *place { return &x.lane.list[x.i] }

// The methods of heap.Interface.
func (w *walks) Len() int           { return len(w.all) }
func (w *walks) Less(i, j int) bool { return (w.all[i].place().seq < w.all[j].place().seq) == w.oldest }
func (w *walks) Swap(i, j int)      { w.all[i], w.all[j] = w.all[j], w.all[i] }
func (w *walks) Push(x any)         { w.all = append(w.all, x.(walk)) }
func (w *walks) Pop() any {
	last := w.all[len(w.all)-1]
	w.all = w.all[:len(w.all)-1]
	return last
}

// find returns the entries and the letters of the first refs, as many as an answer has room for. Both
// are nil for a delivery that p does not have.
func (p *partition) find(refs []store.Ref) (entries []*entry, dead []*letter) {
	p.index.mu.Lock()
	defer p.index.mu.Unlock()
	entries, dead = make([]*entry, len(refs)), make([]*letter, len(refs))
	n := fit(len(refs), pageLen, p.conn.answerRoom(), func(i int) int64 {
		x := p.at(refs[i])
		if x == nil {
			return refSize(refs[i])
		}
		entries[i], dead[i] = x.entry, x.letter
		return x.size() + refSize(refs[i])
	})
	return entries[:n], dead[:n]
}

// at returns the place of a delivery, or nil if p does not have it. The index is locked.
func (p *partition) at(r store.Ref) *place {
	if l := p.lanes[r.Destination]; l != nil {
		return l.at(r.Seq)
	}
	return nil
}

// letter returns a dead letter, or nil if p does not have it. The index is locked.
func (p *partition) letter(r store.Ref) *letter {
	if x := p.at(r); x != nil {
		return x.letter
	}
	return nil
}

// countDead counts the dead letters of p.
func (p *partition) countDead() (a answer) {
	p.index.mu.Lock()
	defer p.index.mu.Unlock()
	died := int64(math.MaxInt64)
	for _, l := range p.lanes {
		for i := range l.list {
			if x := l.list[i].letter; x != nil {
				a.Dead, a.DeadBytes, died = a.Dead+1, a.DeadBytes+int64(x.size), min(died, x.died)
			}
		}
	}
	if a.Dead > 0 {
		a.OldestDead = time.UnixMicro(died).UTC()
	}
	return a
}

// counts returns the counts of up to answerLen lanes of p whose names are greater than after, sorted by
// name.
func (p *partition) counts(after string, only []string) (a answer) {
	p.index.mu.Lock()
	defer p.index.mu.Unlock()
	for name, l := range store.Among(p.lanes, only) {
		if l.waiting > 0 && name > after {
			a.Counts = append(a.Counts, store.DestinationCounts{Destination: name, Waiting: l.waiting, Claimed: l.claimed, Behind: l.behind, Bytes: l.bytes, Oldest: l.head().Earliest()})
		}
	}
	slices.SortFunc(a.Counts, func(a, b store.DestinationCounts) int { return strings.Compare(a.Destination, b.Destination) })
	n := fit(len(a.Counts), answerLen, p.conn.answerRoom(), func(i int) int64 { return int64(len(a.Counts[i].Destination)) + 64 })
	if n < len(a.Counts) {
		a.Counts, a.Next = a.Counts[:n], a.Counts[n-1].Destination
	}
	return a
}
