package series

// A Ledger adds up the counts of the names that share a label, into counters that never decrease.
// If a name disappears, its count stays in the counter of its label. If the name comes back and
// counts from zero again, the new count is added. The zero value has counted nothing. A Ledger is
// not safe for concurrent use.
type Ledger struct {
	seen map[string]int64 // the counts at the last reading, by name
	sums map[string]int64 // the counters, by label
	gone int64            // the sum of the counters of forgotten labels
}

// A Reading is the count of a name, for the counter of a label.
type Reading struct {
	Label, Name string
	Count       int64
}

// Read takes the current counts of all names, each name once, and the count of all names together,
// total, taken before them. It returns the counters by label; the map is valid until the next call.
// What total has beyond the counters, because names have disappeared, becomes part of Other.
// Call Read in the order in which the counts were taken: a count that is lower than the previous one
// is taken for a name that counts from zero again.
func (l *Ledger) Read(all []Reading, total int64) map[string]int64 {
	if l.sums == nil {
		l.sums = map[string]int64{}
	}
	seen := make(map[string]int64, len(l.seen))
	for _, r := range all {
		more := r.Count - l.seen[r.Name]
		if more < 0 {
			more = r.Count // the name counts from zero again
		}
		l.sums[r.Label] += more
		if r.Count > 0 {
			seen[r.Name] = r.Count
		}
	}
	l.seen = seen
	total -= l.gone
	for _, n := range l.sums {
		total -= n
	}
	if total > 0 {
		l.sums[Other] += total
	}
	return l.sums
}

// Forget removes the counter of a label. If the label comes back, it counts from zero.
func (l *Ledger) Forget(label string) {
	l.gone += l.sums[label]
	delete(l.sums, label)
}
