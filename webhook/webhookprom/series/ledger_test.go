package series

import (
	"maps"
	"testing"
)

// The counters of a Ledger never decrease, and are the total together, even if names disappear
// between two readings, or count from zero again.
func TestLedger(t *testing.T) {
	var l Ledger
	for i, step := range []struct {
		all   []Reading
		total int64
		want  map[string]int64
	}{
		{[]Reading{{"a", "a", 2}, {"b", "b", 0}}, 2, map[string]int64{"a": 2, "b": 0}},
		{[]Reading{{"a", "a", 3}, {"b", "b", 1}}, 3, map[string]int64{"a": 3, "b": 1}}, // total was taken before
		{[]Reading{{"b", "b", 1}}, 9, map[string]int64{"a": 3, "b": 1, Other: 5}},
		{[]Reading{{"a", "a", 1}, {"b", "b", 1}, {Other, "c", 2}}, 12, map[string]int64{"a": 4, "b": 1, Other: 7}},
	} {
		if got := l.Read(step.all, step.total); !maps.Equal(got, step.want) {
			t.Errorf("reading %d: %v, want %v", i+1, got, step.want)
		}
	}
}
