// Package series bounds the number of series of a metric that has a name as its label, such as the
// name of a customer. The number of names need not be bounded.
package series

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
)

// MaxLabels is how many names get their own label.
const MaxLabels = 256

// Other is the label of the names beyond MaxLabels.
const Other = "other"

// Labels assigns labels to names. The first MaxLabels names are their own labels. All other names
// share the label Other. A name keeps its label forever, so that its counter never continues under
// another label. The zero value has no names. The method Of may be called concurrently.
type Labels struct {
	// named is copied for each new name, so that find takes no lock.
	named  atomic.Pointer[map[string]struct{}]
	shared atomic.Bool // Of has returned the label Other
	mu     sync.Mutex  // held while named is replaced
}

// Of returns the label of a name, and reports whether no call has returned this label before.
// Labels are valid UTF-8. Names may be invalid, because other programs may share the store.
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

// find returns the label of a name. ok is false if the name has no label yet.
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

// add gives a name a label of its own, and returns true. It does nothing and returns false if the
// name already has a label, or if MaxLabels names have one.
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
