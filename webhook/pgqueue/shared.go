package pgqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

var (
	_ webhook.Pauses    = (*Queue)(nil)
	_ webhook.Presenter = (*Queue)(nil)
	_ webhook.Releaser  = (*Queue)(nil)
)

// SetPaused implements webhook.Pauses.
func (q *Queue) SetPaused(ctx context.Context, destination string, paused bool) error {
	if n := len(destination); n < 1 || n > maxName {
		return fmt.Errorf("pgqueue: destination of %d bytes, not 1 to %d", n, maxName)
	}
	if err := q.calls.Enter(ctx); err != nil {
		return err
	}
	defer q.calls.Leave()
	change := q.sql.resume
	if paused {
		change = q.sql.pause
	}
	if _, err := q.pool.Exec(ctx, change, []byte(destination)); err != nil {
		return fmt.Errorf("pgqueue: storing a pause: %w", err)
	}
	return nil
}

// Paused implements webhook.Pauses.
func (q *Queue) Paused(ctx context.Context) (map[string]time.Time, error) {
	if err := q.calls.Enter(ctx); err != nil {
		return nil, err
	}
	defer q.calls.Leave()
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	rows, err := q.pool.Query(ctx, q.sql.paused)
	if err != nil {
		return nil, fmt.Errorf("pgqueue: reading pauses: %w", err)
	}
	paused := make(map[string]time.Time)
	var (
		name  []byte
		since time.Time
	)
	if _, err := pgx.ForEachRow(rows, []any{&name, &since}, func() error {
		paused[string(name)] = since.UTC()
		return nil
	}); err != nil {
		return nil, fmt.Errorf("pgqueue: reading pauses: %w", err)
	}
	return paused, nil
}

// Present implements webhook.Presenter.
func (q *Queue) Present(note func() []byte) {
	q.mu.Lock()
	q.note = note
	q.mu.Unlock()
	select {
	case q.presented <- struct{}{}:
	default:
	}
}

// Nodes implements webhook.Presenter.
func (q *Queue) Nodes(ctx context.Context) ([]webhook.Node, error) {
	self := q.nodeNow()
	nodes, err := listed(ctx, q, func(r pgx.CollectableRow) (n webhook.Node, err error) {
		var id int64
		err = r.Scan(&id, &n.Name, &n.Opened, &n.Seen, &n.Note)
		n.Self, n.Opened, n.Seen = id == self, n.Opened.UTC(), n.Seen.UTC()
		return n, err
	}, q.sql.nodes)
	if err != nil {
		return nil, fmt.Errorf("pgqueue: listing nodes: %w", err)
	}
	return nodes, nil
}
