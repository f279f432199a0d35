package server

import (
	"context"
	"crypto/sha256"
	"math"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/collector"
)

// sources finds the source of a write key, and counts what the sources send.
// Counts and limits go on when the settings change, by name. It is safe for
// concurrent use.
type sources struct {
	current atomic.Pointer[table]

	requests, unknown, failed, limited, accepted, rejected atomic.Int64
}

// A table has the sources of one version of the settings. Only the counts and the
// limits in it change.
type table struct {
	byKey  map[[sha256.Size]byte]collector.Source
	byName map[string]*source
}

// A source is one, with its counts.
type source struct {
	config.Source
	limit *collector.Limit
	*counts
}

type counts struct {
	accepted, rejected, limited atomic.Int64
	last                        atomic.Int64 // microseconds of Unix time of the last call accepted; 0: none
}

// use replaces the sources.
func (s *sources) use(settings *config.Settings) {
	before := s.current.Load()
	t := &table{byKey: map[[sha256.Size]byte]collector.Source{}, byName: map[string]*source{}}
	for _, c := range settings.Sources {
		this := &source{Source: c}
		var old *source
		if before != nil {
			old = before.byName[c.Name]
		}
		if old != nil {
			this.counts = old.counts
		} else {
			this.counts = new(counts)
		}
		switch {
		case c.Rate == 0:
		case old != nil && old.limit != nil && old.Rate == c.Rate && old.Burst == c.Burst:
			this.limit = old.limit
		default:
			this.limit = collector.NewLimit(c.Rate, burst(c))
		}
		t.byName[c.Name] = this
		if !c.Enabled {
			continue
		}
		for _, key := range c.Keys {
			t.byKey[sha256.Sum256([]byte(key))] = collector.Source{Name: c.Name, Destinations: c.Destinations, Limit: this.limit}
		}
	}
	s.current.Store(t)
}

// burst returns how many calls a source may send at once: a second's worth unless
// its settings say.
func burst(c config.Source) int {
	if c.Burst > 0 {
		return c.Burst
	}
	return max(int(math.Ceil(c.Rate)), 1)
}

// find is for collector.Config.Sources. It looks for the hash of the key, so the
// time it takes says nothing about the keys there are.
func (s *sources) find(_ context.Context, key string) (collector.Source, error) {
	source, ok := s.current.Load().byKey[sha256.Sum256([]byte(key))]
	if !ok {
		return collector.Source{}, collector.ErrUnknownKey
	}
	return source, nil
}

// answered counts a request.
func (s *sources) answered(a *collector.Answered) {
	s.requests.Add(1)
	s.accepted.Add(int64(a.Accepted))
	s.rejected.Add(int64(a.Rejected))
	switch a.Status {
	case http.StatusUnauthorized:
		s.unknown.Add(1)
	case http.StatusServiceUnavailable:
		s.failed.Add(1)
	case http.StatusTooManyRequests:
		s.limited.Add(1)
	}
	source := s.current.Load().byName[a.Source]
	if source == nil {
		return
	}
	source.accepted.Add(int64(a.Accepted))
	source.rejected.Add(int64(a.Rejected))
	if a.Status == http.StatusTooManyRequests {
		source.limited.Add(1)
	}
	if a.Accepted > 0 {
		source.last.Store(time.Now().UnixMicro())
	}
}

// namedDestinations is how many destinations of a source are named.
const namedDestinations = 10

// list returns the sources for the admin API.
func (s *sources) list() []api.Source {
	t := s.current.Load()
	all := make([]api.Source, 0, len(t.byName))
	for _, source := range t.byName {
		a := api.Source{
			Name: source.Name, Keys: len(source.Keys), Enabled: source.Enabled,
			Destinations:     append([]string{}, source.Destinations[:min(len(source.Destinations), namedDestinations)]...),
			DestinationCount: len(source.Destinations),
			Rate:             source.Rate,
			Accepted:         source.accepted.Load(), Rejected: source.rejected.Load(), Limited: source.limited.Load(),
		}
		if source.Rate > 0 {
			a.Burst = burst(source.Source)
		}
		if last := source.last.Load(); last != 0 {
			at := time.UnixMicro(last).UTC()
			a.Last = &at
		}
		all = append(all, a)
	}
	return all
}

// calls returns the counts of all.
func (s *sources) calls() api.Calls {
	return api.Calls{
		Requests: s.requests.Load(), Accepted: s.accepted.Load(), Rejected: s.rejected.Load(),
		Limited: s.limited.Load(), Unknown: s.unknown.Load(), Failed: s.failed.Load(),
	}
}
