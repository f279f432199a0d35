package pgqueue

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A reader says what waits.
type reader struct{ *memory }

// Count implements webhook.Store. What is in chunks of other nodes counts as claimed.
func (s *reader) Count(ctx context.Context) (c webhook.Counts, err error) {
	var first, died *int64
	err = s.call(ctx, "counting", func() error {
		return s.pool.QueryRow(ctx, s.in(`SELECT * FROM (
	SELECT coalesce(sum(held), 0), coalesce(sum(held) FILTER (WHERE node NOT IN (0, $1)), 0), min(due) FILTER (WHERE node = 0) FROM S.chunk
) c, (SELECT count(*), coalesce(sum(size), 0)::bigint, min(died) FROM S.dead) d`), s.nodeNow()).
			Scan(&c.Waiting, &c.Claimed, &first, &c.Dead, &c.DeadBytes, &died)
	})
	if err != nil {
		return webhook.Counts{}, err
	}
	c.Oldest, c.OldestDead = timeAt(first), timeAt(died)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Claimed += len(s.claimed)
	for _, l := range s.lines {
		c.Oldest = earliest(c.Oldest, l.first())
	}
	return c, nil
}

func timeAt(micros *int64) time.Time {
	if micros == nil {
		return time.Time{}
	}
	return timeOf(*micros)
}

// earliest returns the earlier of t, unless it is zero, and when it is due, unless it is nil.
func earliest(t time.Time, it *item) time.Time {
	if it != nil && (t.IsZero() || it.due < t.UnixMicro()) {
		return timeOf(it.due)
	}
	return t
}

// CountByDestination implements webhook.Store. What is in chunks of other nodes counts as
// claimed.
func (s *reader) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return storekit.Page(func() ([]webhook.DestinationCounts, error) {
		counts, err := listed(ctx, s.database, "counting", func(r pgx.CollectableRow) (c webhook.DestinationCounts, err error) {
			var name []byte
			var first *int64
			err = r.Scan(&name, &c.Waiting, &c.Claimed, &first)
			c.Destination, c.Oldest = string(name), timeAt(first)
			return c, err
		}, `SELECT destination, sum(held), coalesce(sum(held) FILTER (WHERE node NOT IN (0, $1)), 0),
	min(due) FILTER (WHERE node = 0) FROM S.chunk GROUP BY destination`, s.nodeNow())
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		claimed := make(map[string]int)
		for _, it := range s.claimed {
			claimed[it.chunk.line.destination]++
		}
		for i := range counts {
			c := &counts[i]
			c.Claimed += claimed[c.Destination]
			for _, retries := range []bool{false, true} {
				if l := s.lines[lineKey{c.Destination, retries}]; l != nil {
					c.Oldest = earliest(c.Oldest, l.first())
				}
			}
		}
		return counts, nil
	})
}

// A place is where a delivery stands in the order of its destination.
type place struct {
	due   int64
	chunk chunkKey
	index int
}

// Waiting implements webhook.Store. It reads all that waits for the destination to find the
// order, and keeps 40 bytes of each delivery.
func (s *reader) Waiting(ctx context.Context, destination, after string) iter.Seq2[webhook.Delivery, error] {
	return func(yield func(webhook.Delivery, error) bool) {
		rest, err := s.places(ctx, destination, after)
		storekit.Pages("", func(string) (ds []webhook.Delivery, more string, _ error) {
			n := min(page, len(rest))
			if err == nil {
				ds, err = s.at(ctx, rest[:n])
			}
			if err != nil {
				return nil, "", err
			}
			if rest = rest[n:]; len(rest) > 0 {
				more = "more"
			}
			return ds, more, nil
		})(yield)
	}
}

// places returns where the deliveries of a destination are that come after the one with the
// ID after, all if that one does not wait.
func (s *reader) places(ctx context.Context, destination, after string) (all []place, err error) {
	var from *place
	_, err = listed(ctx, s.database, "reading what waits", func(rs pgx.CollectableRow) (none struct{}, err error) {
		var r row
		err = rs.Scan(&r.key.shelf, &r.key.id, &r.done, &r.items)
		items, _, _ := parse(r.items, r.done) // a damaged chunk hides no other
		for i := range items {
			p := place{items[i].due, r.key, items[i].index}
			all = append(all, p)
			if after == "" || from != nil {
				continue
			}
			if d, err := items[i].delivery(); err == nil && d.ID == after {
				from = &p
			}
		}
		return none, err
	}, waitingSQL, []byte(destination))
	before := func(x, y place) int {
		return cmp.Or(cmp.Compare(x.due, y.due), cmp.Compare(x.chunk.id, y.chunk.id), cmp.Compare(x.index, y.index))
	}
	slices.SortFunc(all, before)
	if from != nil {
		i, _ := slices.BinarySearchFunc(all, *from, before)
		all = all[i+1:]
	}
	return all, err
}

// at returns the deliveries at these places that still wait.
func (s *reader) at(ctx context.Context, places []place) (ds []webhook.Delivery, err error) {
	order := make(map[chunkKey]map[int]int)
	var shelves []int16
	var ids []int64
	for i, p := range places {
		if order[p.chunk] == nil {
			order[p.chunk] = make(map[int]int)
			shelves, ids = append(shelves, p.chunk.shelf), append(ids, p.chunk.id)
		}
		order[p.chunk][p.index] = i
	}
	found := make([]webhook.Delivery, len(places))
	_, err = listed(ctx, s.database, "reading what waits", func(rs pgx.CollectableRow) (none struct{}, err error) {
		var r row
		if err := rs.Scan(&r.key.shelf, &r.key.id, &r.done, &r.items); err != nil {
			return none, err
		}
		items, _, _ := parse(r.items, r.done)
		for j := range items {
			if i, ok := order[r.key][items[j].index]; ok {
				if d, err := items[j].delivery(); err == nil {
					found[i] = d
				}
			}
		}
		return none, nil
	}, chunksAtSQL, shelves, ids)
	return slices.DeleteFunc(found, func(d webhook.Delivery) bool { return d.ID == "" }), err
}

const waitingSQL = `SELECT shelf, id, coalesce(done::text, ''), items FROM S.chunk WHERE node = 0 AND destination = $1
UNION ALL
SELECT shelf, id, coalesce(done::text, ''), items FROM S.chunk WHERE node <> 0 AND destination = $1`

const chunksAtSQL = `SELECT c.shelf, c.id, coalesce(c.done::text, ''), c.items FROM S.chunk c, unnest($1::smallint[], $2::bigint[]) u (shelf, id)
WHERE c.shelf = u.shelf AND c.id = u.id`
