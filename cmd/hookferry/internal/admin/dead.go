package admin

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
	"github.com/hookferry/analytics/webhook"
)

const (
	// maxKeys is how many keys a Selection may have.
	maxKeys = 10_000
	// keyChunk is how many of them are replayed or discarded in one commit.
	keyChunk = 256
)

var deadParams = []string{api.ParamDestination, api.ParamID, api.ParamType, api.ParamReason, api.ParamUser, api.ParamFrom, api.ParamTo}

func deadFilter(q *query) webhook.DeadFilter {
	return webhook.DeadFilter{
		Destination: q.text(api.ParamDestination),
		ID:          q.text(api.ParamID),
		Type:        q.text(api.ParamType),
		Reason:      webhook.Reason(q.text(api.ParamReason)),
		User:        q.text(api.ParamUser),
		From:        q.time(api.ParamFrom),
		To:          q.time(api.ParamTo),
	}
}

// newestFirst reports whether an order is that of the newest first, or what is wrong with it.
func newestFirst(order string) (bool, error) {
	if order != "" && order != api.OrderOldest && order != api.OrderNewest {
		return false, badRequest(api.ParamOrder, "order is not one of %s, %s", api.OrderOldest, api.OrderNewest)
	}
	return order == api.OrderNewest, nil
}

// deadLetters serves what was given up: to look at, to deliver again, or to forget.
type deadLetters struct{ *Handler }

// list answers with a page of dead letters.
func (h deadLetters) list(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r, append(slices.Clone(deadParams), api.ParamOrder, api.ParamLimit, api.ParamAfter)...)
	filter := deadFilter(q)
	newest, err := newestFirst(q.text(api.ParamOrder))
	if q.err == nil {
		q.err = err
	}
	filter.NewestFirst = newest
	limit := q.number(api.ParamLimit, defaultPage, maxPage)
	after := q.text(api.ParamAfter)
	if q.err != nil {
		return q.err
	}
	page := api.Dead{Dead: []api.DeadLetter{}}
	for d, err := range h.config.Store.Dead(r.Context(), filter, after) {
		if err != nil {
			return h.badKey(r.Context(), after, err)
		}
		if len(page.Dead) == limit {
			page.After = page.Dead[limit-1].Key
			break
		}
		page.Dead = append(page.Dead, deadLetter(&d, false))
	}
	return writeJSON(w, http.StatusOK, page)
}

// badKey returns err, unless the store fails only because after is the key of
// nothing.
func (h deadLetters) badKey(ctx context.Context, after string, err error) error {
	if after == "" {
		return err
	}
	for _, other := range h.config.Store.Dead(ctx, webhook.DeadFilter{}, "") {
		if other != nil {
			return err
		}
		break
	}
	return badRequest(api.ParamAfter, "after is not the key of a dead letter")
}

func deadLetter(d *webhook.DeadLetter, whole bool) api.DeadLetter {
	l := api.DeadLetter{
		Key:         d.Key,
		Destination: d.Destination,
		ID:          d.MessageID,
		Source:      d.Source,
		User:        d.User,
		Event:       d.Event,
		Type:        d.Type,
		Reason:      string(d.Reason),
		Accepted:    d.Accepted,
		Died:        d.Died,
		Tries:       d.Tries,
		TraceParent: d.Trace.Parent,
	}
	attempts := d.Attempts
	if whole {
		l.Body = d.Body
	} else if len(attempts) > 0 {
		attempts = attempts[len(attempts)-1:]
	}
	l.Attempts = attemptsOf(attempts)
	return l
}

func (h deadLetters) count(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r, deadParams...)
	filter := deadFilter(q)
	if q.err != nil {
		return q.err
	}
	n, err := h.config.Forwarder.CountDead(r.Context(), filter)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, api.Count{Count: n})
}

func (h deadLetters) one(w http.ResponseWriter, r *http.Request) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	d, err := h.config.Forwarder.DeadLetter(r.Context(), r.PathValue("key"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, deadLetter(&d, true))
}

func (h deadLetters) replay(w http.ResponseWriter, r *http.Request) error {
	return h.eachSelected(w, r, h.config.Forwarder.ReplayAll, h.config.Forwarder.Replay)
}

func (h deadLetters) discard(w http.ResponseWriter, r *http.Request) error {
	return h.eachSelected(w, r, h.config.Forwarder.DiscardAll, h.config.Forwarder.Discard)
}

