package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/bits"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
	"github.com/hookferry/analytics/webhook"
)

// destinations serves destinations, and what became of their deliveries over time.
type destinations struct{ *Handler }

// list answers with a page of them.
func (h destinations) list(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r, api.ParamQuery, api.ParamSource, api.ParamState+"*", api.ParamSort, api.ParamLimit, api.ParamAfter)
	part, source, states := q.text(api.ParamQuery), q.text(api.ParamSource), q.values[api.ParamState]
	for _, state := range states {
		if !slices.Contains(api.States, state) {
			q.fail(api.ParamState, "state is not one of %s", strings.Join(api.States, ", "))
		}
	}
	rank := ranks[q.text(api.ParamSort)]
	if rank == nil {
		q.fail(api.ParamSort, "sort is not one of %s", strings.Join(api.Sorts, ", "))
	}
	limit := q.number(api.ParamLimit, defaultPage, maxPage)
	after := placeOf(q)
	if q.err != nil {
		return q.err
	}
	all, err := h.all(r.Context())
	if err != nil {
		return err
	}
	all = matching(all, part, h.config.Settings(), source)
	page := api.Destinations{Destinations: []api.Destination{}, States: map[string]int{}}
	for _, d := range all {
		page.States[d.state]++
	}
	if len(states) > 0 {
		all = slices.DeleteFunc(all, func(d *destination) bool { return !slices.Contains(states, d.state) })
	}
	page.Total = len(all)
	for _, d := range all {
		d.rank = rank(d)
	}
	slices.SortFunc(all, func(a, b *destination) int { return a.place().compare(b.place()) })
	if after != nil {
		from, found := slices.BinarySearchFunc(all, *after, func(d *destination, p place) int { return d.place().compare(p) })
		if found {
			from++
		}
		all = all[from:]
	}
	if len(all) > limit {
		all = all[:limit]
		page.After = all[limit-1].place().String()
	}
	page.Destinations = h.tell(r.Context(), all)
	return writeJSON(w, http.StatusOK, page)
}

// ranks are the values of the parameter sort: a destination with a higher rank
// comes first, and of equal ones that with the lower id.
var ranks = map[string]func(*destination) int64{
	"":                rankByID,
	api.SortID:        rankByID,
	api.SortWaiting:   func(d *destination) int64 { return int64(d.stats.Waiting) },
	api.SortDelivered: func(d *destination) int64 { return d.stats.Delivered },
	api.SortRetried:   func(d *destination) int64 { return d.stats.Retried },
	api.SortDead: func(d *destination) (n int64) {
		for _, of := range d.stats.Dead {
			n += of
		}
		return n
	},
	// What waits counts in powers of two, so that a list that somebody looks at
	// does not change its order all the time.
	api.SortState: func(d *destination) int64 {
		worse := len(api.States) - slices.Index(api.States, d.state)
		return int64(worse)<<8 + int64(bits.Len(uint(d.stats.Waiting)))
	},
}

func rankByID(*destination) int64 { return 0 }

// A place is where a destination is in a list. It stays what it is when others
// change theirs, so a listing goes on behind it.
type place struct {
	rank int64
	id   string
}

func (p place) compare(other place) int {
	return cmp.Or(cmp.Compare(other.rank, p.rank), strings.Compare(p.id, other.id))
}

func (p place) String() string { return fmt.Sprintf("%d:%s", p.rank, p.id) }

// placeOf returns the place that a listing goes on behind, nil if it begins.
func placeOf(q *query) *place {
	text := q.text(api.ParamAfter)
	if text == "" {
		return nil
	}
	rank, id, found := strings.Cut(text, ":")
	n, err := strconv.ParseInt(rank, 10, 64)
	if !found || err != nil {
		q.fail(api.ParamAfter, "after is not that of a page of destinations")
	}
	return &place{n, id}
}

