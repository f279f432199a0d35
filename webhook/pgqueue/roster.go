package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

var (
	_ webhook.Roster  = (*Queue)(nil)
	_ webhook.Rosters = (*Queue)(nil)
)

// Begin implements webhook.Roster.
func (q *Queue) Begin(ctx context.Context, audience string) (generation uint64, err error) {
	if err := q.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer q.calls.Leave()
	err = q.pool.QueryRow(ctx, q.sql.begin, []byte(audience)).Scan(&generation)
	if err != nil {
		return 0, fmt.Errorf("pgqueue: beginning a sync: %w", err)
	}
	return generation, nil
}

// errAgain says that somebody joined of whom it was not known.
var errAgain = errors.New("pgqueue: members have changed")

// Join implements webhook.Roster.
func (q *Queue) Join(ctx context.Context, audience string, generation uint64, users []string, announce func(string) ([]webhook.Delivery, error)) (int, error) {
	if err := q.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer q.calls.Leave()
	users = slices.Compact(slices.Sorted(slices.Values(users)))
	members := make([][]byte, len(users))
	for i, user := range users {
		if len(user) < 1 || len(user) > maxName {
			return 0, fmt.Errorf("pgqueue: member of %d bytes, not 1 to %d", len(user), maxName)
		}
		members[i] = []byte(user)
	}
	notices := make(map[string][]webhook.Delivery)
	for {
		// Who is new is found first, and announced while nothing is held; it is
		// found again if somebody has left meanwhile.
		if err := q.announce(ctx, audience, members, announce, notices); err != nil {
			return 0, err
		}
		n, err := q.join(ctx, audience, generation, members, notices)
		if !errors.Is(err, errAgain) {
			return n, err
		}
	}
}

// announce adds to notices what there is to say of those who are no members.
func (q *Queue) announce(ctx context.Context, audience string, members [][]byte, announce func(string) ([]webhook.Delivery, error), notices map[string][]webhook.Delivery) error {
	rows, err := q.pool.Query(ctx, q.sql.strangers, []byte(audience), members)
	if err != nil {
		return fmt.Errorf("pgqueue: joining: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return fmt.Errorf("pgqueue: joining: %w", err)
	}
	for _, name := range names {
		user := string(name)
		if _, told := notices[user]; told {
			continue
		}
		if notices[user], err = announce(user); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (q *Queue) join(ctx context.Context, audience string, generation uint64, members [][]byte, notices map[string][]webhook.Delivery) (joined int, err error) {
	err = q.within(ctx, func(t *transaction) error {
		joined = 0
		rows, err := t.conn.Query(ctx, q.sql.join, []byte(audience), members, int64(generation))
		if err != nil {
			return err
		}
		names, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (name []byte, err error) {
			var added bool
			if err := r.Scan(&name, &added); err != nil || added {
				return name, err
			}
			return nil, nil
		})
		if err != nil {
			return err
		}
		for _, name := range names {
			if name == nil {
				continue
			}
			ds, told := notices[string(name)]
			if !told {
				return errAgain
			}
			joined++
			if err := t.add(ds); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("pgqueue: joining: %w", err)
	}
	return joined, nil
}

// Leave implements webhook.Roster.
func (q *Queue) Leave(ctx context.Context, audience string, generation uint64, after string, max int, announce func(string) ([]webhook.Delivery, error)) (last string, left int, err error) {
	if err := q.calls.Enter(ctx); err != nil {
		return "", 0, err
	}
	defer q.calls.Leave()
	rows, err := q.pool.Query(ctx, q.sql.members, []byte(audience), []byte(after), max)
	if err != nil {
		return "", 0, fmt.Errorf("pgqueue: leaving: %w", err)
	}
	var (
		member  []byte
		seen    int64
		looked  int
		leaving [][]byte
	)
	_, err = pgx.ForEachRow(rows, []any{&member, &seen}, func() error {
		looked++
		last = string(member)
		if uint64(seen) < generation {
			leaving = append(leaving, slices.Clone(member))
		}
		return nil
	})
	if err != nil {
		return "", 0, fmt.Errorf("pgqueue: leaving: %w", err)
	}
	if looked < max {
		last = ""
	}
	notices := make(map[string][]webhook.Delivery, len(leaving))
	for _, member := range leaving {
		if notices[string(member)], err = announce(string(member)); err != nil {
			return "", 0, err
		}
	}
	if len(leaving) > 0 {
		if left, err = q.leave(ctx, audience, generation, leaving, notices); err != nil {
			return "", 0, fmt.Errorf("pgqueue: leaving: %w", err)
		}
	}
	return last, left, nil
}

func (q *Queue) leave(ctx context.Context, audience string, generation uint64, leaving [][]byte, notices map[string][]webhook.Delivery) (left int, err error) {
	err = q.within(ctx, func(t *transaction) error {
		rows, err := t.conn.Query(ctx, q.sql.leave, []byte(audience), leaving, int64(generation))
		if err != nil {
			return err
		}
		gone, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		if err != nil {
			return err
		}
		left = len(gone)
		for _, member := range gone {
			if err := t.add(notices[string(member)]); err != nil {
				return err
			}
		}
		return nil
	})
	return left, err
}

// Members implements webhook.Roster.
func (q *Queue) Members(ctx context.Context, audience, after string) iter.Seq2[string, error] {
	return storekit.Pages(after, func(after string) (page []string, next string, err error) {
		page, err = listed(ctx, q, func(r pgx.CollectableRow) (string, error) {
			var (
				member []byte
				seen   int64
			)
			err := r.Scan(&member, &seen)
			return string(member), err
		}, q.sql.members, []byte(audience), []byte(after), deadPage)
		if err != nil {
			return nil, "", fmt.Errorf("pgqueue: members: %w", err)
		}
		if len(page) == deadPage {
			next = page[len(page)-1]
		}
		return page, next, nil
	})
}

// Audiences implements webhook.Rosters.
func (q *Queue) Audiences(ctx context.Context) iter.Seq2[webhook.RosterAudience, error] {
	return storekit.Pages(nil, func(after []byte) (page []webhook.RosterAudience, next []byte, err error) {
		page, err = listed(ctx, q, func(r pgx.CollectableRow) (a webhook.RosterAudience, err error) {
			var (
				name       []byte
				generation int64
			)
			err = r.Scan(&name, &generation)
			a.Name, a.Generation = string(name), uint64(generation)
			return a, err
		}, q.sql.audiences, after, deadPage)
		if err != nil {
			return nil, nil, fmt.Errorf("pgqueue: audiences: %w", err)
		}
		if len(page) == deadPage {
			next = []byte(page[len(page)-1].Name)
		}
		return page, next, nil
	})
}

// listed returns what scan makes of the rows of a query.
func listed[T any](ctx context.Context, q *Queue, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	if err := q.calls.Enter(ctx); err != nil {
		return nil, err
	}
	defer q.calls.Leave()
	rows, err := q.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}
