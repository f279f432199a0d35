package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

// Settings implements webhook.Store.
func (s *Store) Settings(ctx context.Context, prefix string) iter.Seq2[webhook.Setting, error] {
	return paged(ctx, s.database, "reading settings", "", func(e webhook.Setting) string { return e.Name },
		func(r pgx.CollectableRow) (e webhook.Setting, err error) {
			var name []byte
			err = r.Scan(&name, &e.Value, &e.Version)
			e.Name = string(name)
			return e, err
		}, `SELECT name, value, version FROM S.setting
WHERE name >= $1 AND name > $2 AND substring(name FOR length($1)) = $1 ORDER BY name LIMIT $3`, []byte(prefix))
}

// Set implements webhook.Store.
func (s *Store) Set(ctx context.Context, e webhook.Setting) (version uint64, err error) {
	if err := e.Check(); err != nil {
		return 0, fmt.Errorf("pgqueue: %w", err)
	}
	sql, args := `SELECT nextval('S.ids') WHERE NOT EXISTS (SELECT FROM S.setting WHERE name = $1)`, []any{[]byte(e.Name)}
	switch {
	case e.Version == 0 && e.Value != nil:
		sql, args = `INSERT INTO S.setting VALUES ($1, $2, nextval('S.ids')) ON CONFLICT DO NOTHING RETURNING version`, append(args, e.Value)
	case e.Version != 0 && e.Value != nil:
		sql = `UPDATE S.setting SET value = $2, version = nextval('S.ids') WHERE name = $1 AND version = $3 RETURNING version`
		args = append(args, e.Value, int64(e.Version))
	case e.Version != 0:
		sql = `WITH gone AS (DELETE FROM S.setting WHERE name = $1 AND version = $2 RETURNING name) SELECT nextval('S.ids') FROM gone`
		args = append(args, int64(e.Version))
	}
	err = s.call(ctx, "storing a setting", func() error {
		err := s.pool.QueryRow(ctx, s.in(sql), args...).Scan(&version)
		if errors.Is(err, pgx.ErrNoRows) {
			return webhook.ErrConflict
		}
		return err
	})
	return version, err
}
