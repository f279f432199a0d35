package admin

import (
	"math"
	"net/http"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/feed"
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
	limit, err := q.limit(100, 5000)
	if err != nil {
		return nil, err
	}
	events, seq := q.handler.config.Feed.Events(eventFilter(q), limit)
	return api.Events{Events: events, Seq: seq}, nil
}

func streamEvents(q *request) (any, error) {
	after, err := q.number(api.ParamAfter, 0, math.MaxUint64, "the seq of an event")
	if err != nil {
		return nil, err
	}
	if after == nil {
		after = new(uint64(feed.Now))
	}
	if !q.handler.live.TryAcquire(1) {
		return nil, unavailable("too many live streams are open")
	}
	defer q.handler.live.Release(1)
	ctx, cancel := q.untilClosed()
	defer cancel()
	reader := q.handler.config.Feed.Follow(eventFilter(q), *after)
	s := newStream(q.w, api.StreamType)
	if s.send() != nil || q.http.Method == http.MethodHead {
		return nil, nil
	}
	pace := time.NewTicker(50 * time.Millisecond)
	defer pace.Stop()
	for sent := time.Now(); ; {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return nil, nil
		}
		events, skipped := reader.Next()
		lines := make([]any, 0, len(events)+1)
		if skipped > 0 {
			lines = append(lines, api.Live{Skipped: skipped})
		}
		for i := range events {
			lines = append(lines, api.Live{Event: &events[i]})
		}
		if len(lines) == 0 && time.Since(sent) < api.KeepAlive/2 {
			continue
		}
		if s.send(lines...) != nil {
			return nil, nil
		}
		sent = time.Now()
	}
}
