package admin

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
)

const (
	defaultEvents = 100
	maxEvents     = 5000
)

func (h *Handler) events(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r, append(filterParams, api.ParamLimit)...)
	filter := eventFilter(q)
	limit := q.number(api.ParamLimit, defaultEvents, maxEvents)
	if q.err != nil {
		return q.err
	}
	events, seq := h.config.Feed.Events(filter, limit)
	return writeJSON(w, http.StatusOK, api.Events{Events: events, Seq: seq})
}

var filterParams = []string{api.ParamDestination, api.ParamType, api.ParamKind + "*", api.ParamQuery}

func eventFilter(q *query) feed.Filter {
	kinds := q.values[api.ParamKind]
	for _, k := range kinds {
		if !slices.Contains([]string{feed.KindAccepted, feed.KindAttempt, feed.KindDelivered, feed.KindDead}, k) {
			q.fail(api.ParamKind, "kind is not one of accepted, attempt, delivered and dead")
		}
	}
	return feed.Filter{
		Destination: q.text(api.ParamDestination),
		Type:        q.text(api.ParamType),
		Kinds:       kinds,
		Query:       q.text(api.ParamQuery),
	}
}

// livePace is how long events gather before more are sent, so that many cost
// little and few are there at once.
const livePace = 50 * time.Millisecond

func (h *Handler) live(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r, append(filterParams, api.ParamAfter)...)
	filter := eventFilter(q)
	after := uint64(feed.Now)
	if s := q.text(api.ParamAfter); s != "" {
		var err error
		if after, err = strconv.ParseUint(s, 10, 64); err != nil {
			q.fail(api.ParamAfter, "after is not the seq of an event")
		}
	}
	if q.err != nil {
		return q.err
	}
	reader, err := h.config.Feed.Follow(filter, after)
	if errors.Is(err, feed.ErrReaders) {
		return refuse(api.CodeUnavailable, http.StatusServiceUnavailable, "", "too many live streams are open")
	} else if err != nil {
		return err
	}
	defer reader.Close()
	ctx, cancel := h.untilClosed(r.Context())
	defer cancel()
	s := newStream(w)
	if s.alive() != nil || r.Method == http.MethodHead {
		return nil
	}
	for {
		events, skipped, err := next(ctx, reader)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if s.alive() != nil {
				return nil
			}
			continue
		}
		lines := make([]any, 0, len(events)+1)
		if skipped > 0 {
			lines = append(lines, api.Live{Skipped: skipped})
		}
		for i := range events {
			lines = append(lines, api.Live{Event: &events[i]})
		}
		if s.send(lines...) != nil {
			return nil
		}
		select {
		case <-time.After(livePace):
		case <-ctx.Done():
			return nil
		}
	}
}

// next waits for events, for half of api.KeepAlive at most.
func next(ctx context.Context, r *feed.Reader) ([]api.Event, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, api.KeepAlive/2)
	defer cancel()
	return r.Next(ctx)
}
