package pgqueue

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

// erasePage is how many chunks are read in one go.
const erasePage = 16

// An eraser erases what is stored of a user.
type eraser struct{ *settler }

// Erase implements webhook.Store. It reads every chunk in which the name of the user
// occurs. What is in chunks of other nodes is claimed.
func (s *eraser) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("pgqueue: erasure without a user")
	}
	if err := s.calls.Enter(ctx); err != nil {
		return 0, 0, err
	}
	defer s.calls.Leave()
	// Meanwhile this node claims nothing but what it puts.
	if err := s.fetching.take(ctx); err != nil {
		return 0, 0, err
	}
	defer s.fetching.give()
	tag, err := s.pool.Exec(ctx, s.in(`DELETE FROM S.dead WHERE user_id = $1`), []byte(user))
	if err == nil {
		erased = int(tag.RowsAffected())
		err = s.eraseHeld(ctx, user, &erased, &claimed)
	}
	var after chunkKey
	for more := true; more && err == nil; {
		more, err = s.erasePage(ctx, user, &after, &erased, &claimed)
	}
	s.heardAny()
	if err != nil {
		return erased, claimed, fmt.Errorf("pgqueue: erasing: %w", oneLine(err))
	}
	return erased, claimed, nil
}

// eraseHeld erases what is in chunks of this node, and counts what the caller has claimed.
func (s *eraser) eraseHeld(ctx context.Context, user string, erased, claimed *int) error {
	if err := s.settling.take(ctx); err != nil {
		return err
	}
	defer s.settling.give()
	var ends []end
	s.mu.Lock()
	for _, c := range s.chunks {
		for i := range c.items {
			it := &c.items[i]
			if it.state == settled {
				continue
			}
			if d, err := it.delivery(); err != nil || d.User != user {
				continue
			}
			if it.state == inHand {
				*claimed++
				continue
			}
			ends = append(ends, end{item: it, verdict: webhook.Done})
		}
	}
	for _, e := range ends {
		s.takeOut(e.item)
	}
	s.mu.Unlock()
	err := s.settle(ctx, ends)
	if err != nil {
		for i := range ends {
			ends[i].verdict = webhook.Return
		}
		s.finish(ends, nil, nil)
		return err
	}
	*erased += len(ends)
	return nil
}

// erasePage erases from the next chunks that are not this node's. It reports whether there may
// be more.
func (s *eraser) erasePage(ctx context.Context, user string, after *chunkKey, erased, claimed *int) (more bool, err error) {
	n, passed := 0, 0
	last := *after
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var changed []*progress
		var nodes []int64
		rows, err := collect(ctx, tx, func(rs pgx.CollectableRow) (r row, err error) {
			var node int64
			err = rs.Scan(&r.key.shelf, &r.key.id, &node, &r.held, &r.done, &r.items)
			nodes = append(nodes, node)
			return r, err
		}, s.in(`SELECT shelf, id, node, held, coalesce(done::text, ''), items FROM S.chunk
WHERE (shelf, id) > ($1, $2) AND node <> $3 AND position($4::bytea IN items) > 0 ORDER BY shelf, id LIMIT $5 FOR UPDATE`), after.shelf, after.id, s.nodeNow(), []byte(user), erasePage)
		if err != nil {
			return err
		}
		more = len(rows) == erasePage
		for i, r := range rows {
			last = r.key
			c := &chunk{key: r.key, held: r.held, done: r.done}
			p := &progress{chunk: c}
			c.items, c.n, _ = parse(r.items, r.done) // what cannot be read stays
			for j := range c.items {
				it := &c.items[j]
				if d, err := it.delivery(); err == nil && d.User == user {
					p.set = append(p.set, it.index)
					it.state = settled
				}
			}
			switch {
			case nodes[i] != 0:
				passed += len(p.set)
			case len(p.set) > 0:
				n += len(p.set)
				changed = append(changed, p)
			}
		}
		if len(changed) == 0 {
			return nil
		}
		var b pgx.Batch
		s.queueProgress(&b, 0, changed)
		var left []*chunk
		for _, p := range changed {
			if p.held > 0 {
				left = append(left, p.chunk)
			}
		}
		s.queueRelease(&b, 0, left)
		return tx.SendBatch(ctx, &b).Close()
	})
	if err == nil {
		*after = last
		*erased += n
		*claimed += passed
	}
	return more, err
}
