package server

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/event"
)

// sources finds the source of a write key, and counts the calls of each. After a reload, the counts
// and limits of a source continue under its name. It is safe for concurrent use.
type sources struct {
	current atomic.Pointer[table]

	total                     counts
	requests, unknown, failed atomic.Int64

	logger *slog.Logger // nil means no logs
	told   logLimit     // of the warnings of unknown keys
}

// A table has the sources of one version of the settings. Only their counts and limits change.
type table struct {
	byKey  func(context.Context, string) (collector.Source, error)
	byName map[string]*source
}

// A source is a source of the settings with its counts and limits.
type source struct {
	config.Source
	calls, bytes *collector.Limit
	counts       *counts
}

type counts struct {
	accepted, rejected, limited, filtered, badTimes atomic.Int64
	last                                            atomic.Int64 // Unix time of the last accepted call in microseconds, 0 if there is none
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
		this.calls = limit(old.calls, callRate, old.Source, c)
		this.bytes = limit(old.bytes, byteRate, old.Source, c)
		t.byName[c.Name] = this
		if c.Disabled {
			continue
		}
		for _, key := range c.Keys {
			byKey[key.Reveal()] = collector.Source{
				Name: c.Name, Destinations: c.Destinations, Limit: this.calls, ByteLimit: this.bytes,
				Filter: func(e event.Event) bool { return c.Filter.Match(&e) },
			}
		}
	}
	t.byKey = collector.Keys(byKey)
	s.current.Store(t)
}

// limit returns the limit of a source: the old one if rate and burst are unchanged, nil for rate 0,
// and otherwise a new one.
func limit(old *collector.Limit, rateOf func(config.Source) (rate float64, burst int), was, is config.Source) *collector.Limit {
	rate, burst := rateOf(is)
	oldRate, oldBurst := rateOf(was)
	switch {
	case rate == 0:
		return nil
	case old != nil && rate == oldRate && burst == oldBurst:
		return old
	}
	return collector.NewLimit(rate, burst)
}

// callRate returns how many calls a source may send a second, 0 for no limit, and how many at once.
func callRate(c config.Source) (n float64, burst int) {
	return c.Rate, cmp.Or(c.Burst, max(int(math.Ceil(c.Rate)), 1))
}

// byteRate returns how many bytes of webhooks a source may cause a second, 0 for no limit, and how
// many at once.
func byteRate(c config.Source) (n float64, burst int) {
	if c.ByteRate > 0 {
		return float64(c.ByteRate), int(min(c.ByteRate, math.MaxInt32))
	}
	rate, atOnce := callRate(c)
	each := 4096 * float64(max(len(c.Destinations), 1)) // several times the bytes of most calls
	return rate * each, int(min(float64(atOnce)*each, math.MaxInt32))
}

func (s *sources) find(ctx context.Context, key string) (collector.Source, error) {
	return s.current.Load().byKey(ctx, key)
}

func (s *sources) answered(a *collector.Answered) {
	s.requests.Add(1)
	switch a.Status {
	case http.StatusUnauthorized:
		s.unknown.Add(1)
		if ok, unlogged := s.told.pass(time.Now(), 1, time.Minute); ok && s.logger != nil {
			s.logger.Warn("requests with an unknown write key were refused, and most clients drop what they held; is a key wrong, or its source disabled?", "requests", unlogged+1)
		}
	case http.StatusServiceUnavailable:
		s.failed.Add(1)
	}
	s.total.answered(a)
	if source := s.current.Load().byName[a.Source]; source != nil {
		source.counts.answered(a)
	}
}

func (c *counts) answered(a *collector.Answered) {
	c.accepted.Add(int64(a.Accepted))
	c.filtered.Add(int64(a.Filtered))
	c.badTimes.Add(int64(a.BadTimes))
	c.rejected.Add(int64(a.Rejected))
	if a.Status == http.StatusTooManyRequests {
		c.limited.Add(1)
	}
	if a.Accepted > 0 {
		c.last.Store(time.Now().UnixMicro())
	}
}

func (s *sources) list() []api.Source {
	t := s.current.Load()
	all := make([]api.Source, 0, len(t.byName))
	for _, source := range t.byName {
		a := api.Source{
			Name: source.Name, Keys: len(source.Keys), Enabled: !source.Disabled,
			Destinations:     append([]string{}, source.Destinations[:min(len(source.Destinations), 10)]...),
			DestinationCount: len(source.Destinations),
			Rate:             source.Rate,
			Accepted:         source.counts.accepted.Load(), Rejected: source.counts.rejected.Load(), Limited: source.counts.limited.Load(), Filtered: source.counts.filtered.Load(),
			BadTimes: source.counts.badTimes.Load(),
		}
		if source.Rate > 0 {
			_, a.Burst = callRate(source.Source)
		}
		if last := source.counts.last.Load(); last != 0 {
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
