package server

import (
	"cmp"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/webhook"
)

// otherFiles are those beside the connections of clients and to endpoints: the
// store, listeners, whoever looks at the page, the collector of traces.
const otherFiles = 128

// filesNeeded is how many files and sockets the settings allow to be open at
// once.
func filesNeeded(s *config.Settings) int {
	endpoints := 0
	for i := range s.Destinations {
		d := &s.Destinations[i]
		endpoints += len(d.Endpoints) * cmp.Or(d.MaxConcurrent, webhook.DefaultMaxConcurrent)
	}
	// The forwarder keeps no more idle ones than twice what it attempts at once.
	return s.Limits.Connections + min(endpoints, 2*webhook.DefaultMaxInFlight) + otherFiles
}

// checkFiles warns of a limit of the system under which clients are refused, or
// attempts fail, before the limits of the settings are reached.
func (s *server) checkFiles() {
	limit, known := fileLimit()
	if need := filesNeeded(s.Settings); known && uint64(need) > limit {
		s.log.Warn("the system lets this process open fewer files and connections than its settings do; raise that limit or lower limits.connections",
			"limit", limit, "needed", need)
	}
}
