package pgqueue

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

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
				return nil, "", fmt.Errorf("pgqueue: reading what waits: %w", err)
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
	if err := s.calls.Enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.Leave()
	var from *place
	rows, err := s.pool.Query(ctx, s.in(waitingSQL), []byte(destination))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.key.shelf, &r.key.id, &r.done, &r.items); err != nil {
			return nil, err
		}
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
	}
	before := func(x, y place) int {
		return cmp.Or(cmp.Compare(x.due, y.due), cmp.Compare(x.chunk.id, y.chunk.id), cmp.Compare(x.index, y.index))
	}
	slices.SortFunc(all, before)
	if from != nil {
		i, _ := slices.BinarySearchFunc(all, *from, before)
		all = all[i+1:]
	}
	return all, rows.Err()
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
	_, err = listed(ctx, s.database, func(rs pgx.CollectableRow) (none struct{}, err error) {
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
	}, s.in(chunksAtSQL), shelves, ids)
	return slices.DeleteFunc(found, func(d webhook.Delivery) bool { return d.ID == "" }), err
}

const waitingSQL = `SELECT shelf, id, coalesce(done::text, ''), items FROM S.chunk WHERE node = 0 AND destination = $1
UNION ALL
SELECT shelf, id, coalesce(done::text, ''), items FROM S.chunk WHERE node <> 0 AND destination = $1`

const chunksAtSQL = `SELECT c.shelf, c.id, coalesce(c.done::text, ''), c.items FROM S.chunk c, unnest($1::smallint[], $2::bigint[]) u (shelf, id)
WHERE c.shelf = u.shelf AND c.id = u.id`
