package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

// A destination has the data by which a listing selects and orders all destinations.
type destination struct {
	id       string
	stats    *webhook.DestinationStats // noStats if there are none
	settings *config.Destination       // nil if it is not in the settings
	own      tenants.Own               // without an ID if it is not in the store, or of a tenant
	tenant   string                    // the one that it belongs to, if it is no destination of the settings
	made     *tenants.Destination      // of those in the store; nil if it is not read yet, or is deleted
	secrets  tenants.Secrets           // beside made
	invalid  bool                      // made is not valid
	state    string                    // one of api.States
	rank     int64                     // see ranks
}

var noStats = new(webhook.DestinationStats)

func listDestinations(q *request) (any, error) {
	// The listing continues after a rank and an id. Meanwhile the destination at that place may
	// have got another rank.
	after := destination{rank: math.MaxInt64}
	limit, err := q.limit(50, 500)
	if err != nil {
		return nil, err
	}
	if text := q.param(api.ParamAfter); text != "" {
		rank, id, found := strings.Cut(text, ":")
		n, err := strconv.ParseInt(rank, 10, 64)
		if !found || err != nil {
			return nil, errAfter
		}
		after.rank, after.id = n, id
	}
	selected := q.query[api.ParamState]
	for _, state := range selected {
		if err := oneOf(api.ParamState, state, api.States); err != nil {
			return nil, err
		}
	}
	all, err := q.destinations()
	if err != nil {
		return nil, err
	}
	matches := q.matching()
	states := map[string]int{}
	rank := ranks[q.param(api.ParamSort)]
	total := 0
	var first []*destination // in their order, those of the page and one more; all are too many to sort
	for d := range all {
		if !matches(d) {
			continue
		}
		states[d.state]++
		if len(selected) > 0 && !slices.Contains(selected, d.state) {
			continue
		}
		total++
		if d.rank = rank(d); after.compare(d) >= 0 {
			continue
		}
		if at, _ := slices.BinarySearchFunc(first, d, (*destination).compare); at <= limit {
			kept := *d
			first = slices.Insert(first[:min(len(first), limit)], at, &kept)
		}
	}
	part, err := page(q, behind(first, func(*destination) bool { return true }),
		same, func(d **destination) string { return fmt.Sprintf("%d:%s", (*d).rank, (*d).id) })
	if err != nil {
		return nil, err
	}
	for _, d := range part.Items {
		if err := q.read(d); err != nil {
			return nil, err
		}
	}
	list := api.Page[api.Destination]{Items: q.describe(part.Items), After: part.After, Total: total}
	return api.Destinations{Page: list, States: states}, nil
}

// ranks has the ranks by which a listing is sorted, the highest first, and equal ones by id.
var ranks = map[string]func(*destination) int64{
	"":          rankByID,
	"id":        rankByID,
	"waiting":   func(d *destination) int64 { return int64(d.stats.Waiting) },
	"delivered": func(d *destination) int64 { return d.stats.Delivered },
	"retried":   func(d *destination) int64 { return d.stats.Retried },
	"dead": func(d *destination) (n int64) {
		for _, of := range d.stats.Dead {
			n += of
		}
		return n
	},
	// The waiting deliveries are rounded to a power of two, so that the order is steady.
	"state": func(d *destination) int64 {
		worse := len(api.States) - slices.Index(api.States, d.state)
		return int64(worse)<<8 + int64(bits.Len(uint(d.stats.Waiting)))
	},
}

func rankByID(*destination) int64 { return 0 }

func (d *destination) compare(other *destination) int {
	return cmp.Or(cmp.Compare(other.rank, d.rank), strings.Compare(d.id, other.id))
}

// matching returns a function that selects the destinations whose id or a URL contains the parameter
// "q", and which get the calls of the source in the parameter "source".
func (q *request) matching() func(*destination) bool {
	var of map[string]bool // nil selects all
	if name := q.param(api.ParamSource); name != "" {
		of = make(map[string]bool)
		if source := q.handler.config.Settings().Source(name); source != nil {
			for _, id := range source.Destinations {
				of[id] = true
			}
		}
	}
	part := strings.ToLower(q.param(api.ParamQuery))
	has := func(text string) bool { return strings.Contains(strings.ToLower(text), part) }
	goes := func(url string) bool { return has(config.Shown(url)) }
	return func(d *destination) bool {
		switch {
		case of != nil && !of[d.id]:
			return false
		case part == "" || has(d.id):
			return true
		case d.settings != nil:
			return slices.ContainsFunc(d.settings.Endpoints, func(e webhook.Endpoint) bool { return goes(e.URL) })
		}
		return slices.ContainsFunc(d.own.URLs, goes)
	}
}

