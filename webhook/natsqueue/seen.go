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
func (s *seen) add(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for len(s.versions) > 0 && now.Sub(s.versions[0].at) > store.RememberRemoved {
		s.versions = s.versions[1:]
	}
	switch n := len(s.versions); {
	case n > 0 && s.versions[n-1].version == version:
		s.versions[n-1].at = now
	case n == 0 || now.Sub(s.versions[n-1].at) >= seenGap:
		s.versions = append(s.versions, seenVersion{version, now})
	}
}

// since reports whether the server has all messages of documents that were removed since a version.
func (s *seen) since(version uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.versions) > 0 && version >= s.versions[0].version && time.Since(s.versions[0].at) <= store.RememberRemoved
}
