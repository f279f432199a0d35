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
	_ webhook.Roster  = (*Store)(nil)
	_ webhook.Rosters = (*Store)(nil)
)

// Begin implements webhook.Roster.
func (s *Store) Begin(ctx context.Context, audience string) (generation uint64, err error) {
	if err := s.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	err = s.pool.QueryRow(ctx, s.sql.begin, []byte(audience)).Scan(&generation)
	if err != nil {
		return 0, fmt.Errorf("pgqueue: beginning a sync: %w", err)
	}
	return generation, nil
}

// maxName is how many bytes a member of an audience has at most.
const maxName = 255

// errAgain says that somebody joined of whom it was not known.
var errAgain = errors.New("pgqueue: members have changed")

// Join implements webhook.Roster.
func (s *Store) Join(ctx context.Context, audience string, generation uint64, users []string, announce func(string) ([]webhook.Delivery, error)) (int, error) {
	if err := s.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
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
		if err := s.announce(ctx, audience, members, announce, notices); err != nil {
			return 0, err
		}
		n, err := s.join(ctx, audience, generation, members, notices)
		if !errors.Is(err, errAgain) {
			return n, err
		}
	}
}

// announce adds to notices what there is to say of those who are no members.
func (s *Store) announce(ctx context.Context, audience string, members [][]byte, announce func(string) ([]webhook.Delivery, error), notices map[string][]webhook.Delivery) error {
	names, err := collect(ctx, s.pool, scanName, s.sql.strangers, []byte(audience), members)
	if err != nil {
		return fmt.Errorf("pgqueue: joining: %w", err)
	}
	for _, user := range names {
		if _, told := notices[user]; told {
			continue
		}
		if notices[user], err = announce(user); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (s *Store) join(ctx context.Context, audience string, generation uint64, members [][]byte, notices map[string][]webhook.Delivery) (joined int, err error) {
	err = s.within(ctx, func(tx pgx.Tx) (all []webhook.Delivery, err error) {
		names, err := collect(ctx, tx, func(r pgx.CollectableRow) (name string, err error) {
			var (
				b     []byte
				added bool
			)
			if err := r.Scan(&b, &added); err != nil || !added {
				return "", err
			}
			return string(b), nil
		}, s.sql.join, []byte(audience), members, int64(generation))
		if err != nil {
			return nil, err
		}
		joined = 0
		for _, name := range names {
			if name == "" { // a member already
				continue
			}
			ds, told := notices[name]
			if !told {
				return nil, errAgain
			}
			joined++
			all = append(all, ds...)
		}
		return all, nil
	})
	if err != nil {
		return 0, fmt.Errorf("pgqueue: joining: %w", err)
	}
	return joined, nil
}

// Leave implements webhook.Roster.
func (s *Store) Leave(ctx context.Context, audience string, generation uint64, after string, max int, announce func(string) ([]webhook.Delivery, error)) (last string, left int, err error) {
	if err := s.calls.Enter(ctx); err != nil {
		return "", 0, err
	}
	defer s.calls.Leave()
	members, err := collect(ctx, s.pool, scanMember, s.sql.members, []byte(audience), []byte(after), max)
	if err != nil {
		return "", 0, fmt.Errorf("pgqueue: leaving: %w", err)
	}
	if len(members) == max && max > 0 {
		last = members[max-1].name
	}
	var leaving [][]byte
	notices := make(map[string][]webhook.Delivery)
	for _, m := range members {
		if m.seen >= generation {
			continue
		}
		leaving = append(leaving, []byte(m.name))
		if notices[m.name], err = announce(m.name); err != nil {
			return "", 0, err
		}
	}
	if len(leaving) == 0 {
		return last, 0, nil
	}
	err = s.within(ctx, func(tx pgx.Tx) (all []webhook.Delivery, err error) {
		gone, err := collect(ctx, tx, scanName, s.sql.leave, []byte(audience), leaving, int64(generation))
		left = len(gone)
		for _, name := range gone {
			all = append(all, notices[name]...)
		}
		return all, err
	})
	if err != nil {
		return "", 0, fmt.Errorf("pgqueue: leaving: %w", err)
	}
	return last, left, nil
}

// A member of an audience, and the generation in which it was seen.
type member struct {
	name string
	seen uint64
}

func scanMember(r pgx.CollectableRow) (m member, err error) {
	var b []byte
	err = r.Scan(&b, &m.seen)
	m.name = string(b)
	return m, err
}

// Members implements webhook.Roster.
func (s *Store) Members(ctx context.Context, audience, after string) iter.Seq2[string, error] {
	return storekit.Pages(after, func(after string) (names []string, next string, err error) {
		members, err := listed(ctx, s, scanMember, s.sql.members, []byte(audience), []byte(after), page)
		if err != nil {
			return nil, "", fmt.Errorf("pgqueue: members: %w", err)
		}
		for _, m := range members {
			names = append(names, m.name)
		}
		if len(names) == page {
			next = names[page-1]
		}
		return names, next, nil
	})
}

// Audiences implements webhook.Rosters.
func (s *Store) Audiences(ctx context.Context) iter.Seq2[webhook.RosterAudience, error] {
	return storekit.Pages(nil, func(after []byte) (all []webhook.RosterAudience, next []byte, err error) {
		all, err = listed(ctx, s, func(r pgx.CollectableRow) (a webhook.RosterAudience, err error) {
			var (
				name       []byte
				generation int64
			)
			err = r.Scan(&name, &generation)
			a.Name, a.Generation = string(name), uint64(generation)
			return a, err
		}, s.sql.audiences, after, page)
		if err != nil {
			return nil, nil, fmt.Errorf("pgqueue: audiences: %w", err)
		}
		if len(all) == page {
			next = []byte(all[page-1].Name)
		}
		return all, next, nil
	})
}
