package pgqueue

import (
	"cmp"
	"context"
	"iter"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// Count implements webhook.Store. Deliveries in chunks of other nodes count as claimed.
func (s *Store) Count(ctx context.Context) (c webhook.Counts, err error) {
	for d, err := range s.CountByDestination(ctx) {
		if err != nil {
			return webhook.Counts{}, err
		}
		c.Waiting += d.Waiting
		c.Claimed += d.Claimed
		if !d.Oldest.IsZero() && (c.Oldest.IsZero() || d.Oldest.Before(c.Oldest)) {
			c.Oldest = d.Oldest
		}
	}
	err = s.call(ctx, "counting", func() error {
		var died int64
		err := s.pool.QueryRow(ctx, s.in(`SELECT count(*), coalesce(sum(size), 0)::bigint, coalesce(min(died), $1) FROM S.dead`), int64(never)).
			Scan(&c.Dead, &c.DeadBytes, &died)
		c.OldestDead = timeOf(died)
		return err
	})
	return c, err
}

// CountByDestination implements webhook.Store. Deliveries in chunks of other nodes count as
// claimed.
func (s *Store) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return storekit.Page(func() ([]webhook.DestinationCounts, error) {
		counts, err := listed(ctx, s.database, "counting", func(r pgx.CollectableRow) (c webhook.DestinationCounts, err error) {
			var name []byte
			var first int64
			err = r.Scan(&name, &c.Waiting, &c.Claimed, &first)
			c.Destination, c.Oldest = string(name), timeOf(first)
			return c, err
		}, `SELECT destination, sum(waiting), coalesce(sum(waiting) FILTER (WHERE node NOT IN (0, $1)), 0),
	coalesce(min(due) FILTER (WHERE node = 0), $2) FROM S.chunk GROUP BY destination`, s.nodeNow(), int64(never))
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		claimed := make(map[string]int)
		for _, it := range s.claims {
			claimed[it.chunk.queue.destination]++
		}
		for i := range counts {
			c := &counts[i]
			c.Claimed += claimed[c.Destination]
			for _, retries := range []bool{false, true} {
				it := s.queues[queueKey{c.Destination, retries}].first()
				if it != nil && (c.Oldest.IsZero() || timeOf(it.due).Before(c.Oldest)) {
					c.Oldest = timeOf(it.due)
				}
			}
		}
		return counts, nil
	})
}

// waitingPage is how many chunks Waiting reads at a time.
const waitingPage = 16

// Waiting implements webhook.Store. If after is not empty, it yields the deliveries that follow the
// delivery with that ID. To find that delivery, it reads all deliveries before it. If there is no
// such delivery, it yields all.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[webhook.Delivery, error] {
	return func(yield func(webhook.Delivery, error) bool) {
		found := after == ""
		for d, err := range s.inOrder(ctx, destination) {
			if err == nil && !found {
				found = d.ID == after
			} else if !yield(d, err) || err != nil {
				return
			}
		}
		if !found {
			s.inOrder(ctx, destination)(yield)
		}
	}
}

// inOrder yields the deliveries of a destination, ordered by Due.
func (s *Store) inOrder(ctx context.Context, destination string) iter.Seq2[webhook.Delivery, error] {
	return func(yield func(webhook.Delivery, error) bool) {
		const what = "reading waiting deliveries"
		type first struct{ id, due int64 } // a chunk, and a lower bound of its due times
		chunks, err := listed(ctx, s.database, what, func(r pgx.CollectableRow) (f first, err error) {
			err = r.Scan(&f.id, &f.due)
			return f, err
		}, waitingSQL, []byte(destination))
		slices.SortFunc(chunks, func(x, y first) int { return cmp.Compare(x.due, y.due) })
		var items []*item // read but not yielded yet
		for err == nil && len(chunks)+len(items) > 0 {
			var ids []int64
			for _, f := range chunks[:min(len(chunks), waitingPage)] {
				ids = append(ids, f.id)
			}
			chunks = chunks[len(ids):]
			_, err = listed(ctx, s.database, what, func(r pgx.CollectableRow) (none struct{}, err error) {
				var row row
				err = scanRow(r, &row)
				c, _ := readChunk(&row) // a damaged chunk hides no other
				for i := range c.items {
					if c.items[i].state == free {
						items = append(items, &c.items[i])
					}
				}
				return none, err
			}, chunksSQL, ids)
			if err != nil {
				break
			}
			slices.SortFunc(items, itemOrder)
			for len(items) > 0 && (len(chunks) == 0 || items[0].due < chunks[0].due) {
				if d, err := items[0].delivery(); err == nil && !yield(d, nil) {
					return
				}
				items = items[1:]
			}
		}
		if err != nil {
			yield(webhook.Delivery{}, err)
		}
	}
}

const waitingSQL = `SELECT id, due FROM S.chunk WHERE node = 0 AND destination = $1
UNION ALL
SELECT id, due FROM S.chunk WHERE node <> 0 AND destination = $1`

const chunksSQL = `SELECT ` + rowColumns + ` FROM S.chunk c, unnest($1::bigint[]) u (id)
WHERE c.part = (u.id & 3)::smallint AND c.id = u.id`
