// Package series bounds the number of series of a metric that has a name as its label, such as the
// name of a customer. The number of names need not be bounded.
package series

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// MaxLabels is how many names get their own label.
const MaxLabels = 256

// Other is the label of the names beyond MaxLabels.
const Other = "other"

// Labels assigns labels to names. The first MaxLabels names are their own labels. All other names
// share the label Other. A name keeps its label unless Prefer takes it away. The zero value has no
// names. The methods may be called concurrently.
type Labels struct {
	// named is copied for each new name, so that find takes no lock.
	named  atomic.Pointer[map[string]struct{}]
	shared atomic.Bool // Of has returned the label Other

	mu        sync.Mutex           // held while named is replaced; guards the field below
	preferred map[string]time.Time // when Prefer last had a name with a label
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
	named := l.clone()
	named[name] = struct{}{}
	l.named.Store(&named)
	return true
}

// clone returns a copy of named. The caller holds mu.
func (l *Labels) clone() map[string]struct{} {
	if old := l.named.Load(); old != nil {
		return maps.Clone(*old)
	}
	return map[string]struct{}{}
}

// kept is how long a name keeps its label after it was last given to Prefer. So within this time,
// at most MaxLabels labels are new.
const kept = time.Hour

// Prefer gives names labels of their own, the first names first. If there are MaxLabels already,
// names that Prefer was not given for an hour lose theirs, and Prefer returns these.
func (l *Labels) Prefer(names []string, now time.Time) (taken []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	named, wanted := l.clone(), make([]string, 0, min(len(names), MaxLabels))
	if l.preferred == nil {
		l.preferred = map[string]time.Time{}
	}
	for _, name := range names {
		name = strings.ToValidUTF8(name, "\uFFFD")
		if _, ok := named[name]; ok {
			l.preferred[name] = now
		} else if len(wanted) < MaxLabels {
			wanted = append(wanted, name)
		}
	}
	var idle []string
	for name := range named {
		if now.Sub(l.preferred[name]) >= kept {
			idle = append(idle, name)
		}
	}
	slices.SortFunc(idle, func(a, b string) int {
		return cmp.Or(l.preferred[a].Compare(l.preferred[b]), strings.Compare(a, b))
	})
	for _, name := range wanted {
		if len(named) >= MaxLabels {
			if len(idle) == 0 {
				break
			}
			taken = append(taken, idle[0])
			delete(named, idle[0])
			delete(l.preferred, idle[0])
			idle = idle[1:]
		}
		named[name], l.preferred[name] = struct{}{}, now
	}
	l.named.Store(&named)
	return taken
}
