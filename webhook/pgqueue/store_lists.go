package pgqueue

import (
	"context"
	"iter"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/store"
)

// Count implements store.Store. Deliveries in chunks of other nodes count as claimed.
func (s *Store) Count(ctx context.Context) (c store.Counts, err error) {
	for d, err := range s.CountByDestination(ctx) {
		if err != nil {
			return store.Counts{}, err
		}
		c.Waiting += d.Waiting
		c.Claimed += d.Claimed
		if !d.Oldest.IsZero() && (c.Oldest.IsZero() || d.Oldest.Before(c.Oldest)) {
			c.Oldest = d.Oldest
		}
	}
	err = s.db.call(ctx, "counting", func() error {
		var died int64
		err := s.db.pool.QueryRow(ctx, s.db.in(`SELECT count(*), coalesce(sum(size), 0)::bigint, coalesce(min(died), $1) FROM S.dead`), int64(never)).
			Scan(&c.Dead, &c.DeadBytes, &died)
		c.OldestDead = timeOf(died)
		return err
	})
	return c, err
}

// CountByDestination implements store.Store. Deliveries in chunks of other nodes count as
// claimed.
func (s *Store) CountByDestination(ctx context.Context) iter.Seq2[store.DestinationCounts, error] {
	return store.Page(func() ([]store.DestinationCounts, error) {
		counts, err := listed(ctx, s.db, "counting", func(r pgx.CollectableRow) (c store.DestinationCounts, err error) {
			var first int64
			err = r.Scan((*text)(&c.Destination), &c.Waiting, &c.Claimed, &first)
			c.Oldest = timeOf(first)
			return c, err
		}, `SELECT destination, sum(waiting), coalesce(sum(waiting) FILTER (WHERE node NOT IN (0, $1)), 0),
	coalesce(min(due) FILTER (WHERE node = 0), $2) FROM S.chunk GROUP BY destination`, s.memory.nodeNow(), int64(never))
		if err != nil {
			return nil, err
		}
		s.memory.mu.Lock()
		defer s.memory.mu.Unlock()
		claimed := make(map[string]int)
		for _, it := range s.memory.claims {
			claimed[it.chunk.queue.destination]++
		}
		for i := range counts {
			c := &counts[i]
			c.Claimed += claimed[c.Destination]
			for _, key := range queuesOf(c.Destination) {
				if it := s.memory.queues[key].first(); it != nil && (c.Oldest.IsZero() || it.d.Due.Before(c.Oldest)) {
					c.Oldest = it.d.Due
				}
			}
		}
		return counts, nil
	})
}

// Waiting implements store.Store. To find the delivery with the ID after, it reads all deliveries
// before it.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[store.Delivery, error] {
	return func(yield func(store.Delivery, error) bool) {
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
func (s *Store) inOrder(ctx context.Context, destination string) iter.Seq2[store.Delivery, error] {
	return func(yield func(store.Delivery, error) bool) {
		const what = "reading waiting deliveries"
		type bound struct{ ID, Due int64 } // a chunk, and a lower bound of its due times
		chunks, err := listed(ctx, s.db, what, pgx.RowToStructByPos[bound], waitingSQL, []byte(destination))
		var items []*item // read but not yielded yet
		for err == nil && len(chunks)+len(items) > 0 {
			var ids []int64
			for _, c := range chunks[:min(len(chunks), chunkPage)] {
				ids = append(ids, c.ID)
			}
			chunks = chunks[len(ids):]
			var read []*chunk
			read, err = listed(ctx, s.db, what, scanChunk, chunksSQL, ids)
			for _, c := range read {
				for j := range c.items {
					if c.items[j].state == free {
						items = append(items, &c.items[j])
					}
				}
			}
			slices.SortFunc(items, itemOrder)
			for err == nil && len(items) > 0 && (len(chunks) == 0 || items[0].due() < chunks[0].Due) {
				if !yield(items[0].d, nil) {
					return
				}
				items = items[1:]
			}
		}
		if err != nil {
			yield(store.Delivery{}, err)
		}
	}
}

// waitingSQL returns the first id of each chunk, which stays the same when a chunk is moved to another
// partition. chunksSQL reads chunks by their first ids.
const waitingSQL = `SELECT coalesce(origin, id), due FROM S.chunk WHERE node = 0 AND destination = $1
UNION ALL
SELECT coalesce(origin, id), due FROM S.chunk WHERE node <> 0 AND destination = $1
ORDER BY due`

const chunksSQL = `SELECT ` + chunkColumns + `, c.node FROM S.chunk c, unnest($1::bigint[]) u (id)
WHERE c.part = (u.id & 3)::smallint AND c.id = u.id
UNION ALL
SELECT ` + chunkColumns + `, c.node FROM S.chunk c, unnest($1::bigint[]) u (id) WHERE c.origin = u.id`
