package pgqueue

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/audience"
)

// A roster stores the members of audiences.
type roster struct{ *database }

// change runs f on the record of an audience, in a transaction that locks it, and stores what f
// changes. With add it creates an audience that does not exist.
func (s *roster) change(ctx context.Context, id string, add bool, f func(pgx.Tx, *audience.Record) error) error {
	return s.call(ctx, "audience", func() error {
		if add {
			if _, err := s.pool.Exec(ctx, s.in(`INSERT INTO S.audience (id) VALUES ($1) ON CONFLICT DO NOTHING`), []byte(id)); err != nil {
				return err
			}
		}
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			var (
				before []byte
				rec    audience.Record
			)
			err := tx.QueryRow(ctx, s.in(`SELECT record FROM S.audience WHERE id = $1 FOR UPDATE`), []byte(id)).Scan(&before)
			if errors.Is(err, pgx.ErrNoRows) {
				return audience.ErrSuperseded
			}
			if err == nil && len(before) > 0 { // otherwise the audience was just created
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
	})
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
	err = s.change(ctx, id, true, func(_ pgx.Tx, rec *audience.Record) error {
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
	err = s.change(ctx, id, false, func(tx pgx.Tx, rec *audience.Record) error {
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
	err = s.change(ctx, id, false, func(tx pgx.Tx, rec *audience.Record) error {
		if err := rec.Idle(generation); err != nil {
			return err
		}
		var leaving []string
		n := 0
		names, err := collect(ctx, tx, func(r pgx.CollectableRow) (string, error) {
			name, seen, err := scanMember(r)
			if n++; seen != generation {
				leaving = append(leaving, name)
			}
			return name, err
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
	return s.change(ctx, id, false, func(tx pgx.Tx, rec *audience.Record) (err error) {
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
	return paged(ctx, s.database, "members", after, func(name string) string { return name }, func(r pgx.CollectableRow) (string, error) {
		name, _, err := scanMember(r)
		return name, err
	}, membersSQL, []byte(id))
}

// Audiences implements audience.Roster.
func (s *roster) Audiences(ctx context.Context) iter.Seq2[audience.Entry, error] {
	return paged(ctx, s.database, "audiences", "", func(e audience.Entry) string { return e.ID }, func(r pgx.CollectableRow) (e audience.Entry, err error) {
		var id, b []byte
		var rec audience.Record
		if err = r.Scan(&id, &b); err == nil {
			err = rec.UnmarshalBinary(b)
		}
		return audience.Entry{ID: string(id), Name: rec.Name, Generation: rec.Generation}, err
	}, `SELECT id, record FROM S.audience WHERE id > $1 AND record <> '' ORDER BY id LIMIT $2`)
}

func scanMember(r pgx.CollectableRow) (name string, generation uint64, err error) {
	var b []byte
	var seen int64
	err = r.Scan(&b, &seen)
	return string(b), uint64(seen), err
}

const membersSQL = `SELECT member, generation FROM S.member WHERE audience = $1 AND member > $2 ORDER BY member LIMIT $3`