func getDestination(q *request) (any, error) {
	id := q.http.PathValue("destination")
	d := &destination{id: id, stats: noStats, settings: q.handler.config.Settings().Destination(id)}
	stats, err := q.handler.config.Forwarder.StatsOf(q.http.Context(), id)
	if err != nil {
		return nil, err
	}
	if len(stats) > 0 {
		d.stats = &stats[0]
	}
	if d.settings == nil {
		d.tenant = ownerOf(id)
		d.own, _ = q.handler.config.Tenants.FindOwn(id)
	}
	if err := q.read(d); err != nil {
		return nil, err
	}
	if d.settings == nil && d.made == nil && d.stats.Waiting == 0 && d.stats.Held == nil {
		return nil, noDestination(id)
	}
	d.state = d.stateNow()
	a := q.describe([]*destination{d})[0]
	if c := d.settings; c != nil {
		a.Settings = &api.DestinationSettings{Settings: c.Settings, StandardSecrets: len(c.StandardSecrets)}
	} else if made := d.made; made != nil {
		a.Settings = &api.DestinationSettings{Settings: made.Settings, StandardSecrets: len(d.secrets.StandardSecrets)}
	} else {
		return a, nil
	}
	a.Settings.Sources = []string{}
	for _, source := range q.handler.config.Settings().Sources {
		if slices.Contains(source.Destinations, id) {
			a.Settings.Sources = append(a.Settings.Sources, source.Name)
		}
	}
	return a, nil
}

func pause(q *request) (any, error)  { return q.hold(q.handler.config.Forwarder.Pause) }
func resume(q *request) (any, error) { return q.hold(q.handler.config.Forwarder.Resume) }

func (q *request) hold(change func(context.Context, string) error) (any, error) {
	id := q.http.PathValue("destination")
	if err := q.known(id); err != nil {
		return nil, err
	}
	if err := change(q.http.Context(), id); err != nil {
		return nil, err
	}
	return getDestination(q)
}

// known returns an error if neither the settings nor a tenant have a destination with this id.
func (q *request) known(id string) error {
	if q.handler.config.Settings().Destination(id) != nil {
		return nil
	}
	_, err := q.handler.config.Tenants.Get(q.http.Context(), id)
	if errors.Is(err, tenants.ErrUnknown) {
		return noDestination(id)
	}
	return err
}

// ownerOf returns the tenant whose destination has an id, "" if it is of none.
func ownerOf(id string) string {
	tenant, ours := tenants.TenantOf(id)
	if !ours {
		return ""
	}
	return tenant
}

// read reads the settings of a destination in the store, unless it is deleted.
func (q *request) read(d *destination) error {
	if d.settings != nil {
		return nil
	}
	made, secrets, err := q.handler.config.Tenants.Secrets(q.http.Context(), d.id)
	switch {
	case errors.Is(err, tenants.ErrUnknown):
		return nil
	case err != nil && !errors.Is(err, tenants.ErrUnreadable):
		return err
	}
	if d.made, d.secrets, d.invalid = &made, secrets, err != nil; err == nil {
		_, err = q.handler.config.Tenants.Check(made, secrets)
		d.invalid = err != nil
	}
	d.state = d.stateNow()
	return nil
}

func noDestination(id string) error { return notFound("there is no destination %q", id) }

// destinations yields, in no order, the destinations of the settings, those in the store that are
// of no tenant, and those that were removed but still have waiting deliveries or are held. Tenants
// may have very many destinations: of these it yields only those in trouble, and q.read reads their
// settings. All values are in the same place.
func (q *request) destinations() (iter.Seq[*destination], error) {
	stats, err := q.handler.config.Forwarder.DestinationStats(q.http.Context())
	if err != nil {
		return nil, err
	}
	by := make(map[string]*webhook.DestinationStats, len(stats))
	for i := range stats {
		by[stats[i].Destination] = &stats[i]
	}
	settings := q.handler.config.Settings()
	return func(yield func(*destination) bool) {
		d := new(destination)
		next := func(is destination) bool {
			*d = is
			if d.stats = noStats; by[d.id] != nil {
				d.stats = by[d.id]
				delete(by, d.id)
			}
			d.state = d.stateNow()
			return yield(d)
		}
		for i := range settings.Destinations {
			if c := &settings.Destinations[i]; !next(destination{id: c.ID, settings: c}) {
				return
			}
		}
		for _, own := range q.handler.config.Tenants.Owned() {
			if settings.Destination(own.ID) == nil && !next(destination{id: own.ID, own: own}) {
				return
			}
		}
		for id, s := range by {
			is := destination{id: id, stats: s, tenant: ownerOf(id)}
			if (is.tenant != "" && is.inTrouble() || is.tenant == "" && (s.Waiting > 0 || s.Held != nil)) && !next(is) {
				return
			}
		}
	}, nil
}

