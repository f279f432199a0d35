package pgqueue

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/semaphore"

	"github.com/hookferry/analytics/webhook/store"
)

// Erase implements store.Store. It reads every chunk whose bytes contain the user id. Deliveries
// in chunks of other nodes count as claimed.
func (s *claimer) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("pgqueue: erasure without a user")
	}
	eraseDead := func() error {
		tag, err := s.pool.Exec(ctx, s.in(`DELETE FROM S.dead WHERE user_id = $1`), []byte(user))
		erased += int(tag.RowsAffected())
		return err
	}
	err = s.call(ctx, "erasing", func() error {
		if err := eraseDead(); err != nil { // so that none is revived behind the sweep
			return err
		}
		var n int
		n, claimed, err = s.sweep(ctx, `position($2::bytea IN items) > 0`, user, func(d *store.Delivery) store.Verdict {
			if d.User != user {
				return 0
			}
			return store.Done
		})
		if erased += n; err != nil {
			return err
		}
		return eraseDead() // other nodes may have buried deliveries before the sweep has seen them
	})
	return erased, claimed, err
}

// Change implements store.Store. It reads every chunk of the destination. Deliveries in chunks of
// other nodes count as claimed.
func (s *claimer) Change(ctx context.Context, filter store.WaitingFilter, to store.Change) (n, claimed int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	now := s.Now()
	err = s.call(ctx, "changing waiting deliveries", func() (err error) {
		n, claimed, err = s.sweep(ctx, `destination = $2`, filter.Destination, func(d *store.Delivery) store.Verdict {
			switch {
			case !filter.Match(d):
				return 0
			case to == store.Discarded:
				return store.Done
			case d.Hasten(now):
				return store.Retry
			}
			return store.Return
		})
		return err
	})
	return n, claimed, err
}

// sweep goes through the chunks that an SQL condition selects by a text, $2, in the order of their ids.
// It settles the deliveries for which f returns Done or Retry. It counts them, and those that are claimed
// already and for which f does not return 0. Between two pages, this node fetches and settles.
func (s *claimer) sweep(ctx context.Context, where, text string, f func(*store.Delivery) store.Verdict) (changed, claimed int, err error) {
	defer s.hearAny()
	sql := s.in(`SELECT id FROM S.chunk WHERE id > $1 AND ` + where + ` ORDER BY id LIMIT $3`)
	for after := int64(0); ; {
		// This query may read the whole table. So it is not in the transaction that claims chunks.
		ids, err := collect(ctx, s.pool, pgx.RowTo[int64], sql, after, []byte(text), chunkPage)
		if err != nil || len(ids) == 0 {
			return changed, claimed, err
		}
		n, skipped, err := s.sweepSome(ctx, ids, f)
		if changed, claimed = changed+n, claimed+skipped; err != nil {
			return changed, claimed, err
		}
		after = ids[len(ids)-1]
	}
}

// sweepSome does the same for some chunks. It claims those that no node has claimed, settles deliveries
// in chunks of this node, and gives back what it has claimed. Meanwhile this node hands out only
// deliveries that it puts itself.
func (s *claimer) sweepSome(ctx context.Context, ids []int64, f func(*store.Delivery) store.Verdict) (changed, claimed int, err error) {
	for _, held := range []*semaphore.Weighted{s.fetching, s.settling} {
		if err := held.Acquire(ctx, 1); err != nil {
			return 0, 0, err
		}
		defer held.Release(1)
	}
	chunks, err := s.claim(ctx, func(*pgx.Batch) {}, sweepSQL, ids)
	if err != nil {
		return 0, 0, err
	}
	var items []*item
	var ss []store.Settlement
	s.mu.Lock()
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
				claimed++
			case verdict != store.Return:
				d.Claim = s.hand(it)
				items, ss = append(items, it), append(ss, store.Settlement{Verdict: verdict, Delivery: d})
			}
		}
	}
	s.mu.Unlock()
	changed, err = s.settleAll(ctx, ss)
	s.mu.Lock()
	s.takeBack(items[changed:]...)
	for _, c := range chunks {
		if c.owner == 0 {
			c.used = time.Time{} // so that release gives it back
		}
	}
	s.mu.Unlock()
	if err == nil {
		err = s.release(ctx, idleClaim)
	}
	return changed, claimed, err
}

const sweepSQL = `WITH picked AS MATERIALIZED (
	SELECT c.part, c.id, c.node FROM S.chunk c, unnest($2::bigint[]) u (id)
	WHERE c.part = (u.id & 3)::smallint AND c.id = u.id ORDER BY c.id FOR UPDATE OF c
)` + claimPicked
