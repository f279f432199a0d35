package server

import (
	"cmp"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/webhook"
)

// otherFiles is how many files and sockets are needed beside the connections of clients and to
// endpoints: for the store, listeners, users of the page, the collector of traces.
const otherFiles = 128

// filesNeeded returns how many files and sockets the settings allow to be open at once.
func filesNeeded(s *config.Settings) int {
	endpoints := 0
	for i := range s.Destinations {
		d := &s.Destinations[i]
		endpoints += len(d.Endpoints) * cmp.Or(d.MaxConcurrent, webhook.DefaultMaxConcurrent)
	}
	// The forwarder keeps at most twice as many connections as it makes attempts at once.
	return s.Limits.Connections + min(endpoints, 2*webhook.DefaultMaxInFlight) + otherFiles
}

// checkFiles warns if the system would refuse connections before the limits of the settings do.
func (s *server) checkFiles() {
	limit, known := fileLimit()
	if need := filesNeeded(s.Settings); known && uint64(need) > limit {
		s.log.Warn("the system lets this process open fewer files and connections than its settings do; raise that limit or lower limits.connections",
			"limit", limit, "needed", need)
	}
}