// eachSelected does something with the dead letters of a Selection.
func (h deadLetters) eachSelected(w http.ResponseWriter, r *http.Request,
	byFilter func(context.Context, webhook.DeadFilter) iter.Seq2[int, error],
	byKey func(context.Context, ...string) (int, error),
) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	var s api.Selection
	if err := readJSON(w, r, &s); err != nil {
		return err
	}
	switch {
	case (len(s.Keys) > 0) == (s.Filter != nil):
		return badRequest("", "want keys, or a filter, which selects all if it is empty")
	case len(s.Keys) > maxKeys:
		return badRequest("keys", "%d keys, the limit is %d", len(s.Keys), maxKeys)
	}
	filter := webhook.DeadFilter{}
	if f := s.Filter; f != nil {
		newest, err := newestFirst(f.Order)
		if err != nil {
			return err
		}
		filter = webhook.DeadFilter{
			Destination: f.Destination, ID: f.ID, Type: f.Type, Reason: webhook.Reason(f.Reason), User: f.User,
			From: value(f.From), To: value(f.To), NewestFirst: newest,
		}
	}
	return h.work(w, r, func(ctx context.Context, p *progress) error {
		if s.Filter == nil {
			p.expect(len(s.Keys))
			done := 0
			for keys := range slices.Chunk(s.Keys, keyChunk) {
				n, err := byKey(ctx, keys...)
				done += n
				p.reach(done)
				if err != nil {
					return err
				}
			}
			return nil
		}
		total, err := h.config.Forwarder.CountDead(ctx, filter)
		if err != nil {
			return err
		}
		p.expect(total)
		for done, err := range byFilter(ctx, filter) {
			p.reach(done)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// value returns a time that may be nil.
func value(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

const (
	// findTime and findRows bound the search for the dead letter of a delivery.
	findTime = 2 * time.Second
	findRows = 100_000
	// findBefore is how much earlier than what was told of its end it may have
	// died.
	findBefore = time.Minute
)

// story answers with what is known of a delivery: what the feed remembers and,
// of one that is dead, what the store has. The id is a parameter, because it may be
// any text: in a path, ".." would be the folder above.
func (h deadLetters) story(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r, api.ParamDestination, api.ParamID, api.ParamSource)
	destination, id, source := q.required(api.ParamDestination), q.required(api.ParamID), q.text(api.ParamSource)
	if q.err != nil {
		return q.err
	}
	s, told := h.config.Feed.Story(destination, source, id)
	if told && s.State != "dead" {
		return writeJSON(w, http.StatusOK, s)
	}
	filter := webhook.DeadFilter{Destination: destination}
	if told {
		source, id = s.Source, s.ID
	}
	if told && s.Ended != nil {
		filter.From = s.Ended.Add(-findBefore)
	}
	d, err := h.find(r.Context(), filter, source, id)
	switch {
	case err != nil:
		return err
	case d != nil && told:
		s.Key = d.Key
	case d != nil:
		s = storyOf(&d.Delivery, feed.StateDead, d.Died)
		s.Reason, s.Key = string(d.Reason), d.Key
	case !told:
		if s, err = h.stillThere(r.Context(), destination, source, id); err != nil {
			return err
		}
	}
	return writeJSON(w, http.StatusOK, s)
}

// storyOf is what a store knows of a delivery that has ended, or waits.
func storyOf(d *webhook.Delivery, state string, ended time.Time) api.Story {
	s := api.Story{
		Destination: d.Destination, ID: d.MessageID, Source: d.Source, User: d.User, Event: d.Event, Type: d.Type, State: state,
		Accepted: api.TimeOf(d.Accepted), Ended: api.TimeOf(ended), Tries: d.Tries, TraceParent: d.Trace.Parent, Attempts: attemptsOf(d.Attempts), Body: d.Body,
	}
	switch state {
	case feed.StateWaiting:
		s.Due = api.TimeOf(d.Due)
	case feed.StateDelivered:
		s.Tries++ // the last one, which is not kept
	}
	return s
}

func attemptsOf(of []webhook.Attempt) []api.Attempt {
	list := make([]api.Attempt, len(of))
	for i := range of {
		list[i] = api.AttemptOf(&of[i])
	}
	return list
}

// stillThere looks for a delivery among what waits, and among what was delivered and is kept, for
// as long as for a dead letter.
func (h deadLetters) stillThere(ctx context.Context, destination, source, id string) (api.Story, error) {
	search, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	for d, err := range h.config.Forwarder.Waiting(search, webhook.WaitingFilter{Destination: destination, ID: id}, "") {
		if err != nil {
			break // of the time, or of the store, which has answered a moment ago
		}
		if source == "" || d.Source == source {
			return storyOf(&d, feed.StateWaiting, time.Time{}), nil
		}
	}
	for d, err := range h.config.Forwarder.Delivered(search, webhook.DeliveredFilter{Destination: destination, MessageID: id}, "") {
		if err != nil {
			break
		}
		if source == "" || d.Source == source {
			return storyOf(&d.Delivery, feed.StateDelivered, d.At), nil
		}
	}
	return api.Story{}, notFound("nothing is known of this delivery: it does not wait, is no dead letter, and is not among what was delivered lately")
}

// find returns the dead letter of a delivery, or nil if it is not found soon. The
// source and the id are as of Feed.Story.
func (h deadLetters) find(ctx context.Context, filter webhook.DeadFilter, source, id string) (*webhook.DeadLetter, error) {
	// The store keeps to the time, also where it comes upon nothing that the
	// filter selects.
	search, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	rows := 0
	for d, err := range h.config.Forwarder.Dead(search, filter) {
		switch {
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
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
