package admin

import (
	"context"
	"net/http"
	"runtime/metrics"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

func (h *Handler) status(w http.ResponseWriter, r *http.Request) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	settings, stats := h.config.Settings(), h.config.Forwarder.Stats()
	s := api.Status{
		Version: h.config.Version,
		Node:    h.node,
		Started: h.started,
		Now:     time.Now().UTC(),
		Ready:   h.config.Ready(),
		Config:  api.Config{File: settings.Path, Loaded: settings.Loaded.UTC(), Error: settings.Error, Restart: settings.Restart},
		Calls:   h.config.Calls(),
		Totals: api.Totals{
			Accepted:   stats.Accepted,
			Duplicates: stats.Duplicates,
			Off:        stats.Off,
			Delivered:  stats.Delivered,
			Retried:    stats.Retried,
			Resent:     stats.Resent,
			Dead:       byReason(stats.Dead),
			Forgotten:  stats.Forgotten.Age + stats.Forgotten.Size,
			InFlight:   stats.InFlight,
			Latency:    latencyOf(stats.Latency),
		},
		Rates:  h.config.Feed.Rates(""),
		Memory: heap(),
	}
	if err := h.count(r.Context(), &s); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, s)
}

// count says how much the store holds, if it knows.
func (h *Handler) count(ctx context.Context, s *api.Status) error {
	counter, ok := h.config.Store.(webhook.Counter)
	if !ok {
		return nil
	}
	c, err := counter.Count(ctx)
	s.Waiting, s.Leased, s.Dead, s.Oldest = c.Waiting, c.Leased, c.Dead, timeOf(c.Oldest)
	return err
}

// heap returns the bytes of the objects in the heap.
func heap() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}

func (h *Handler) sources(w http.ResponseWriter, r *http.Request) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	all := h.config.Sources()
	slices.SortFunc(all, func(a, b api.Source) int { return strings.Compare(a.Name, b.Name) })
	return writeJSON(w, http.StatusOK, api.Sources{Sources: some(all)})
}

// some returns s, but not nil, which JSON has a null for.
func some[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func byReason(counts map[webhook.Reason]int64) map[string]int64 {
	by := make(map[string]int64, len(counts))
	for reason, n := range counts {
		by[string(reason)] = n
	}
	return by
}

func latencyOf(l webhook.Latency) api.Latency {
	return api.Latency{Requests: l.Requests, P50: milliseconds(l.P50), P90: milliseconds(l.P90), P99: milliseconds(l.P99)}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// timeOf returns a time, nil if it is not known.
func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
