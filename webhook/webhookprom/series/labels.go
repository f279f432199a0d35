// Package series bounds the series of metrics that have names as labels, such as those of
// customers, of which there may be any number.
package series

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
)

// MaxLabels is how many names have a label of their own.
const MaxLabels = 256

// Other is the label of the names beyond MaxLabels.
const Other = "other"

// Labels gives names their labels: the first MaxLabels names are their own labels,
// all others share one. A name keeps its label, so that no counter goes on under
// another. The zero value has no names yet. Its method may be called concurrently.
type Labels struct {
	// The set is copied for each new name, so that finding one takes no lock.
	named  atomic.Pointer[map[string]struct{}]
	shared atomic.Bool // the label Other was given out
	mu     sync.Mutex  // to replace the set
}

// Of returns the label of a name, and whether that label is new. Labels are UTF-8,
// which names in a store that others use too may not be.
func (l *Labels) Of(name string) (label string, first bool) {
	name = strings.ToValidUTF8(name, "\uFFFD")
	label, ok := l.find(name)
	if !ok {
		if l.add(name) {
			return name, true
		}
		label, _ = l.find(name)
	}
	if label == Other && !l.shared.Load() {
		return label, !l.shared.Swap(true)
	}
	return label, false
}

// find returns false for a name that has no label yet.
func (l *Labels) find(name string) (label string, ok bool) {
	named := l.named.Load()
	if named == nil {
		return "", false
	}
	if _, ok := (*named)[name]; ok {
		return name, true
	}
	return Other, len(*named) >= MaxLabels
}

// add gives a name a label of its own, unless it has one or there is no room.
func (l *Labels) add(name string) bool {
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
