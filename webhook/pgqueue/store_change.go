package pgqueue

import (
	"context"
	"errors"

	"github.com/hookferry/analytics/webhook/store"
)

// Erase implements store.Store. It reads every chunk whose bytes contain the user id. Deliveries
// in chunks of other nodes count as claimed.
func (s *Store) Erase(ctx context.Context, user string) (erased, claimed int, err error) {
	if user == "" {
		return 0, 0, errors.New("pgqueue: erasure without a user")
	}
	eraseDead := func() error {
		tag, err := s.db.pool.Exec(ctx, s.db.in(`DELETE FROM S.dead WHERE user_id = $1`), []byte(user))
		erased += int(tag.RowsAffected())
		return err
	}
	err = s.db.call(ctx, "erasing", func() error {
		if err := eraseDead(); err != nil { // so that none is revived behind the sweep
			return err
		}
		var n int
		n, claimed, err = s.claimer.sweep(ctx, `position($2::bytea IN items) > 0`, user, func(d *store.Delivery) store.Verdict {
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
func (s *Store) Change(ctx context.Context, filter store.WaitingFilter, to store.Change) (n, claimed int, err error) {
	if err := to.Check(&filter); err != nil {
		return 0, 0, err
	}
	now := s.Now()
	err = s.db.call(ctx, "changing waiting deliveries", func() (err error) {
		n, claimed, err = s.claimer.sweep(ctx, `destination = $2`, filter.Destination, func(d *store.Delivery) store.Verdict {
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
