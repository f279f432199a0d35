package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// settingsPage bounds what is read in one go: 4 MB.
const settingsPage = 64

// settings keeps settings.
type settings struct{ *database }

// Settings implements webhook.Store.
func (s *settings) Settings(ctx context.Context, prefix string) iter.Seq2[webhook.Setting, error] {
	return storekit.Pages(nil, func(after []byte) ([]webhook.Setting, []byte, error) {
		all, err := listed(ctx, s.database, func(r pgx.CollectableRow) (e webhook.Setting, err error) {
			var name []byte
			err = r.Scan(&name, &e.Value, &e.Version)
			e.Name = string(name)
			return e, err
		}, s.in(`SELECT name, value, version FROM S.setting
WHERE name >= $1 AND ($2::bytea IS NULL OR name > $2) AND substring(name FOR length($1)) = $1 ORDER BY name LIMIT $3`), []byte(prefix), after, settingsPage)
		if err != nil {
			return nil, nil, fmt.Errorf("pgqueue: reading settings: %w", err)
		}
		if len(all) < settingsPage {
			return all, nil, nil
		}
		return all, []byte(all[settingsPage-1].Name), nil
	})
}

// Set implements webhook.Store.
func (s *settings) Set(ctx context.Context, e webhook.Setting) (version uint64, err error) {
	if n := len(e.Name); n < 1 || n > 512 || len(e.Value) > webhook.MaxSetting {
		return 0, fmt.Errorf("pgqueue: setting with a name of %d bytes and a value of %d", n, len(e.Value))
	}
	if err := s.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	sql, args := s.in(`SELECT nextval('S.ids') WHERE NOT EXISTS (SELECT FROM S.setting WHERE name = $1)`), []any{[]byte(e.Name)}
	switch {
	case e.Version == 0 && e.Value != nil:
		sql, args = s.in(`INSERT INTO S.setting VALUES ($1, $2, nextval('S.ids')) ON CONFLICT DO NOTHING RETURNING version`), append(args, e.Value)
	case e.Version != 0 && e.Value != nil:
		sql, args = s.in(`UPDATE S.setting SET value = $2, version = nextval('S.ids') WHERE name = $1 AND version = $3 RETURNING version`), append(args, e.Value, int64(e.Version))
	case e.Version != 0:
		sql, args = s.in(`WITH gone AS (DELETE FROM S.setting WHERE name = $1 AND version = $2 RETURNING name)
SELECT nextval('S.ids') FROM gone`), append(args, int64(e.Version))
	}
	err = s.pool.QueryRow(ctx, sql, args...).Scan(&version)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, webhook.ErrConflict
	case err != nil:
		return 0, fmt.Errorf("pgqueue: storing a setting: %w", err)
	}
	return version, nil
}
