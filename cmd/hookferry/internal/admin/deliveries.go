package admin

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

const (
	maxKeys  = 10_000          // in a Selection
	lookTime = 2 * time.Second // of a count, or of a search for one delivery, in the store
)

// queryOf returns the query parameters as a Query.
func queryOf(q *request) (webhook.Query, error) {
	f := webhook.Query{
		Destinations: q.query[api.ParamDestination], Type: q.param(api.ParamType), Event: q.param(api.ParamEvent),
		ID: q.param(api.ParamID), User: q.param(api.ParamUser), Reason: webhook.Reason(q.param(api.ParamReason)),
		Oldest: q.param(api.ParamOrder) == api.OrderOldest,
	}
	for _, state := range q.query[api.ParamState] {
		f.States = append(f.States, webhook.State(state))
	}
	f.From, _ = time.Parse(time.RFC3339, q.param(api.ParamFrom)) // readQuery has checked the times
	f.To, _ = time.Parse(time.RFC3339, q.param(api.ParamTo))
	if err := q.checkStates(f.States); err != nil || q.http.PathValue("tenant") == "" {
		return f, err
	}
	return f, q.ofTenant(&f)
}

// checkStates refuses a state that no delivery can be in. It also refuses a query for delivered
// deliveries alone if the store does not keep them.
func (q *request) checkStates(states []webhook.State) error {
	for _, state := range states {
		if err := oneOf(api.ParamState, state, store.States()); err != nil {
			return err
		}
		if state == webhook.StateDelivered && len(states) == 1 && q.handler.config.Settings().History.MaxAge == 0 {
			return notFound("delivered deliveries are not kept; history.maxAge keeps them")
		}
	}
	return nil
}

func listDeliveries(q *request) (any, error) {
	query, err := queryOf(q)
	if err != nil {
		return nil, err
	}
	return q.list(query)
}

// list returns a page of the deliveries that a query selects.
func (q *request) list(query webhook.Query) (any, error) {
	limit, err := q.limit(50, 500)
	if err != nil {
		return nil, err
	}
	var after uint64
	if text := q.param(api.ParamAfter); text != "" {
		if after, err = api.ParseCursor(text); err != nil {
			return nil, errAfter
		}
	}
	list, next, err := q.handler.config.Forwarder.List(q.http.Context(), query, after, limit)
	p := api.Page[api.Delivery]{Items: []api.Delivery{}, After: api.Cursor(next)}
	for i := range list {
		d := api.DeliveryOf(&list[i])
		d.Body, d.Attempts = nil, d.Attempts[max(len(d.Attempts)-1, 0):]
		p.Items = append(p.Items, d)
	}
	return p, err
}

func countDeliveries(q *request) (any, error) {
	query, err := queryOf(q)
	if err != nil {
		return nil, err
	}
	return q.count(q.http.Context(), query)
}

// count counts the deliveries that a query selects, for at most lookTime.
func (q *request) count(ctx context.Context, query webhook.Query) (api.Count, error) {
	within, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	n, err := q.handler.config.Forwarder.Count(within, query)
	if within.Err() != nil && ctx.Err() == nil {
		return api.Count{Count: n, Stopped: true}, nil
	}
	return api.Count{Count: n}, err
}

func getDelivery(q *request) (any, error) {
	ref, err := api.ParseKey(q.http.PathValue("key"))
	if err != nil {
		return nil, badRequest("key", "%v", err)
	}
	if !q.mayReach(ref.Destination) {
		return nil, webhook.ErrNoDelivery
	}
	d, err := q.handler.config.Forwarder.Delivery(q.http.Context(), ref)
	return api.DeliveryOf(&d), err
}

