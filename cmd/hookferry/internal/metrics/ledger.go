package metrics

// A ledger adds up the counts of names that share a label, to counters that never
// fall: when a name goes away, what it had counted stays in its label's counter, and
// when it comes back and counts from zero again, that is added.
type ledger struct {
	seen map[string]int64 // the counts at the last reading, by name
	sums map[string]int64 // the counters, by label
}

// A reading is the count of a name, for the counter of a label.
type reading struct {
	label, name string
	count       int64
}

// read takes the counts of all names there are now, each once, and returns the
// counters by label, until the next call. Counts are read in the order of the
// calls: an older one would look like one that began anew.
func (l *ledger) read(all []reading) map[string]int64 {
	if l.sums == nil {
		l.sums = map[string]int64{}
	}
	seen := make(map[string]int64, len(all))
	for _, r := range all {
		more := r.count - l.seen[r.name]
		if more < 0 {
			more = r.count // it began anew
		}
		l.sums[r.label] += more
		seen[r.name] = r.count
	}
	l.seen = seen
	return l.sums
}
