package natsqueue

import (
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A seen remembers which versions of the documents this node saw last, and when. Its methods may be
// called concurrently.
type seen struct {
	mu       sync.Mutex
	versions []seenVersion // in the order of both fields
}

// A seenVersion is the version of the latest change of any document at a time.
type seenVersion struct {
	version uint64
	at      time.Time // by the monotonic clock
	wall    time.Time // the same time by the wall clock
}

// age returns how long ago v was seen, by the clock that says more: the monotonic clock stands still
// while the machine is suspended, and the wall clock can be set.
func (v *seenVersion) age() time.Duration {
	now := time.Now()
	return max(now.Sub(v.at), now.Round(0).Sub(v.wall))
}

// seenGap is the shortest time between two elements of seen.versions.
const seenGap = time.Minute

// add notes that the version of the latest change is now version.
func (sn *seen) add(version uint64) {
	sn.mu.Lock()
	defer sn.mu.Unlock()
	for len(sn.versions) > 0 && sn.versions[0].age() > store.RememberRemoved {
		sn.versions = sn.versions[1:]
	}
	now := time.Now()
	seen := seenVersion{version, now, now.Round(0)}
	switch n := len(sn.versions); {
	case n > 0 && sn.versions[n-1].version == version:
		sn.versions[n-1] = seen
	case n == 0 || sn.versions[n-1].age() >= seenGap:
		sn.versions = append(sn.versions, seen)
	}
}

// since reports whether the server has all messages of documents that were removed since a version.
func (sn *seen) since(version uint64) bool {
	sn.mu.Lock()
	defer sn.mu.Unlock()
	return len(sn.versions) > 0 && version >= sn.versions[0].version && sn.versions[0].age() <= store.RememberRemoved
}
