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
	at      time.Time
}

// seenGap is the shortest time between two elements of seen.versions.
const seenGap = time.Minute

// add notes that the version of the latest change is now version.
func (sn *seen) add(version uint64) {
	sn.mu.Lock()
	defer sn.mu.Unlock()
	now := time.Now()
	for len(sn.versions) > 0 && now.Sub(sn.versions[0].at) > store.RememberRemoved {
		sn.versions = sn.versions[1:]
	}
	switch n := len(sn.versions); {
	case n > 0 && sn.versions[n-1].version == version:
		sn.versions[n-1].at = now
	case n == 0 || now.Sub(sn.versions[n-1].at) >= seenGap:
		sn.versions = append(sn.versions, seenVersion{version, now})
	}
}

// since reports whether the server has all messages of documents that were removed since a version.
func (sn *seen) since(version uint64) bool {
	sn.mu.Lock()
	defer sn.mu.Unlock()
	return len(sn.versions) > 0 && version >= sn.versions[0].version && time.Since(sn.versions[0].at) <= store.RememberRemoved
}
