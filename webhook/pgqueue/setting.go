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

// Settings implements webhook.Store.
func (s *Store) Settings(ctx context.Context, prefix string) iter.Seq2[webhook.Setting, error] {
	return storekit.Pages(nil, func(after []byte) ([]webhook.Setting, []byte, error) {
		all, err := listed(ctx, s, func(r pgx.CollectableRow) (e webhook.Setting, err error) {
			var name []byte
			err = r.Scan(&name, &e.Value, &e.Version)
			e.Name = string(name)
			return e, err
		}, s.sql.settings, []byte(prefix), after, settingsPage)
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
func (s *Store) Set(ctx context.Context, e webhook.Setting) (version uint64, err error) {
	if n := len(e.Name); n < 1 || n > 512 || len(e.Value) > webhook.MaxSetting {
		return 0, fmt.Errorf("pgqueue: setting with a name of %d bytes and a value of %d", n, len(e.Value))
	}
	if err := s.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	sql, args := s.sql.absentSetting, []any{[]byte(e.Name)}
	switch {
	case e.Version == 0 && e.Value != nil:
		sql, args = s.sql.addSetting, append(args, e.Value)
	case e.Version != 0 && e.Value != nil:
		sql, args = s.sql.setSetting, append(args, e.Value, int64(e.Version))
	case e.Version != 0:
		sql, args = s.sql.removeSetting, append(args, int64(e.Version))
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
