package natsqueue

import (
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A node knows no longer what was removed since a version if it saw that version too long ago by the
// wall clock. The monotonic clock stands still while the machine is suspended.
func TestSeenCountsTheTimeOfASuspendedMachine(t *testing.T) {
	for _, x := range []struct {
		name      string
		at, wall  time.Duration // how long ago the version was seen, by either clock
		wantSince bool
	}{
		{"a moment ago", 0, 0, true},
		{"long ago", store.RememberRemoved + time.Minute, store.RememberRemoved + time.Minute, false},
		{"before the machine was suspended", 0, store.RememberRemoved + time.Minute, false},
		{"long ago, and the clock was set back", store.RememberRemoved + time.Minute, 0, false},
		{"a moment ago, and the clock was set back", 0, -time.Hour, true},
	} {
		var sn seen
		sn.add(7)
		sn.versions[0].at, sn.versions[0].wall = sn.versions[0].at.Add(-x.at), sn.versions[0].wall.Add(-x.wall)
		if got := sn.since(7); got != x.wantSince {
			t.Errorf("seen %s: since = %v, want %v", x.name, got, x.wantSince)
		}
		sn.add(8)
		if got := sn.since(7); got != x.wantSince {
			t.Errorf("seen %s, and then another version: since = %v, want %v", x.name, got, x.wantSince)
		}
	}
}
