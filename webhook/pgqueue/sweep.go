package pgqueue

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook"
)

// sweepPage is how many chunks a sweep claims at once.
const sweepPage = 16

// A sweep is a pass over chunks. It claims the chunks that no node has claimed. In all chunks of
// this node, it settles the deliveries that the function match selects.
type sweep struct {
	where   string // an SQL condition that selects chunks by text, $3
	text    string
	match   func(*webhook.Delivery) bool
	verdict webhook.Verdict
	due     time.Time // for a Retry: the new due time of deliveries that are due later

	changed, claimed int // how many deliveries were settled; how many match but were already claimed
}

// Erase implements webhook.Store. It reads every chunk whose bytes contain the user id. Deliveries
// in chunks of other nodes count as claimed.
func (s *Store) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("pgqueue: erasure without a user")
	}
	w := sweep{
		where: `position($3::bytea IN items) > 0`, text: user, verdict: webhook.Done,
		match: func(d *webhook.Delivery) bool { return d.User == user },
	}
	err = s.call(ctx, "erasing", func() error {
		tag, err := s.pool.Exec(ctx, s.in(`DELETE FROM S.dead WHERE user_id = $1`), []byte(user))
		if w.changed = int(tag.RowsAffected()); err != nil {
			return err
		}
		return s.sweep(ctx, &w)
	})
	return w.changed, w.claimed, err
}

// Change implements webhook.Store. It reads every chunk of the destination. Deliveries in chunks of
// other nodes count as claimed.
func (s *Store) Change(ctx context.Context, filter webhook.WaitingFilter, to webhook.Change) (n, claimed int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	w := sweep{where: `destination = $3`, text: filter.Destination, match: filter.Match, verdict: webhook.Done}
	if to == webhook.DueNow {
		w.verdict, w.due = webhook.Retry, s.Now()
	}
	err = s.call(ctx, "changing waiting deliveries", func() error { return s.sweep(ctx, &w) })
	return w.changed, w.claimed, err
}

// sweep processes all chunks, page by page. Meanwhile this node hands out only deliveries that it
// puts itself.
func (s *settler) sweep(ctx context.Context, w *sweep) error {
	for _, held := range []semaphore{s.fetching, s.settling} {
		if err := held.acquire(ctx); err != nil {
			return err
		}
		defer held.release()
	}
	defer s.hearAny()
	if err := s.verify(ctx); err != nil {
		return err
	}
	for after, more := int64(0), true; more; {
		rows, err := s.claimPage(ctx, w, after)
		if err != nil {
			return err
		}
		items, ss := s.take(w, rows)
		n, err := s.settleAll(ctx, ss)
		w.changed += n
		s.mu.Lock()
		s.takeBack(items[n:])
		s.mu.Unlock()
		if err == nil {
			err = s.release(ctx, 0)
		}
		if err != nil {
			return err
		}
		for i := range rows {
			after = max(after, rows[i].id)
		}
		more = len(rows) == sweepPage
	}
	return nil
}

// claimPage reads the chunks that follow the id after, and claims the unclaimed ones. The field
// node of a row is the node that had claimed the chunk before, or 0.
func (s *settler) claimPage(ctx context.Context, w *sweep, after int64) (rows []row, err error) {
	err = s.exchange(ctx, s.claiming.RLocker(), func(ctx context.Context, conn *pgxpool.Conn) (err error) {
		node := s.nodeNow()
		rows, err = indexed(ctx, conn, scanRow, s.in(`WITH picked AS MATERIALIZED (
	SELECT part, id, node, outbox FROM S.chunk WHERE id > $2 AND `+w.where+` ORDER BY id LIMIT $4 FOR UPDATE
)`+claimPicked), node, after, []byte(w.text), sweepPage)
		if err != nil {
			return err
		}
		return s.adopt(rows, node)
	})
	return rows, err
}

// take claims the matching deliveries of chunks, and returns them with their settlements.
func (s *settler) take(w *sweep, rows []row) (items []*item, ss []webhook.Settlement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range rows {
		c, mine := s.chunks[rows[i].id]
		if !mine {
			c, _ = readChunk(&rows[i])
		}
		for j := range c.items {
			it := &c.items[j]
			d, err := it.delivery()
			switch {
			case err != nil || it.state == done || !w.match(&d):
			case !mine || it.state != free:
				w.claimed++
			case w.verdict == webhook.Done || d.Hasten(w.due):
				d.Claim = s.hand(it)
				items, ss = append(items, it), append(ss, webhook.Settlement{Verdict: w.verdict, Delivery: d})
			}
		}
		if mine {
			s.tidy(c.queue)
		}
	}
	return items, ss
}