// change returns a function that retries or discards the deliveries of a Selection. It calls all
// for a query, and some for keys.
func change(all func(*webhook.Forwarder, context.Context, webhook.Query) iter.Seq2[webhook.Progress, error],
	some func(*webhook.Forwarder, context.Context, ...webhook.Ref) (webhook.Progress, error),
) func(*request, *api.Selection) (any, error) {
	return func(q *request, s *api.Selection) (any, error) {
		refs, err := q.selected(s)
		if err != nil {
			return nil, err
		}
		return nil, q.work(func(ctx context.Context, p *progress) error {
			if s.Query == nil {
				p.total.Store(int64(len(refs)))
				for chunk := range slices.Chunk(refs, 256) { // one commit of the store each
					n, err := some(q.handler.config.Forwarder, ctx, chunk...)
					p.done.Add(int64(n.Changed))
					p.claimed.Add(int64(n.Claimed))
					if err != nil {
						return err
					}
				}
				return nil
			}
			n, err := q.count(ctx, *s.Query)
			if err != nil {
				return err
			}
			if !n.Stopped {
				p.total.Store(int64(n.Count))
			}
			for n, err := range all(q.handler.config.Forwarder, ctx, *s.Query) {
				p.done.Store(int64(n.Changed))
				p.claimed.Store(int64(n.Claimed))
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// selected checks a Selection, and returns the deliveries that its keys name. A query without
// states selects dead letters.
func (q *request) selected(s *api.Selection) (refs []webhook.Ref, err error) {
	switch {
	case (len(s.Keys) > 0) == (s.Query != nil):
		return nil, badRequest("", "want keys, or a query, which selects all dead letters if it is empty")
	case len(s.Keys) > maxKeys:
		return nil, badRequest("keys", "%d keys, the limit is %d", len(s.Keys), maxKeys)
	}
	for i, key := range s.Keys {
		ref, err := api.ParseKey(key)
		if err != nil {
			return nil, badRequest("keys", "keys[%d]: %v", i, err)
		}
		if !q.mayReach(ref.Destination) {
			continue // as if there were no such delivery
		}
		refs = append(refs, ref)
	}
	if s.Query == nil {
		return refs, nil
	}
	if q.http.PathValue("tenant") != "" {
		if err := q.ofTenant(s.Query); err != nil {
			return nil, err
		}
	}
	if len(s.Query.States) == 0 {
		s.Query.States = []webhook.State{webhook.StateDead}
	}
	return nil, q.checkStates(s.Query.States)
}

// getStory answers with everything that is known about a delivery. The data comes from the feed. It
// comes from the store if the feed does not have the delivery, or says that it is dead. The id is a
// query parameter because it may be any text: in a path, ".." would mean the parent folder.
func getStory(q *request) (any, error) {
	destination, id, source := q.param(api.ParamDestination), q.param(api.ParamID), q.param(api.ParamSource)
	s, known := q.handler.config.Feed.Story(destination, source, id)
	query := webhook.Query{Destinations: []string{destination}, ID: id}
	if known {
		if s.State != webhook.StateDead {
			return s, nil
		}
		source, query.ID, query.States = s.Source, s.ID, []webhook.State{webhook.StateDead}
	}
	search, cancel := context.WithTimeout(q.http.Context(), lookTime)
	defer cancel()
	for d, err := range q.handler.config.Forwarder.Deliveries(search, query) {
		switch {
		case err != nil && (q.http.Context().Err() != nil || !errors.Is(err, context.DeadlineExceeded)):
			return nil, fmt.Errorf("looking for the delivery: %w", err)
		case err != nil || source != "" && d.Source != source:
		case known:
			s.Key = api.KeyOf(d.Ref())
			return s, nil
		default:
			return api.DeliveryOf(&d), nil
		}
	}
	if !known {
		return nil, notFound("nothing is known of this delivery: it does not wait, is no dead letter, and is not among what was delivered lately")
	}
	return s, nil
}

// No store counts dead letters by destination, so deadCounts.get reads all of them, within bounds.
const (
	countTime = 500 * time.Millisecond // of a count: enough for some tens of thousands; then the numbers are unknown
	// The next count starts after countEvery, or after countRest times the duration of the last
	// count if that is longer.
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
	for d, err := range f.Deliveries(ctx, webhook.Query{States: []webhook.State{webhook.StateDead}}) {
		if err != nil || ctx.Err() != nil {
			return nil
		}
		by[d.Destination]++
	}
	return by
}
