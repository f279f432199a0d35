package natsqueue

import (
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

// list returns the next deliveries of p in the list of q, up to q.Max: those that its query may select,
// as far as the data in memory tells.
func (p *partition) list(q *question) (a answer) {
	p.index.mu.Lock()
	defer p.index.mu.Unlock()
	user := hash(q.Query.User)
	order := store.Listing{Query: &q.Query}
	compare := func(x, y store.Ref) int { return order.Compare(x.Seq, y.Seq) }
	lanes := p.lanes
	if len(q.Query.Destinations) > 0 {
		lanes = make(map[string]*lane)
		for _, name := range q.Query.Destinations {
			if l := p.lanes[name]; l != nil {
				lanes[name] = l
			}
		}
	}
	var last *store.Ref // of the answer, as far as is known: sorting all places would take too long
	for _, l := range lanes {
		for x := range l.places(q.After, q.Query.Oldest) {
			r := store.Ref{Destination: l.name, Seq: x.seq}
			if last != nil && compare(r, *last) > 0 {
				break
			}
			if s := x.state(); s == "" || !q.Query.HasState(s) || q.Query.User != "" && x.user() != user {
				continue
			}
			if a.Refs = append(a.Refs, r); len(a.Refs) == 4*q.Max {
				slices.SortFunc(a.Refs, compare)
				a.Refs, last = a.Refs[:q.Max+1], &a.Refs[q.Max-1]
			}
		}
	}
	slices.SortFunc(a.Refs, compare)
	n := fit(len(a.Refs), q.Max, p.conn.answerRoom(), func(i int) int64 { return refSize(a.Refs[i]) })
	a.Refs, a.More = a.Refs[:n], n < len(a.Refs)
	return a
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
