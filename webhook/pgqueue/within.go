package pgqueue

import (
	"context"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

// within runs fn in a transaction, and stores there the deliveries that it returns, whether they
// were put before or not. Then it tells the caller of Heads, and other nodes, of them.
func (s *Store) within(ctx context.Context, fn func(pgx.Tx) ([]webhook.Delivery, error)) error {
	var drafts []*draft
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		ds, err := fn(tx)
		if err != nil || len(ds) == 0 {
			return err
		}
		all := make([]*fresh, len(ds))
		for i := range ds {
			f, _, err := newFresh(&ds[i], nil)
			if err != nil {
				return err
			}
			all[i] = &f
		}
		drafts = draftsOf(all, time.Now())
		var b pgx.Batch
		s.queuePut(&b, 0, drafts, true, new(stored))
		return tx.SendBatch(ctx, &b).Close()
	})
	if err != nil {
		return err
	}
	names := make(map[string]bool)
	s.mu.Lock()
	for _, d := range drafts {
		s.report(d.line, d.due, len(d.items))
		names[d.line.destination] = true
	}
	s.mu.Unlock()
	if len(names) > 0 {
		s.heard(maps.Keys(names))
	}
	return nil
}

// collect returns what scan makes of the rows of a query.
func collect[T any](ctx context.Context, q querier, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// listed is collect for a call by itself.
func listed[T any](ctx context.Context, s *Store, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	if err := s.calls.Enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.Leave()
	return collect(ctx, s.pool, scan, sql, args...)
}

func scanName(r pgx.CollectableRow) (name string, err error) {
	var b []byte
	err = r.Scan(&b)
	return string(b), err
}