// matching returns the destinations with a part in their id or URL, and of a
// source. What is "" selects all.
func matching(all []*destination, part string, settings *config.Settings, source string) []*destination {
	if source != "" {
		of := make(map[string]bool)
		if i := slices.IndexFunc(settings.Sources, func(s config.Source) bool { return s.Name == source }); i >= 0 {
			for _, id := range settings.Sources[i].Destinations {
				of[id] = true
			}
		}
		all = slices.DeleteFunc(all, func(d *destination) bool { return !of[d.id] })
	}
	if part = strings.ToLower(part); part != "" {
		all = slices.DeleteFunc(all, func(d *destination) bool { return !d.has(part) })
	}
	return all
}

func (h destinations) one(w http.ResponseWriter, r *http.Request) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	return h.answer(w, r, r.PathValue("destination"))
}

func (h destinations) pause(w http.ResponseWriter, r *http.Request) error {
	return h.change(w, r, h.config.Forwarder.Pause)
}

func (h destinations) resume(w http.ResponseWriter, r *http.Request) error {
	return h.change(w, r, h.config.Forwarder.Resume)
}

func (h destinations) change(w http.ResponseWriter, r *http.Request, change func(context.Context, string) error) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	id := r.PathValue("destination")
	if err := h.known(id); err != nil {
		return err
	}
	if err := change(r.Context(), id); err != nil {
		return err
	}
	return h.answer(w, r, id)
}

// known refuses a destination that the settings have not.
func (h *Handler) known(id string) error {
	if h.config.Settings().Destination(id) == nil {
		return notFound("there is no destination %q", id)
	}
	return nil
}

func (h destinations) answer(w http.ResponseWriter, r *http.Request, id string) error {
	all, err := h.all(r.Context())
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(d *destination) bool { return d.id == id })
	if i < 0 {
		return notFound("there is no destination %q", id)
	}
	d := h.tell(r.Context(), all[i:i+1])[0]
	if c := all[i].settings; c != nil {
		d.Settings = settingsOf(c, h.config.Settings().Sources)
	}
	return writeJSON(w, http.StatusOK, d)
}

// A destination is what is found out of every one when some are asked for.
type destination struct {
	id       string
	settings *config.Destination // nil: it is no longer there
	stats    webhook.DestinationStats
	rates    api.Rates
	state    string
	rank     int64
}

func (d *destination) place() place { return place{d.rank, d.id} }

// has reports whether the id or a URL, as they are shown, has a part, which is
// in lower case.
func (d *destination) has(part string) bool {
	if strings.Contains(strings.ToLower(d.id), part) {
		return true
	}
	return d.settings != nil && slices.ContainsFunc(d.settings.Endpoints, func(e config.Endpoint) bool {
		return strings.Contains(strings.ToLower(e.Shown()), part)
	})
}

// all returns those of the settings, and those that are no longer
// there and that something waits for, in no order.
func (h destinations) all(ctx context.Context) ([]*destination, error) {
	stats, err := h.config.Forwarder.DestinationStats(ctx)
	if err != nil {
		return nil, err
	}
	settings := h.config.Settings()
	all := make([]*destination, 0, len(settings.Destinations))
	by := make(map[string]*destination, len(settings.Destinations))
	add := func(d *destination) {
		all = append(all, d)
		by[d.id] = d
	}
	for i := range settings.Destinations {
		c := &settings.Destinations[i]
		add(&destination{id: c.ID, settings: c, stats: webhook.DestinationStats{Destination: c.ID}})
	}
	for _, s := range stats {
		if d := by[s.Destination]; d != nil {
			d.stats = s
		} else if s.Waiting > 0 || s.Held != nil {
			add(&destination{id: s.Destination, stats: s})
		}
	}
	for _, d := range all {
		d.rates = h.config.Feed.Rates(d.id)
		d.state = d.stateNow()
	}
	return all, nil
}

