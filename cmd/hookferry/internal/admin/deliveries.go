package admin

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
	"github.com/hookferry/analytics/webhook"
)

func waitingDelivery(d *webhook.Delivery) api.Delivery {
	return api.DeliveryOf(d, feed.StateWaiting, time.Time{})
}

func endedDelivery(d *webhook.Ended) api.Delivery {
	state := feed.KindDead
	if d.Reason == "" {
		state = feed.KindDelivered
	}
	a := api.DeliveryOf(&d.Delivery, state, d.At)
	a.Key, a.Reason = d.Key, string(d.Reason)
	return a
}

// listEnded answers with a page of dead letters, or of delivered deliveries.
func listEnded(q *request, all iter.Seq2[webhook.Ended, error]) (any, error) {
	return page(q, all,
		func(d *webhook.Ended) api.Delivery { return short(endedDelivery(d)) },
		func(d *webhook.Ended) string { return d.Key })
}

// short returns a delivery as listings have it.
func short(d api.Delivery) api.Delivery {
	d.Body, d.Attempts = nil, d.Attempts[max(len(d.Attempts)-1, 0):]
	return d
}

// listWaiting lists the waiting deliveries of a destination, which the settings may lack.
func listWaiting(q *request) (any, error) {
	all := q.config.Forwarder.Waiting(q.Context(), filterOf[webhook.WaitingFilter](q), q.param(api.ParamAfter))
	return page(q, all,
		func(d *webhook.Delivery) api.Delivery { return short(waitingDelivery(d)) },
		func(d *webhook.Delivery) string { return d.ID })
}

// changeWaiting returns a function that changes waiting deliveries.
func changeWaiting(to webhook.Change) func(*request, *webhook.WaitingFilter) (any, error) {
	return func(q *request, f *webhook.WaitingFilter) (any, error) {
		if f.Destination == "" {
			return nil, badRequest(api.ParamDestination, "destination is missing")
		}
		n, claimed, err := q.config.Forwarder.ChangeWaiting(q.Context(), *f, to)
		return api.Changed{Changed: n, Claimed: claimed}, err
	}
}

// errNoHistory says that the store keeps no delivered deliveries.
var errNoHistory = refuse(api.CodeNotFound, http.StatusNotFound, "", "delivered deliveries are not kept; history.maxAge keeps them in the store of the data folder")

func listDelivered(q *request) (any, error) {
	if q.config.Settings().History.MaxAge == 0 {
		return nil, errNoHistory
	}
	filter := filterOf[webhook.EndedFilter](q)
	filter.NewestFirst = true
	return listEnded(q, q.config.Forwarder.Delivered(q.Context(), filter, q.param(api.ParamAfter)))
}

func resend(q *request, f *webhook.EndedFilter) (any, error) {
	if q.config.Settings().History.MaxAge == 0 {
		return nil, errNoHistory
	}
	return nil, q.work(func(ctx context.Context, p *progress) error { return p.follow(q.config.Forwarder.Resend(ctx, *f)) })
}

const (
	findTime   = 2 * time.Second // of a search in the store
	findBefore = time.Minute     // how much earlier the time of death in the store may be than the feed's
)

// getStory answers with everything that is known about a delivery, by the feed or, if the feed lacks
// it or says that it is dead, by the store. The id is a query parameter because it may be any text:
// in a path, ".." would mean the parent folder.
func getStory(q *request) (any, error) {
	destination, id, source := q.param(api.ParamDestination), q.param(api.ParamID), q.param(api.ParamSource)
	s, known := q.config.Feed.Story(destination, source, id)
	if known && s.State != feed.KindDead {
		return s, nil
	}
	filter := webhook.EndedFilter{Destination: destination, ID: id}
	if known {
		source, filter.ID, filter.From = s.Source, s.ID, s.Ended.Add(-findBefore)
	}
	search, cancel := context.WithTimeout(q.Context(), findTime)
	defer cancel()
	found, err := first(q.config.Forwarder.Dead(search, filter), source, endedDelivery)
	switch {
	case err != nil && (q.Context().Err() != nil || !errors.Is(err, context.DeadlineExceeded)):
		return nil, fmt.Errorf("looking for the dead letter: %w", err)
	case found != nil && known:
		s.Key = found.Key
	case found != nil:
		return found, nil
	case !known:
		return findAlive(q, destination, source, id)
	}
	return s, nil
}

// findAlive looks for a delivery among the waiting and the delivered ones of the store. The store has
// just listed its dead letters, so an error only means that findTime is over, and nothing was found.
func findAlive(q *request, destination, source, id string) (any, error) {
	search, cancel := context.WithTimeout(q.Context(), findTime)
	defer cancel()
	f := q.config.Forwarder
	if d, _ := first(f.Waiting(search, webhook.WaitingFilter{Destination: destination, ID: id}, ""), source, waitingDelivery); d != nil {
		return d, nil
	}
	filter := webhook.EndedFilter{Destination: destination, ID: id, NewestFirst: true}
	if d, _ := first(f.Delivered(search, filter, ""), source, endedDelivery); d != nil {
		return d, nil
	}
	return nil, notFound("nothing is known of this delivery: it does not wait, is no dead letter, and is not among what was delivered lately")
}

// first returns the first delivery of a search that comes from a source, or from any if source is "".
func first[T any](all iter.Seq2[T, error], source string, answer func(*T) api.Delivery) (*api.Delivery, error) {
	for v, err := range all {
		if err != nil {
			return nil, err
		}
		if d := answer(&v); source == "" || d.Source == source {
			return &d, nil
		}
	}
	return nil, nil
}
