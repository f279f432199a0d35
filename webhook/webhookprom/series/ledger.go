package series

// A Ledger adds up the counts of names that share a label, to counters that never
// fall: when a name goes away, what it had counted stays in its label's counter, and
// when it comes back and counts from zero again, that is added. The zero value has counted
// nothing. It is not for concurrent use.
type Ledger struct {
	seen map[string]int64 // the counts at the last reading, by name
	sums map[string]int64 // the counters, by label
}

// A Reading is the count of a name, for the counter of a label.
type Reading struct {
	Label, Name string
	Count       int64
}

// Read takes the counts of all names there are now, each once, and returns the
// counters by label, until the next call. Counts are read in the order of the
// calls: an older one would look like one that began anew.
func (l *Ledger) Read(all []Reading) map[string]int64 {
	if l.sums == nil {
		l.sums = map[string]int64{}
	}
	seen := make(map[string]int64, len(all))
	for _, r := range all {
		more := r.Count - l.seen[r.Name]
		if more < 0 {
			more = r.Count // it began anew
		}
		l.sums[r.Label] += more
		seen[r.Name] = r.Count
	}
	l.seen = seen
	return l.sums
}
