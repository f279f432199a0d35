package server

import (
	"context"
	"math"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
)

// sources finds the source of a write key, and counts the calls of each source. After a reload, a
// source keeps the counts and limits of the old source with the same name. A sources is safe for
// concurrent use.
type sources struct {
	current atomic.Pointer[table]

	total                     counts
	requests, unknown, failed atomic.Int64
}

// A table has the sources of one version of the settings. Only their counts and limits change.
type table struct {
	byKey  func(context.Context, string) (collector.Source, error)
	byName map[string]*source
}

// A source is a source of the settings with its counts and limits.
type source struct {
	config.Source
	calls, bytes rate
	*counts
}

type counts struct {
	accepted, rejected, limited, filtered atomic.Int64
	last                                  atomic.Int64 // Unix time of the last accepted call in microseconds, 0 if there is none
}

func (s *sources) use(settings *config.Settings) {
	before := s.current.Load()
	t := &table{byName: map[string]*source{}}
	byKey := map[string]collector.Source{}
	for _, c := range settings.Sources {
		this := &source{Source: c, counts: new(counts)}
		var old source
		if before != nil && before.byName[c.Name] != nil {
			old = *before.byName[c.Name]
			this.counts = old.counts
		}
		this.calls = old.calls.now(c.Rate, atOnce(c))
		this.bytes = old.bytes.now(byteRate(c))
		t.byName[c.Name] = this
		if !c.Enabled {
			continue
		}
		for _, key := range c.Keys {
			byKey[key.Reveal()] = collector.Source{Name: c.Name, Destinations: c.Destinations, Limit: this.calls.limit, ByteLimit: this.bytes.limit}
		}
	}
	t.byKey = collector.Keys(byKey)
	s.current.Store(t)
}

// A rate is a rate of the settings, with the limit that enforces it. The limit is nil if the
// settings have no rate.
type rate struct {
	rate  float64
	burst int
	limit *collector.Limit
}

// now returns the rate for new values of the settings. It keeps the old limit if the values are
// unchanged.
func (old rate) now(n float64, burst int) rate {
	switch {
	case n == 0:
		return rate{}
	case n == old.rate && burst == old.burst:
		return old
	}
	return rate{n, burst, collector.NewLimit(n, burst)}
}

// atOnce returns how many calls a source may send at once. The default is the calls of one second.
func atOnce(c config.Source) int {
	if c.Burst > 0 {
		return c.Burst
	}
	return max(int(math.Ceil(c.Rate)), 1)
}

// bytesPerCall is how many bytes of webhooks a call may cause on average for each destination, if
// the settings have no byteRate. It is several times the bytes of most calls.
const bytesPerCall = 4 << 10

// byteRate returns how many bytes of webhooks a second the calls of a source may cause, 0 for no
// limit. burst is how many bytes they may cause at once.
func byteRate(c config.Source) (n float64, burst int) {
	if c.ByteRate > 0 {
		return float64(c.ByteRate), int(min(c.ByteRate, math.MaxInt32))
	}
	each := bytesPerCall * float64(max(len(c.Destinations), 1))
	return c.Rate * each, int(min(float64(atOnce(c))*each, math.MaxInt32))
}

func (s *sources) find(ctx context.Context, key string) (collector.Source, error) {
	return s.current.Load().byKey(ctx, key)
}

// A filtering leaves out the events that the filter of their source does not select.
type filtering struct {
	sources *sources
	next    collector.Forwarder
}

// ForwardEvents implements collector.Forwarder. All events come from one source.
func (f *filtering) ForwardEvents(ctx context.Context, destinations []string, events ...event.Event) error {
	s := f.sources.current.Load().byName[events[0].Source]
	if s == nil || len(s.Filter.Include)+len(s.Filter.Exclude) == 0 {
		return f.next.ForwardEvents(ctx, destinations, events...)
	}
	filter := webhook.Filter(s.Filter)
	taken := slices.DeleteFunc(slices.Clone(events), func(e event.Event) bool { return !e.Off && !filter.Match(&e) })
	if len(taken) > 0 {
		if err := f.next.ForwardEvents(ctx, destinations, taken...); err != nil {
			return err
		}
	}
	s.filtered.Add(int64(len(events) - len(taken)))
	return nil
}

func (s *sources) answered(a *collector.Answered) {
	s.requests.Add(1)
	switch a.Status {
	case http.StatusUnauthorized:
		s.unknown.Add(1)
	case http.StatusServiceUnavailable:
		s.failed.Add(1)
	}
	s.total.answered(a)
	if source := s.current.Load().byName[a.Source]; source != nil {
		source.answered(a)
	}
}

func (c *counts) answered(a *collector.Answered) {
	c.accepted.Add(int64(a.Accepted))
	c.rejected.Add(int64(a.Rejected))
	if a.Status == http.StatusTooManyRequests {
		c.limited.Add(1)
	}
	if a.Accepted > 0 {
		c.last.Store(time.Now().UnixMicro())
	}
}

// namedDestinations is how many destinations of a source the method list returns.
const namedDestinations = 10

func (s *sources) list() []api.Source {
	t := s.current.Load()
	all := make([]api.Source, 0, len(t.byName))
	for _, source := range t.byName {
		a := api.Source{
			Name: source.Name, Keys: len(source.Keys), Enabled: source.Enabled,
			Destinations:     append([]string{}, source.Destinations[:min(len(source.Destinations), namedDestinations)]...),
			DestinationCount: len(source.Destinations),
			Rate:             source.Rate,
			Accepted:         source.accepted.Load(), Rejected: source.rejected.Load(), Limited: source.limited.Load(), Filtered: source.filtered.Load(),
		}
		if source.Rate > 0 {
			a.Burst = atOnce(source.Source)
		}
		if last := source.last.Load(); last != 0 {
			a.Last = time.UnixMicro(last).UTC()
		}
		all = append(all, a)
	}
	return all
}

func (s *sources) calls() api.Calls {
	return api.Calls{
		Requests: s.requests.Load(), Accepted: s.total.accepted.Load(), Rejected: s.total.rejected.Load(),
		Limited: s.total.limited.Load(), Unknown: s.unknown.Load(), Failed: s.failed.Load(),
	}
}
