package pgqueue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A roster keeps audiences.
type roster struct{ *database }

// change runs f on an audience in a transaction that locks it, and stores what f changes.
func (s *roster) change(ctx context.Context, id string, f func(pgx.Tx, *audience.Record) error) error {
	if err := s.calls.Enter(ctx); err != nil {
		return err
	}
	defer s.calls.Leave()
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var (
			before []byte
			rec    audience.Record
		)
		err := tx.QueryRow(ctx, s.in(`SELECT record FROM S.audience WHERE id = $1 FOR UPDATE`), []byte(id)).Scan(&before)
		if errors.Is(err, pgx.ErrNoRows) {
			return audience.ErrSuperseded
		}
		if err == nil && len(before) > 0 { // Begin adds an audience with no record
			err = rec.UnmarshalBinary(before)
		}
		if err == nil {
			err = f(tx, &rec)
		}
		if err != nil {
			return err
		}
		after, err := rec.AppendBinary(nil)
		if err == nil && !bytes.Equal(after, before) {
			_, err = tx.Exec(ctx, s.in(`UPDATE S.audience SET record = $2 WHERE id = $1`), []byte(id), after)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("pgqueue: audience: %w", err)
	}
	return nil
}

func bytesOf(users []string) [][]byte {
	all := make([][]byte, len(users))
	for i, user := range users {
		all[i] = []byte(user)
	}
	return all
}

// Begin implements audience.Roster.
func (s *roster) Begin(ctx context.Context, id, name string) (generation uint64, inFlight audience.Chunk, err error) {
	if err := audience.CheckID(id, name); err != nil {
		return 0, inFlight, err
	}
	if err := s.calls.Enter(ctx); err != nil {
		return 0, inFlight, err
	}
	_, err = s.pool.Exec(ctx, s.in(`INSERT INTO S.audience (id) VALUES ($1) ON CONFLICT DO NOTHING`), []byte(id))
	s.calls.Leave()
	if err != nil {
		return 0, inFlight, fmt.Errorf("pgqueue: audience: %w", err)
	}
	err = s.change(ctx, id, func(_ pgx.Tx, rec *audience.Record) error {
		if rec.Generation == 0 {
			rec.Name = name
		}
		rec.Generation++
		generation, inFlight = rec.Generation, rec.InFlight
		return nil
	})
	return generation, inFlight, err
}

// Join implements audience.Roster.
func (s *roster) Join(ctx context.Context, id string, generation uint64, users []string) (c audience.Chunk, err error) {
	if err := audience.CheckUsers(users); err != nil {
		return c, err
	}
	users = slices.Compact(slices.Sorted(slices.Values(users)))
	err = s.change(ctx, id, func(tx pgx.Tx, rec *audience.Record) error {
		if err := rec.Idle(generation); err != nil {
			return err
		}
		joining, err := collect(ctx, tx, scanName, s.in(`SELECT u FROM unnest($2::bytea[]) u
WHERE NOT EXISTS (SELECT FROM S.member WHERE audience = $1 AND member = u) ORDER BY u`), []byte(id), bytesOf(users))
		if err == nil && len(joining) < len(users) {
			_, err = tx.Exec(ctx, s.in(`UPDATE S.member SET generation = $3 WHERE audience = $1 AND member = ANY ($2::bytea[]) AND generation <> $3`), []byte(id), bytesOf(users), int64(generation))
		}
		rec.InFlight = audience.NewChunk(generation, false, joining)
		c = rec.InFlight
		return err
	})
	return c, err
}

// Leave implements audience.Roster.
func (s *roster) Leave(ctx context.Context, id string, generation uint64, after string, max int) (c audience.Chunk, last string, err error) {
	err = s.change(ctx, id, func(tx pgx.Tx, rec *audience.Record) error {
		if err := rec.Idle(generation); err != nil {
			return err
		}
		var leaving []string
		n := 0
		names, err := collect(ctx, tx, func(r pgx.CollectableRow) (string, error) {
			var (
				name []byte
				seen int64
			)
			err := r.Scan(&name, &seen)
			if n++; uint64(seen) != generation {
				leaving = append(leaving, string(name))
			}
			return string(name), err
		}, s.in(membersSQL), []byte(id), []byte(after), max)
		if err == nil && n == max && n > 0 {
			last = names[n-1]
		}
		rec.InFlight = audience.NewChunk(generation, true, leaving)
		c = rec.InFlight
		return err
	})
	return c, last, err
}

// Confirm implements audience.Roster.
func (s *roster) Confirm(ctx context.Context, id string, generation uint64, n int) error {
	return s.change(ctx, id, func(tx pgx.Tx, rec *audience.Record) (err error) {
		if err := rec.Owned(generation); err != nil {
			return err
		}
		c := rec.InFlight
		switch users := bytesOf(c.Users[:min(n, len(c.Users))]); {
		case len(users) == 0:
		case c.Left:
			_, err = tx.Exec(ctx, s.in(`DELETE FROM S.member WHERE audience = $1 AND member = ANY ($2::bytea[])`), []byte(id), users)
		default:
			_, err = tx.Exec(ctx, s.in(`INSERT INTO S.member (audience, member, generation) SELECT $1, u, $3 FROM unnest($2::bytea[]) u
ON CONFLICT (audience, member) DO UPDATE SET generation = excluded.generation`), []byte(id), users, int64(c.Generation))
		}
		rec.InFlight = c.Rest(n)
		return err
	})
}

// Members implements audience.Roster.
func (s *roster) Members(ctx context.Context, id, after string) iter.Seq2[string, error] {
	return storekit.Pages(after, func(after string) (names []string, next string, err error) {
		names, err = listed(ctx, s.database, func(r pgx.CollectableRow) (string, error) {
			var (
				name []byte
				seen int64
			)
			err := r.Scan(&name, &seen)
			return string(name), err
		}, s.in(membersSQL), []byte(id), []byte(after), page)
		if err != nil {
			return nil, "", fmt.Errorf("pgqueue: members: %w", err)
		}
		if len(names) == page {
			next = names[page-1]
		}
		return names, next, nil
	})
}

// Audiences implements audience.Roster.
func (s *roster) Audiences(ctx context.Context) iter.Seq2[audience.Entry, error] {
	return storekit.Pages("", func(after string) (all []audience.Entry, next string, err error) {
		all, err = listed(ctx, s.database, func(r pgx.CollectableRow) (audience.Entry, error) {
			var (
				id, b []byte
				rec   audience.Record
			)
			err := r.Scan(&id, &b)
			if err == nil {
				err = rec.UnmarshalBinary(b)
			}
			return audience.Entry{ID: string(id), Name: rec.Name, Generation: rec.Generation}, err
		}, s.in(`SELECT id, record FROM S.audience WHERE id > $1 AND record <> '' ORDER BY id LIMIT $2`), []byte(after), page)
		if err != nil {
			return nil, "", fmt.Errorf("pgqueue: audiences: %w", err)
		}
		if len(all) == page {
			next = all[page-1].ID
		}
		return all, next, nil
	})
}

const membersSQL = `SELECT member, generation FROM S.member WHERE audience = $1 AND member > $2 ORDER BY member LIMIT $3`
