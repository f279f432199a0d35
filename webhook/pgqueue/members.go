package pgqueue

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/audience"
)

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

func scanMember(r pgx.CollectableRow) (m audience.Member, err error) {
	err = r.Scan((*text)(&m.User), &m.Generation)
	return m, err
}

const membersSQL = `SELECT member, generation FROM S.member WHERE audience = $1 AND member > $2 ORDER BY member LIMIT $3`
