package natsqueue

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hookferry/analytics/webhook/store"
)

// list returns the next entries of p that may match q, as far as the data in memory tells, and the
// place where the next page begins. To list the waiting deliveries after q.ID, it begins there.
func (p *partition) list(q *question) (some []*entry, next string, err error) {
	p.index.mu.Lock()
	defer p.index.mu.Unlock()
	lane, user, from := p.index.lanes[q.Destination], hash(q.User), q.From
	if lane == nil && q.Destination != "" {
		return nil, "", nil
	}
	match := func(e *entry) bool { return e.lane == lane || lane == nil && e.user == user }
	if q.Kind == askWaiting && from == "" && q.ID != "" {
		key := store.KeyOf(q.Destination, q.ID)
		if after, _, _ := p.page("", func(e *entry) bool { return match(e) && e.key == key }); len(after) > 0 {
			from = p.behind(after[0])
		}
	}
	return p.page(from, match)
}

// counts returns the counts of up to answerLen lanes of p whose names are greater than after, sorted by
// name.
func (p *partition) counts(after string) (a answer) {
	p.index.mu.Lock()
	defer p.index.mu.Unlock()
	for name, l := range p.index.lanes {
		if l.p == p && name > after {
			a.Counts = append(a.Counts, store.DestinationCounts{Destination: name, Waiting: l.waiting, Claimed: l.claimed, Oldest: l.head().Earliest()})
		}
	}
	slices.SortFunc(a.Counts, func(a, b store.DestinationCounts) int { return strings.Compare(a.Destination, b.Destination) })
	room := p.conn.answerRoom()
	for i, c := range a.Counts {
		if room -= int64(len(c.Destination)) + 64; i > 0 && (room < 0 || i == answerLen) {
			a.Counts, a.Next = a.Counts[:i], a.Counts[i-1].Destination
			break
		}
	}
	return a
}

// page returns the entries that match, in the order of Due, as many as an answer may have, and the
// place where the next page begins, if any. The first place is "". The index is locked.
func (p *partition) page(from string, match func(*entry) bool) (some []*entry, next string, err error) {
	after, epoch := new(entry), p.epoch
	if from != "" {
		fmt.Sscan(from, &epoch, &after.due, &after.order) // no error: behind has written it
	}
	if epoch != p.epoch { // an earlier owner had the entries in another order
		return nil, "", errLost
	}
	var most *entry // the page ends before it: sorting all entries would take too long
	for _, b := range p.order {
		for _, e := range b.entries {
			if e == nil || from != "" && e.compare(after) <= 0 || most != nil && e.compare(most) > 0 || !match(e) {
				continue
			}
			if some = append(some, e); len(some) == 4*pageLen {
				slices.SortFunc(some, (*entry).compare)
				some, most = some[:pageLen+1], some[pageLen]
			}
		}
	}
	slices.SortFunc(some, (*entry).compare)
	room := p.conn.answerRoom()
	for i, e := range some {
		if room -= e.bytes(); i > 0 && (room < 0 || i == pageLen) {
			return some[:i], p.behind(some[i-1]), nil
		}
	}
	return some, "", nil
}

// behind returns the place behind an entry.
func (p *partition) behind(e *entry) string { return fmt.Sprint(p.epoch, e.due, e.order) }
