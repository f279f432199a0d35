package pgqueue

import (
	"bytes"
	"context"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/audience"
)

// UpdateAudience implements audience.Roster. Its transaction locks the record of the audience.
func (s *Store) UpdateAudience(ctx context.Context, id string, f func(*audience.Record, audience.Members) error) error {
	return s.db.call(ctx, "audience", func() error {
		return pgx.BeginFunc(ctx, s.db.pool, func(tx pgx.Tx) error {
			var before []byte // empty for an audience that was just created
			err := tx.QueryRow(ctx, s.db.in(`INSERT INTO S.audience AS a (id) VALUES ($1)
ON CONFLICT (id) DO UPDATE SET record = a.record RETURNING record`), []byte(id)).Scan(&before)
			var rec audience.Record
			if err == nil && len(before) > 0 {
				err = rec.UnmarshalBinary(before)
			}
			if err == nil {
				err = f(&rec, &members{s.db, ctx, tx, []byte(id)})
			}
			if err != nil {
				return err
			}
			after, err := rec.AppendBinary(nil)
			if err == nil && !bytes.Equal(after, before) {
				_, err = tx.Exec(ctx, s.db.in(`UPDATE S.audience SET record = $2 WHERE id = $1`), []byte(id), after)
			}
			return err
		})
	})
}

// Members implements audience.Roster.
func (s *Store) Members(ctx context.Context, id string) iter.Seq2[string, error] {
	return paged(ctx, s.db, "members", "", func(name string) string { return name }, func(r pgx.CollectableRow) (string, error) {
		m, err := scanMember(r)
		return m.User, err
	}, membersSQL, []byte(id))
}

// Audiences implements audience.Roster.
func (s *Store) Audiences(ctx context.Context) iter.Seq2[audience.Entry, error] {
	return paged(ctx, s.db, "audiences", "", func(e audience.Entry) string { return e.ID }, func(r pgx.CollectableRow) (e audience.Entry, err error) {
		var b []byte
		var rec audience.Record
		if err = r.Scan((*text)(&e.ID), &b); err == nil {
			err = rec.UnmarshalBinary(b)
		}
		e.Name, e.Generation = rec.Name, rec.Generation
		return e, err
	}, `SELECT id, record FROM S.audience WHERE id > $1 AND record <> '' ORDER BY id LIMIT $2`)
}
