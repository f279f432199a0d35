package metrics

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
)

// A labels gives names their labels: the first MaxLabels names are their own labels,
// all others share one. A name keeps its label, so that no counter goes on under
// another. The set is copied for each new name, so that finding one takes no lock.
type labels struct {
	named  atomic.Pointer[map[string]struct{}]
	shared atomic.Bool // the name "other" was given out
	mu     sync.Mutex  // to replace the set
}

// of returns the label of a name, and whether that label is new. Labels are UTF-8,
// which names in a store that others use too may not be.
func (l *labels) of(name string) (label string, first bool) {
	name = strings.ToValidUTF8(name, "\uFFFD")
	label, ok := l.find(name)
	if !ok {
		if l.add(name) {
			return name, true
		}
		label, _ = l.find(name)
	}
	if label == other && !l.shared.Load() {
		return label, !l.shared.Swap(true)
	}
	return label, false
}

// find returns false for a name that has no label yet.
func (l *labels) find(name string) (label string, ok bool) {
	named := l.named.Load()
	if named == nil {
		return "", false
	}
	if _, ok := (*named)[name]; ok {
		return name, true
	}
	return other, len(*named) >= MaxLabels
}

// add gives a name a label of its own, unless it has one or there is no room.
func (l *labels) add(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.find(name); ok {
		return false
	}
	named := map[string]struct{}{}
	if old := l.named.Load(); old != nil {
		named = maps.Clone(*old)
	}
	named[name] = struct{}{}
	l.named.Store(&named)
	return true
}
