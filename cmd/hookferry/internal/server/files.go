package server

import (
	"cmp"

	"github.com/hookferry/analytics/webhook"
)

// checkFiles warns if the limit of the system on open files is lower than the settings need.
func (s *server) checkFiles() {
	endpoints := 0
	for _, d := range s.settings.Load().Destinations {
		endpoints += len(d.Endpoints) * cmp.Or(d.MaxConcurrent, webhook.DefaultMaxConcurrent)
	}
	endpoints += len(s.tenants.Owned()) * webhook.DefaultMaxConcurrent
	// The forwarder keeps at most twice as many connections open as it makes attempts at once. The
	// store, the listeners, users of the page and the receiver of traces need less than 128.
	need := s.Settings.Limits.Connections + min(endpoints, 2*webhook.DefaultMaxInFlight) + 128
	if limit, known := fileLimit(); known && uint64(need) > limit {
		s.Logger.Warn("the system lets this process open fewer files and connections than its settings need; raise the system's limit or lower limits.connections",
			"limit", limit, "needed", need)
	}
}
