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

// listWaiting answers with a page of the waiting deliveries of a destination. The destination may
// be missing from the settings.
func listWaiting(q *request) (any, error) {
	filter := webhook.WaitingFilter(filterOf[api.WaitingFilter](q))
	list, after, err := page(q, q.config.Forwarder.Waiting(q.Context(), filter, q.param(api.ParamAfter)),
		waitingDelivery, func(d *webhook.Delivery) string { return d.ID })
	return api.Waiting{Waiting: list, After: after}, err
}

func waitingDelivery(d *webhook.Delivery) api.WaitingDelivery {
	w := api.WaitingDelivery{
		Names: api.NamesOf(d), Accepted: d.Accepted, Due: d.Due, Expires: d.Expires.UTC(), Tries: d.Tries,
	}
	if n := len(d.Attempts); n > 0 {
		w.Last = new(api.AttemptOf(&d.Attempts[n-1]))
	}
	return w
}

// changeWaiting returns a function that changes waiting deliveries.
func changeWaiting(to webhook.Change) func(*request, *api.WaitingFilter) (any, error) {
	return func(q *request, f *api.WaitingFilter) (any, error) {
		if f.Destination == "" {
			return nil, badRequest(api.ParamDestination, "destination is missing")
		}
		n, claimed, err := q.config.Forwarder.ChangeWaiting(q.Context(), webhook.WaitingFilter(*f), to)
		return api.Changed{Changed: n, Claimed: claimed}, err
	}
}

// errNoHistory says that the store keeps no delivered deliveries.
var errNoHistory = refuse(api.CodeNotFound, http.StatusNotFound, "", "delivered deliveries are not kept; history.maxAge keeps them in the store of the data folder")

func listDelivered(q *request) (any, error) {
	if q.config.Settings().History.MaxAge == 0 {
		return nil, errNoHistory
	}
	filter := webhook.DeliveredFilter(filterOf[api.DeliveredFilter](q))
	list, after, err := page(q, q.config.Forwarder.Delivered(q.Context(), filter, q.param(api.ParamAfter)),
		func(d *webhook.Delivered) api.DeliveredDelivery {
			return api.DeliveredDelivery{Key: d.Key, Names: api.NamesOf(&d.Delivery), Accepted: d.Accepted, Delivered: d.At}
		},
		func(d *webhook.Delivered) string { return d.Key })
	return api.Delivered{Delivered: list, After: after}, err
}

func resend(q *request, f *api.DeliveredFilter) (any, error) {
	if q.config.Settings().History.MaxAge == 0 {
		return nil, errNoHistory
	}
	return nil, q.work(func(ctx context.Context, p *progress) error {
		return p.follow(q.config.Forwarder.Resend(ctx, webhook.DeliveredFilter(*f)))
	})
}

const (
	// findTime bounds the time of a search in the store.
	findTime = 2 * time.Second
	// A search for a dead letter begins findBefore earlier than the feed's time of death, because
	// the store may have an earlier time of death.
	findBefore = time.Minute
)

// getStory answers with everything that is known about a delivery. The feed remembers recent
// deliveries. If the feed does not have the delivery, or says that it is dead, getStory searches
// the store. The id is a query parameter because it may be any text: in a path, ".." would mean the
// parent folder.
func getStory(q *request) (any, error) {
	destination, id, source := q.param(api.ParamDestination), q.param(api.ParamID), q.param(api.ParamSource)
	s, known := q.config.Feed.Story(destination, source, id)
	if known && s.State != feed.KindDead {
		return s, nil
	}
	filter := webhook.DeadFilter{Destination: destination, ID: id}
	if known {
		source, filter.ID, filter.From = s.Source, s.ID, s.Ended.Add(-findBefore)
	}
	search, cancel := context.WithTimeout(q.Context(), findTime)
	defer cancel()
	dead, err := first(q.config.Forwarder.Dead(search, filter), source, func(d *webhook.DeadLetter) *webhook.Delivery { return &d.Delivery })
	switch {
	case err != nil && (q.Context().Err() != nil || !errors.Is(err, context.DeadlineExceeded)):
		return nil, fmt.Errorf("looking for the dead letter: %w", err)
	case dead != nil && known:
		s.Key = dead.Key
	case dead != nil:
		s = storyOf(&dead.Delivery, feed.KindDead, dead.Died)
		s.Reason, s.Key = string(dead.Reason), dead.Key
	case !known:
		return findAlive(q, destination, source, id)
	}
	return s, nil
}

// findAlive looks for a delivery among the waiting and the delivered deliveries of the store. The
// store has just listed its dead letters, so it works, and an error only means that findTime is
// over. findAlive then answers that the delivery is not found.
func findAlive(q *request, destination, source, id string) (any, error) {
	search, cancel := context.WithTimeout(q.Context(), findTime)
	defer cancel()
	waiting := q.config.Forwarder.Waiting(search, webhook.WaitingFilter{Destination: destination, ID: id}, "")
	if d, _ := first(waiting, source, func(d *webhook.Delivery) *webhook.Delivery { return d }); d != nil {
		s := storyOf(d, feed.StateWaiting, time.Time{})
		s.Due = d.Due.UTC()
		return s, nil
	}
	delivered := q.config.Forwarder.Delivered(search, webhook.DeliveredFilter{Destination: destination, MessageID: id}, "")
	if d, _ := first(delivered, source, func(d *webhook.Delivered) *webhook.Delivery { return &d.Delivery }); d != nil {
		s := storyOf(&d.Delivery, feed.KindDelivered, d.At)
		s.Tries++ // the store does not keep the attempt that succeeded
		return s, nil
	}
	return nil, notFound("nothing is known of this delivery: it does not wait, is no dead letter, and is not among what was delivered lately")
}

// first returns the first value of a search whose delivery comes from the given source, or nil if
// there is no such value. If source is "", every source fits.
func first[T any](all iter.Seq2[T, error], source string, delivery func(*T) *webhook.Delivery) (*T, error) {
	for v, err := range all {
		if err != nil {
			return nil, err
		}
		if source == "" || delivery(&v).Source == source {
			return &v, nil
		}
	}
	return nil, nil
}

func storyOf(d *webhook.Delivery, state string, ended time.Time) api.Story {
	return api.Story{
		Names: api.NamesOf(d), State: state, Accepted: d.Accepted.UTC(), Ended: ended.UTC(),
		Tries: d.Tries, TraceParent: d.Trace.Parent, Attempts: api.AttemptsOf(d.Attempts), Body: d.Body,
	}
}
