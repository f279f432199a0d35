package pgqueue

import (
	"bytes"
	"context"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/audience"
)

// NewRoster returns a roster in the schema of s, which all nodes share. It ends with s.
func NewRoster(s *Store) audience.Roster { return &roster{s.db} }

type roster struct{ db *database }

// UpdateAudience implements audience.Roster. Its transaction locks the record of the audience.
func (r *roster) UpdateAudience(ctx context.Context, id string, f func(*audience.Record, audience.Members) error) error {
	return r.db.call(ctx, "audience", func() error {
		return pgx.BeginFunc(ctx, r.db.pool, func(tx pgx.Tx) error {
			var before []byte // empty for an audience that was just created
			err := tx.QueryRow(ctx, r.db.in(`INSERT INTO S.audience AS a (id) VALUES ($1)
ON CONFLICT (id) DO UPDATE SET record = a.record RETURNING record`), []byte(id)).Scan(&before)
			var rec audience.Record
			if err == nil && len(before) > 0 {
				err = rec.UnmarshalBinary(before)
			}
			if err == nil {
				err = f(&rec, &members{r.db, ctx, tx, []byte(id)})
			}
			if err != nil {
				return err
			}
			after, err := rec.AppendBinary(nil)
			if err == nil && !bytes.Equal(after, before) {
				_, err = tx.Exec(ctx, r.db.in(`UPDATE S.audience SET record = $2 WHERE id = $1`), []byte(id), after)
			}
			return err
		})
	})
}

// Members implements audience.Roster.
func (r *roster) Members(ctx context.Context, id string) iter.Seq2[string, error] {
	return paged(ctx, r.db, "members", "", func(name string) string { return name }, func(row pgx.CollectableRow) (string, error) {
		m, err := scanMember(row)
		return m.User, err
	}, membersSQL, []byte(id))
}

// Audiences implements audience.Roster.
func (r *roster) Audiences(ctx context.Context) iter.Seq2[audience.Entry, error] {
	return paged(ctx, r.db, "audiences", "", func(e audience.Entry) string { return e.ID }, func(row pgx.CollectableRow) (e audience.Entry, err error) {
		var b []byte
		var rec audience.Record
		if err = row.Scan((*text)(&e.ID), &b); err == nil {
			err = rec.UnmarshalBinary(b)
		}
		e.Name, e.Generation = rec.Name, rec.Generation
		return e, err
	}, `SELECT id, record FROM S.audience WHERE id > $1 AND record <> '' ORDER BY id LIMIT $2`)
}

// members implements audience.Members in a transaction.
type members struct {
	db  *database
	ctx context.Context
	tx  pgx.Tx
	id  []byte
}

// Get implements audience.Members.
func (m *members) Get(users []string) ([]audience.Member, error) {
	return collect(m.ctx, m.tx, scanMember, m.db.in(`SELECT u, coalesce(generation, 0) FROM unnest($2::bytea[]) u
LEFT JOIN S.member ON audience = $1 AND member = u ORDER BY u`), m.id, bytesOf(users))
}

// Next implements audience.Members.
func (m *members) Next(after string, max int) ([]audience.Member, error) {
	return collect(m.ctx, m.tx, scanMember, m.db.in(membersSQL), m.id, []byte(after), max)
}

// Set implements audience.Members.
func (m *members) Set(users []string, generation uint64) (err error) {
	if generation == 0 {
		_, err = m.tx.Exec(m.ctx, m.db.in(`DELETE FROM S.member WHERE audience = $1 AND member = ANY ($2::bytea[])`), m.id, bytesOf(users))
	} else {
		_, err = m.tx.Exec(m.ctx, m.db.in(`INSERT INTO S.member (audience, member, generation) SELECT $1, u, $3 FROM unnest($2::bytea[]) u
ON CONFLICT (audience, member) DO UPDATE SET generation = excluded.generation`), m.id, bytesOf(users), int64(generation))
	}
	return err
}

func scanMember(row pgx.CollectableRow) (m audience.Member, err error) {
	err = row.Scan((*text)(&m.User), &m.Generation)
	return m, err
}

const membersSQL = `SELECT member, generation FROM S.member WHERE audience = $1 AND member > $2 ORDER BY member LIMIT $3`
