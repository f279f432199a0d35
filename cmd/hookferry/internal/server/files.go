package server

import (
	"cmp"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/webhook"
)

// otherFiles is how many open files and sockets the server needs beside the connections of clients
// and to endpoints: for the store, listeners, users of the page, and the receiver of traces.
const otherFiles = 128

// filesNeeded returns how many files and sockets may be open at the same time with these settings.
func filesNeeded(s *config.Settings) int {
	endpoints := 0
	for i := range s.Destinations {
		d := &s.Destinations[i]
		endpoints += len(d.Endpoints) * cmp.Or(d.MaxConcurrent, webhook.DefaultMaxConcurrent)
	}
	// The forwarder keeps at most twice as many connections open as it makes attempts at the same
	// time.
	return s.Limits.Connections + min(endpoints, 2*webhook.DefaultMaxInFlight) + otherFiles
}

// checkFiles warns if the limit of the system on open files is lower than the settings need.
func (s *server) checkFiles() {
	limit, known := fileLimit()
	if need := filesNeeded(s.Settings); known && uint64(need) > limit {
		s.log.Warn("the system lets this process open fewer files and connections than its settings do; raise that limit or lower limits.connections",
			"limit", limit, "needed", need)
	}
}
