package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
	"github.com/hookferry/analytics/webhook"
)

const (
	// findTime and findRows bound the search for a delivery in the store.
	findTime = 2 * time.Second
	findRows = 100_000
	// findBefore is how much earlier a delivery may have died than the feed says.
	findBefore = time.Minute
)

// getStory answers with what is known of a delivery: what the feed remembers and, of a dead one
// or one that the feed does not remember, what the store has. The id is a parameter because it may be
// any text: in a path, ".." would be the folder above.
func getStory(q *request) (any, error) {
	destination, id, source := q.required(api.ParamDestination), q.required(api.ParamID), q.param(api.ParamSource)
	if q.err != nil {
		return nil, q.err
	}
	s, told := q.config.Feed.Story(destination, source, id)
	if told && s.State != feed.StateDead {
		return s, nil
	}
	filter := webhook.DeadFilter{Destination: destination}
	if told {
		source, id = s.Source, s.ID
		if s.Ended != nil {
			filter.From = s.Ended.Add(-findBefore)
		}
	}
	d, err := findDead(q, filter, source, id)
	switch {
	case err != nil:
		return nil, err
	case d != nil && told:
		s.Key = d.Key
	case d != nil:
		s = storyOf(&d.Delivery, feed.StateDead, d.Died)
		s.Reason, s.Key = string(d.Reason), d.Key
	case !told:
		return findAlive(q, destination, source, id)
	}
	return s, nil
}

// findDead returns the dead letter of a delivery, or nil if it is not found within the bounds.
// The source and the id are as of Feed.Story.
func findDead(q *request, filter webhook.DeadFilter, source, id string) (*webhook.DeadLetter, error) {
	search, cancel := context.WithTimeout(q.Context(), findTime)
	defer cancel()
	rows := 0
	for d, err := range q.config.Forwarder.Dead(search, filter) {
		switch {
		case errors.Is(err, context.DeadlineExceeded) && q.Context().Err() == nil:
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("looking for the dead letter: %w", err)
		case (d.MessageID == id || d.ID == id) && (source == "" || d.Source == source):
			return &d, nil
		}
		if rows++; rows == findRows {
			break
		}
	}
	return nil, nil
}

// findAlive looks for a delivery among those that wait, and among the delivered ones that the
// store keeps. An error of the store ends the search: the store has listed its dead letters a
// moment ago, so the error means that time is up.
func findAlive(q *request, destination, source, id string) (any, error) {
	search, cancel := context.WithTimeout(q.Context(), findTime)
	defer cancel()
	for d, err := range q.config.Forwarder.Waiting(search, webhook.WaitingFilter{Destination: destination, ID: id}, "") {
		if err != nil {
			break
		}
		if source == "" || d.Source == source {
			return storyOf(&d, feed.StateWaiting, time.Time{}), nil
		}
	}
	for d, err := range q.config.Forwarder.Delivered(search, webhook.DeliveredFilter{Destination: destination, MessageID: id}, "") {
		if err != nil {
			break
		}
		if source == "" || d.Source == source {
			return storyOf(&d.Delivery, feed.StateDelivered, d.At), nil
		}
	}
	return nil, notFound("nothing is known of this delivery: it does not wait, is no dead letter, and is not among what was delivered lately")
}

// storyOf returns what a store knows of a delivery.
func storyOf(d *webhook.Delivery, state string, ended time.Time) api.Story {
	s := api.Story{
		Names: api.NamesOf(d), State: state,
		Accepted: api.TimeOf(d.Accepted), Ended: api.TimeOf(ended), Tries: d.Tries, TraceParent: d.Trace.Parent, Attempts: attemptsOf(d.Attempts), Body: d.Body,
	}
	switch state {
	case feed.StateWaiting:
		s.Due = api.TimeOf(d.Due)
	case feed.StateDelivered:
		s.Tries++ // the store does not keep the attempt that succeeded
	}
	return s
}
