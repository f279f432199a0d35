package admin

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
)

const (
	defaultEvents = 100
	maxEvents     = 5000
)

func eventFilter(q *request) feed.Filter {
	return feed.Filter{
		Destination: q.param(api.ParamDestination),
		Type:        q.param(api.ParamType),
		Kinds:       q.query[api.ParamKind],
		Query:       q.param(api.ParamQuery),
	}
}

func listEvents(q *request) (any, error) {
	limit, err := q.limit(defaultEvents, maxEvents)
	if err != nil {
		return nil, err
	}
	events, seq := q.config.Feed.Events(eventFilter(q), limit)
	return api.Events{Events: events, Seq: seq}, nil
}

// livePace is the shortest time between two writes of a live stream. A write sends all new events.
const livePace = 50 * time.Millisecond

func streamEvents(q *request) (any, error) {
	after, err := q.number(api.ParamAfter, "the seq of an event")
	if err != nil {
		return nil, err
	}
	if after == nil {
		after = new(uint64(feed.Now))
	}
	reader, err := q.config.Feed.Follow(eventFilter(q), *after)
	if errors.Is(err, feed.ErrReaders) {
		return nil, unavailable("too many live streams are open")
	} else if err != nil {
		return nil, err
	}
	defer reader.Close()
	ctx, cancel := q.untilClosed()
	defer cancel()
	s := newStream(q.w)
	if s.send() != nil || q.Method == http.MethodHead {
		return nil, nil
	}
	for {
		waiting, stop := context.WithTimeout(ctx, api.KeepAlive/2)
		events, skipped, _ := reader.Next(waiting) // no events if none came for a while
		stop()
		if ctx.Err() != nil {
			return nil, nil
		}
		lines := make([]any, 0, len(events)+1)
		if skipped > 0 {
			lines = append(lines, api.Live{Skipped: skipped})
		}
		for i := range events {
			lines = append(lines, api.Live{Event: &events[i]})
		}
		if s.send(lines...) != nil {
			return nil, nil
		}
		select {
		case <-time.After(livePace):
		case <-ctx.Done():
			return nil, nil
		}
	}
}