// stateNow returns the first state that applies, in the order of the cases below.
func (d *destination) stateNow() string {
	failed := d.stats.Outcome == webhook.OutcomeRetryable // the latest attempt failed
	switch {
	case d.stats.Held != nil:
		return string(d.stats.Held.Kind)
	case d.settings == nil && d.own.ID == "" && d.tenant == "":
		return string(webhook.HoldUnknown)
	case d.own.Unreadable, d.invalid:
		return string(webhook.HoldInvalid)
	case d.settings != nil && d.settings.Disabled, d.own.Disabled, d.made != nil && d.made.Disabled:
		return string(webhook.HoldDisabled)
	}
	switch {
	case d.stats.Refusing:
		return api.StateRefusing
	case failed && d.stats.Failure != nil && d.stats.Failure.Due.IsZero():
		return api.StateFailing
	case failed && d.stats.Waiting > 0, d.failedNow():
		return api.StateRetrying
	case d.stats.Delivered > 0:
		return api.StateOK
	case d.stats.Waiting > 0:
		return api.StateWaiting
	}
	return api.StateIdle
}

// inTrouble reports whether somebody should look at the destination of a tenant: it fails, it is
// paused, or it was disabled because it failed. A destination that its tenant has disabled is not
// in trouble.
func (d *destination) inTrouble() bool {
	if h := d.stats.Held; h != nil {
		return h.Kind != webhook.HoldDisabled || h.Reason != ""
	}
	return slices.Contains([]string{api.StateRefusing, api.StateFailing, api.StateRetrying}, d.stateNow())
}

// failedNow reports whether an attempt that will be repeated has failed within the last half second. So
// the state of a destination that fails now and then does not change with each attempt.
func (d *destination) failedNow() bool {
	f := d.stats.Failure
	return f != nil && !f.Due.IsZero() && time.Since(f.Attempt.End()) < time.Second/2
}

func (q *request) describe(some []*destination) []api.Destination {
	list := make([]api.Destination, len(some))
	by := make(map[string]*api.Destination, len(some))
	dead := q.handler.dead.get(q.http.Context(), q.handler.config.Forwarder)
	for i, d := range some {
		list[i] = d.describe()
		list[i].Rates, list[i].Errors = q.handler.config.Feed.Rates(d.id), q.handler.config.Feed.Errors(d.id)
		by[d.id] = &list[i]
		if dead != nil {
			list[i].DeadLetters = new(dead[d.id])
		}
	}
	for _, source := range q.handler.config.Settings().Sources {
		for _, id := range source.Destinations {
			d := by[id]
			if d == nil {
				continue
			}
			if d.SourceCount++; d.SourceCount <= 10 {
				d.Sources = append(d.Sources, source.Name)
			}
		}
	}
	return list
}

func (d *destination) describe() api.Destination {
	a := api.Destination{
		ID: d.id, Tenant: d.tenant, State: d.state, Sources: []string{}, Endpoints: []api.ShownEndpoint{},
		InFlight: d.stats.InFlight, Waiting: d.stats.Waiting, Oldest: d.stats.Oldest.UTC(), Since: d.stats.Since.UTC(),
		Delivered: d.stats.Delivered, Retried: d.stats.Retried, Filtered: d.stats.Filtered, Dead: byReason(d.stats.Dead),
		Latency: d.stats.Latency, Failure: d.stats.Failure, Held: d.stats.Held,
	}
	next := d.stats.Oldest
	if held := d.stats.Held; held != nil {
		a.Paused = held.Kind == webhook.HoldPaused
		if held.Until.After(next) {
			next = held.Until
		}
	}
	if d.stats.Waiting > 0 && (d.stats.Held == nil || !d.stats.Held.Until.IsZero()) {
		a.Next = next.UTC()
	}
	if c := d.settings; c != nil {
		a.Enabled, a.Endpoints = !c.Disabled, shown(c.Endpoints)
		a.Signed, a.Standard = c.Secret != "", len(c.StandardSecrets) > 0
		a.MaxConcurrent, a.MaxRate = c.MaxConcurrent, c.MaxRate
	}
	if made := d.made; made != nil {
		a.Enabled, a.Endpoints, a.MaxConcurrent, a.MaxRate = !made.Disabled, shown(made.Endpoints), made.MaxConcurrent, made.MaxRate
		a.Signed, a.Standard = d.secrets.Secret != "", len(d.secrets.StandardSecrets) > 0
		if d.tenant == "" {
			a.Stored = &api.Stored{Version: strconv.FormatUint(made.Version, 10)}
			if len(made.Changes) > 0 {
				a.Stored.Changed, a.Stored.By = made.Changes[0].At, made.Changes[0].By
			}
		}
	}
	return a
}

var ranges = map[string]int{"": feed.FiveMinutes, "5m": feed.FiveMinutes, "1h": feed.Hour, "24h": feed.Day}

func getSeries(q *request) (any, error) {
	return q.handler.config.Feed.Series(q.param(api.ParamDestination), ranges[q.param(api.ParamRange)]), nil
}
