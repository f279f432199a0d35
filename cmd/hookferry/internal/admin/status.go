package admin

import (
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
	node := h.config.Node()
	s := api.Status{
		Version: node.Version,
		Node:    node.Name,
		Started: *node.Started,
		Now:     time.Now().UTC(),
		Ready:   h.config.Ready(),
		Config:  api.Config{File: settings.Path, Loaded: settings.Loaded.UTC(), Error: settings.Error, Restart: settings.Restart, History: settings.History.MaxAge != 0},
		Send:    h.config.Send,
		Calls:   h.config.Calls(),
		Totals: api.Totals{
			Accepted:   stats.Accepted,
			Duplicates: stats.Duplicates,
			Off:        stats.Off,
			Filtered:   stats.Filtered,
			Delivered:  stats.Delivered,
			Retried:    stats.Retried,
			Resent:     stats.Resent,
			Dead:       byReason(stats.Dead),
			Forgotten:  stats.Forgotten.Age + stats.Forgotten.Size,
			Discarded:  stats.Discarded,
			InFlight:   stats.InFlight,
			Latency:    latencyOf(stats.Latency),
		},
		Errors: h.config.Feed.Errors(""),
		Rates:  h.config.Feed.Rates(""),
		Memory: heap(),
	}
	c, err := h.config.Store.Count(r.Context())
	if err != nil {
		return err
	}
	s.Waiting, s.Claimed, s.Dead, s.Oldest = c.Waiting, c.Claimed, c.Dead, api.TimeOf(c.Oldest)
	return writeJSON(w, http.StatusOK, s)
}

// heap returns the bytes of the objects in the heap.
func heap() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}

// sources answers with a page of them.
func (h *Handler) sources(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r, api.ParamQuery, api.ParamLimit, api.ParamAfter)
	part, after := strings.ToLower(q.text(api.ParamQuery)), q.text(api.ParamAfter)
	limit := q.number(api.ParamLimit, defaultPage, maxPage)
	if q.err != nil {
		return q.err
	}
	all := slices.DeleteFunc(h.config.Sources(), func(s api.Source) bool { return !strings.Contains(strings.ToLower(s.Name), part) })
	page := api.Sources{Sources: []api.Source{}, Total: len(all)}
	slices.SortFunc(all, func(a, b api.Source) int { return strings.Compare(a.Name, b.Name) })
	from, found := slices.BinarySearchFunc(all, after, func(s api.Source, name string) int { return strings.Compare(s.Name, name) })
	if found {
		from++
	}
	all = all[from:]
	if len(all) > limit {
		all = all[:limit]
		page.After = all[limit-1].Name
	}
	page.Sources = append(page.Sources, all...)
	return writeJSON(w, http.StatusOK, page)
}

func byReason(counts map[webhook.Reason]int64) map[string]int64 {
	by := make(map[string]int64, len(counts))
	for reason, n := range counts {
		by[string(reason)] = n
	}
	return by
}

func latencyOf(l webhook.Latency) api.Latency {
	return api.Latency{Requests: l.Requests, P50: api.Milliseconds(l.P50), P90: api.Milliseconds(l.P90), P99: api.Milliseconds(l.P99)}
}