// stateNow is one of api.States.
func (d *destination) stateNow() string {
	s := &d.stats
	failed := s.Outcome == webhook.OutcomeRetryable // the latest attempt
	switch {
	case s.Held != nil:
		return string(s.Held.Hold)
	case d.settings == nil:
		return string(webhook.HoldUnknown)
	case d.settings.Webhook == nil: // what is stored of it
		return string(webhook.HoldInvalid)
	case !d.settings.Enabled:
		return string(webhook.HoldDisabled)
	case s.Refusing:
		return api.StateRefusing
	case failed && s.Failure != nil && s.Failure.Due.IsZero():
		return api.StateFailing
	case failed && s.Waiting > 0, d.rates.Retried > 0:
		return api.StateRetrying
	case s.Delivered > 0:
		return api.StateOK
	case s.Waiting > 0:
		return api.StateWaiting
	}
	return api.StateIdle
}

// tell returns all that is known of some destinations, in their order.
func (h destinations) tell(ctx context.Context, some []*destination) []api.Destination {
	list := make([]api.Destination, len(some))
	by := make(map[string]*api.Destination, len(some))
	stored := h.stored.get(ctx, h.config.Forwarder)
	for i, d := range some {
		list[i] = h.whole(d)
		by[d.id] = &list[i]
		if stored != nil {
			n := stored[d.id]
			list[i].DeadLetters = &n
		}
	}
	for _, source := range h.config.Settings().Sources { // which are in order
		for _, id := range source.Destinations {
			d := by[id]
			if d == nil {
				continue
			}
			if d.SourceCount++; d.SourceCount <= namedSources {
				d.Sources = append(d.Sources, source.Name)
			}
		}
	}
	return list
}

// namedSources is how many sources of a destination are named.
const namedSources = 10

// whole is a destination without its sources.
func (h destinations) whole(of *destination) api.Destination {
	s := &of.stats
	d := api.Destination{
		ID:        of.id,
		State:     of.state,
		Sources:   []string{},
		Endpoints: []api.Endpoint{},
		InFlight:  s.InFlight,
		Waiting:   s.Waiting,
		Oldest:    api.TimeOf(s.Oldest),
		Since:     api.TimeOf(s.Since),
		Delivered: s.Delivered,
		Retried:   s.Retried,
		Filtered:  s.Filtered,
		Dead:      byReason(s.Dead),
		Latency:   latencyOf(s.Latency),
		Errors:    h.config.Feed.Errors(of.id),
		Rates:     of.rates,
	}
	if f := s.Failure; f != nil {
		d.Failure = &api.Failure{ID: f.MessageID, Source: f.Source, Attempt: api.AttemptOf(&f.Attempt), Due: api.TimeOf(f.Due)}
	}
	next := s.Oldest
	if held := s.Held; held != nil {
		d.Paused = held.Hold == webhook.HoldPaused
		d.Held = &api.Held{Hold: string(held.Hold), Since: api.TimeOf(held.Since), Until: api.TimeOf(held.Until), Reason: string(held.Reason)}
		if held.Until.After(next) {
			next = held.Until
		}
	}
	if s.Waiting > 0 && (s.Held == nil || !s.Held.Until.IsZero()) {
		d.Next = api.TimeOf(next)
	}
	if c := of.settings; c != nil {
		d.Enabled, d.Stored = c.Enabled, storedOf(c)
		d.Signed, d.Standard = c.Secret != "", len(c.StandardSecrets) > 0
		d.MaxConcurrent, d.MaxRate = c.MaxConcurrent, c.MaxRate
		for _, e := range c.Endpoints {
			d.Endpoints = append(d.Endpoints, api.Endpoint{URL: e.Shown(), Headers: slices.Sorted(maps.Keys(e.Headers))})
		}
	}
	return d
}

// ranges are the values of the parameter range.
var ranges = map[string]int{"": feed.FiveMinutes, "5m": feed.FiveMinutes, "1h": feed.Hour, "24h": feed.Day}

func (h destinations) series(w http.ResponseWriter, r *http.Request) error {
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
