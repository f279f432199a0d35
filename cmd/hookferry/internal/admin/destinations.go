package admin

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
	"github.com/hookferry/analytics/webhook"
)

func (h *Handler) destinations(w http.ResponseWriter, r *http.Request) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	all, err := h.allDestinations(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, api.Destinations{Destinations: some(all)})
}

func (h *Handler) destination(w http.ResponseWriter, r *http.Request) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	return h.answerDestination(w, r, r.PathValue("destination"))
}

func (h *Handler) pause(w http.ResponseWriter, r *http.Request) error {
	return h.changeDestination(w, r, h.config.Forwarder.Pause)
}

func (h *Handler) resume(w http.ResponseWriter, r *http.Request) error {
	return h.changeDestination(w, r, h.config.Forwarder.Resume)
}

func (h *Handler) changeDestination(w http.ResponseWriter, r *http.Request, change func(string) error) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	id := r.PathValue("destination")
	if err := h.known(id); err != nil {
		return err
	}
	if err := change(id); err != nil {
		return err
	}
	return h.answerDestination(w, r, id)
}

// known refuses a destination that the settings have not.
func (h *Handler) known(id string) error {
	if h.config.Settings().Destination(id) == nil {
		return notFound("there is no destination %q", id)
	}
	return nil
}

func (h *Handler) answerDestination(w http.ResponseWriter, r *http.Request, id string) error {
	all, err := h.allDestinations(r.Context())
	if err != nil {
		return err
	}
	i, found := slices.BinarySearchFunc(all, id, func(d api.Destination, id string) int { return strings.Compare(d.ID, id) })
	if !found {
		return notFound("there is no destination %q", id)
	}
	return writeJSON(w, http.StatusOK, all[i])
}

// allDestinations returns those of the settings, and those that are no longer
// there and that something waits for, by id.
func (h *Handler) allDestinations(ctx context.Context) ([]api.Destination, error) {
	stats, err := h.config.Forwarder.DestinationStats(ctx)
	if err != nil {
		return nil, err
	}
	settings := h.config.Settings()
	_, counted := h.config.Store.(webhook.DestinationCounter)
	by := make(map[string]*api.Destination, len(settings.Destinations))
	for _, c := range settings.Destinations {
		by[c.ID] = nil
	}
	for _, s := range stats {
		if _, known := by[s.Destination]; known || s.Waiting > 0 || s.Held != nil {
			by[s.Destination] = h.withStats(&s)
		}
	}
	for _, c := range settings.Destinations {
		d := by[c.ID]
		if d == nil {
			d = h.withStats(&webhook.DestinationStats{Destination: c.ID, Counted: counted})
			by[c.ID] = d
		}
		d.Enabled = c.Enabled
		d.Signed, d.Standard = c.Secret != "", len(c.StandardSecrets) > 0
		d.MaxConcurrent, d.MaxRate = c.MaxConcurrent, c.MaxRate
		for _, e := range c.Endpoints {
			d.Endpoints = append(d.Endpoints, api.Endpoint{URL: shown(e.URL.Reveal()), Headers: slices.Sorted(maps.Keys(e.Headers))})
		}
	}
	for _, source := range settings.Sources {
		for _, id := range source.Destinations {
			if d := by[id]; d != nil {
				d.Sources = append(d.Sources, source.Name)
			}
		}
	}
	all := make([]api.Destination, 0, len(by))
	for _, d := range by {
		slices.Sort(d.Sources)
		all = append(all, *d)
	}
	slices.SortFunc(all, func(a, b api.Destination) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// withStats returns what is known of a destination beside its settings.
func (h *Handler) withStats(s *webhook.DestinationStats) *api.Destination {
	d := &api.Destination{
		ID:        s.Destination,
		Sources:   []string{},
		Endpoints: []api.Endpoint{},
		InFlight:  s.InFlight,
		Since:     timeOf(s.Since),
		Delivered: s.Delivered,
		Retried:   s.Retried,
		Dead:      byReason(s.Dead),
		Latency:   latencyOf(s.Latency),
		Errors:    h.config.Feed.Errors(s.Destination),
		Rates:     h.config.Feed.Rates(s.Destination),
	}
	if s.Counted {
		d.Waiting, d.Oldest = &s.Waiting, timeOf(s.Oldest)
	}
	next := s.Oldest
	if held := s.Held; held != nil {
		d.Paused = held.Hold == webhook.HoldPaused
		d.Held = &api.Held{Hold: string(held.Hold), Since: timeOf(held.Since), Until: timeOf(held.Until), Reason: string(held.Reason)}
		if held.Until.After(next) {
			next = held.Until
		}
	}
	if s.Waiting > 0 && !d.Paused {
		d.Next = timeOf(next)
	}
	return d
}

// shown is a URL without user, query and fragment.
func shown(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "?"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// ranges are the values of the parameter range.
var ranges = map[string]int{"": feed.FiveMinutes, "5m": feed.FiveMinutes, "1h": feed.Hour, "24h": feed.Day}

func (h *Handler) series(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r, api.ParamDestination, api.ParamRange)
	id := q.text(api.ParamDestination)
	length, ok := ranges[q.text(api.ParamRange)]
	if !ok {
		q.fail(api.ParamRange, "range is not one of 5m, 1h and 24h")
	}
	if q.err != nil {
		return q.err
	}
	return writeJSON(w, http.StatusOK, h.config.Feed.Series(id, length))
}
