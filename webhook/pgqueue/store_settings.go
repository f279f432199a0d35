package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/store"
)

// Settings implements store.Store.
func (s *Store) Settings(ctx context.Context, prefix string) iter.Seq2[store.Setting, error] {
	return paged(ctx, s.db, "reading settings", "", func(e store.Setting) string { return e.Name },
		func(r pgx.CollectableRow) (e store.Setting, err error) {
			err = r.Scan((*text)(&e.Name), &e.Value, &e.Version)
			return e, err
		}, `SELECT name, value, version FROM S.setting
WHERE name >= $1 AND name > $2 AND substring(name FOR length($1)) = $1 ORDER BY name LIMIT $3`, []byte(prefix))
}

// Set implements store.Store.
func (s *Store) Set(ctx context.Context, e store.Setting) (version uint64, err error) {
	if err := e.Check(); err != nil {
		return 0, fmt.Errorf("pgqueue: %w", err)
	}
	err = s.db.call(ctx, "storing a setting", func() error {
		err := s.db.pool.QueryRow(ctx, s.db.in(setSQL), []byte(e.Name), e.Value, int64(e.Version)).Scan(&version)
		if errors.Is(err, pgx.ErrNoRows) {
			return store.ErrConflict
		}
		return err
	})
	return version, err
}

// setSQL removes version $3 of the setting $1, and stores it anew unless the value $2 is null. It returns
// the new version, or no row if there is a conflict.
const setSQL = `WITH old AS (
	DELETE FROM S.setting WHERE name = $1 AND version = $3 RETURNING name
), new AS (
	SELECT nextval('S.ids') AS version WHERE EXISTS (SELECT FROM old)
		OR $3::bigint = 0 AND NOT EXISTS (SELECT FROM S.setting WHERE name = $1)
), stored AS (
	INSERT INTO S.setting SELECT $1, $2::bytea, version FROM new WHERE $2 IS NOT NULL ON CONFLICT DO NOTHING RETURNING version
)
SELECT version FROM stored UNION ALL SELECT version FROM new WHERE $2 IS NULL`
