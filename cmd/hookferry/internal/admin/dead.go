package admin

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

const maxKeys = 10_000 // in a Selection

func listDead(q *request) (any, error) {
	filter := filterOf[webhook.EndedFilter](q)
	filter.NewestFirst = q.param(api.ParamOrder) == api.OrderNewest
	after := q.param(api.ParamAfter)
	list, err := listEnded(q, q.config.Store.Dead(q.Context(), filter, after))
	if _, wrong := errors.AsType[*failure](err); err != nil && !wrong && after != "" && listsDead(q) {
		return nil, badRequest(api.ParamAfter, "after is not the key of a dead letter")
	}
	return list, err
}

// listsDead reports whether the store can list its dead letters. If so, a listing that was to begin
// after a key has failed because of the key.
func listsDead(q *request) bool {
	for _, err := range q.config.Store.Dead(q.Context(), webhook.EndedFilter{}, "") {
		return err == nil
	}
	return true
}

func countDead(q *request) (any, error) {
	n, err := q.config.Forwarder.CountDead(q.Context(), filterOf[webhook.EndedFilter](q))
	return api.Count{Count: n}, err
}

func getDead(q *request) (any, error) {
	d, err := q.config.Forwarder.DeadLetter(q.Context(), q.PathValue("key"))
	return endedDelivery(&d), err
}

func replay(q *request, s *api.Selection) (any, error) {
	return nil, q.eachSelected(s, q.config.Forwarder.ReplayAll, q.config.Forwarder.Replay)
}

func discard(q *request, s *api.Selection) (any, error) {
	return nil, q.eachSelected(s, q.config.Forwarder.DiscardAll, q.config.Forwarder.Discard)
}

func (q *request) eachSelected(s *api.Selection,
	byFilter func(context.Context, webhook.EndedFilter) iter.Seq2[int, error],
	byKey func(context.Context, ...string) (int, error),
) error {
	switch {
	case (len(s.Keys) > 0) == (s.Filter != nil):
		return badRequest("", "want keys, or a filter, which selects all if it is empty")
	case len(s.Keys) > maxKeys:
		return badRequest("keys", "%d keys, the limit is %d", len(s.Keys), maxKeys)
	}
	return q.work(func(ctx context.Context, p *progress) error {
		if s.Filter != nil {
			total, err := q.config.Forwarder.CountDead(ctx, *s.Filter)
			if err != nil {
				return err
			}
			p.total.Store(int64(total))
			return p.follow(byFilter(ctx, *s.Filter))
		}
		p.total.Store(int64(len(s.Keys)))
		for keys := range slices.Chunk(s.Keys, 256) { // one commit of the store each
			n, err := byKey(ctx, keys...)
			p.done.Add(int64(n))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// No store counts dead letters by destination, so deadCounts.get reads all of them, within bounds.
const (
	countTime = 500 * time.Millisecond // of a count: enough for some tens of thousands; then the numbers are unknown
	// The next count starts after countEvery, or countRest times the duration of the last one.
	countEvery = 5 * time.Second
	countRest  = 50
)

// deadCounts has the number of dead letters of each destination.
type deadCounts struct {
	counting sync.Mutex // held during a count; guards next
	next     time.Time  // when the next count may start
	latest   atomic.Pointer[map[string]int]
}

// get returns the number of dead letters of each destination some seconds ago, or nil if it is
// unknown. If another caller is counting, get returns the previous numbers.
func (c *deadCounts) get(ctx context.Context, f *webhook.Forwarder) map[string]int {
	if c.counting.TryLock() {
		if began := time.Now(); !began.Before(c.next) {
			c.latest.Store(new(countByDestination(ctx, f)))
			c.next = time.Now().Add(max(countEvery, countRest*time.Since(began)))
		}
		c.counting.Unlock()
	}
	if by := c.latest.Load(); by != nil {
		return *by
	}
	return nil // the first count is in progress
}

// countByDestination counts the dead letters of each destination. It returns nil after countTime. The
// end of ctx does not interrupt it: the numbers are for other requests, too.
func countByDestination(ctx context.Context, f *webhook.Forwarder) map[string]int {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countTime)
	defer cancel()
	by := map[string]int{}
	for d, err := range f.Dead(ctx, webhook.EndedFilter{}) {
		if err != nil || ctx.Err() != nil {
			return nil
		}
		by[d.Destination]++
	}
	return by
}
