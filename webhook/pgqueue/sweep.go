package pgqueue

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

// sweepPage is how many chunks a sweep claims at once.
const sweepPage = 16

// Erase implements webhook.Store. It reads every chunk whose bytes contain the user id. Deliveries
// in chunks of other nodes count as claimed.
func (s *settler) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("pgqueue: erasure without a user")
	}
	var dead int64
	err = s.call(ctx, "erasing", func() error {
		tag, err := s.pool.Exec(ctx, s.in(`DELETE FROM S.dead WHERE user_id = $1`), []byte(user))
		if dead = tag.RowsAffected(); err != nil {
			return err
		}
		erased, claimed, err = s.sweep(ctx, `position($3::bytea IN items) > 0`, user, func(d *webhook.Delivery) webhook.Verdict {
			if d.User != user {
				return 0
			}
			return webhook.Done
		})
		return err
	})
	return erased + int(dead), claimed, err
}

// Change implements webhook.Store. It reads every chunk of the destination. Deliveries in chunks of
// other nodes count as claimed.
func (s *settler) Change(ctx context.Context, filter webhook.WaitingFilter, to webhook.Change) (n, claimed int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	now := s.Now()
	err = s.call(ctx, "changing waiting deliveries", func() (err error) {
		n, claimed, err = s.sweep(ctx, `destination = $3`, filter.Destination, func(d *webhook.Delivery) webhook.Verdict {
			switch {
			case !filter.Match(d):
				return 0
			case to == webhook.Discarded:
				return webhook.Done
			case d.Hasten(now):
				return webhook.Retry
			}
			return webhook.Return
		})
		return err
	})
	return n, claimed, err
}

// sweep goes through the chunks that an SQL condition selects by a text, $3, page by page. It claims
// those that no node has claimed. In all chunks of this node, it settles the deliveries for which f
// returns Done or Retry. It counts them, and the deliveries that are claimed already and for which f
// does not return 0. Meanwhile this node hands out only deliveries that it puts itself.
func (s *settler) sweep(ctx context.Context, where, text string, f func(*webhook.Delivery) webhook.Verdict) (changed, claimed int, err error) {
	for _, held := range []semaphore{s.fetching, s.settling} {
		if err := held.acquire(ctx); err != nil {
			return 0, 0, err
		}
		defer held.release()
	}
	defer s.hearAny()
	if err := s.verify(ctx); err != nil {
		return 0, 0, err
	}
	sql := `WITH picked AS MATERIALIZED (
	SELECT part, id, node, outbox FROM S.chunk WHERE id > $2 AND ` + where + ` ORDER BY id LIMIT $4 FOR UPDATE
)` + claimPicked
	for after, more := int64(0), true; more; {
		chunks, err := s.claim(ctx, func(*pgx.Batch) {}, sql, after, []byte(text), sweepPage)
		if err != nil {
			return changed, claimed, err
		}
		items, ss, skipped := s.choose(chunks, f)
		n, err := s.settleAll(ctx, ss)
		changed, claimed = changed+n, claimed+skipped
		s.mu.Lock()
		s.takeBack(items[n:]...)
		s.mu.Unlock()
		if err == nil {
			err = s.release(ctx, 0)
		}
		if err != nil {
			return changed, claimed, err
		}
		for _, c := range chunks {
			after = max(after, c.id)
		}
		more = len(chunks) == sweepPage
	}
	return changed, claimed, nil
}

// choose claims the deliveries that a sweep settles, and returns them with their settlements. It also
// returns how many it skips because they are claimed already.
func (s *settler) choose(chunks []*chunk, f func(*webhook.Delivery) webhook.Verdict) (items []*item, ss []webhook.Settlement, skipped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range chunks {
		own, mine := s.chunks[c.id]
		if mine {
			c = own
		}
		for j := range c.items {
			it := &c.items[j]
			d := it.d
			verdict := f(&d)
			switch {
			case it.state == settled || it.state == damaged || verdict == 0:
			case !mine || it.state != free:
				skipped++
			case verdict != webhook.Return:
				d.Claim = s.hand(it)
				items, ss = append(items, it), append(ss, webhook.Settlement{Verdict: verdict, Delivery: d})
			}
		}
	}
	return items, ss, skipped
}
