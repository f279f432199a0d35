package pgqueue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/store"
)

// Now implements store.Store.
func (s *Store) Now() time.Time { return s.heartbeat.now().UTC().Truncate(time.Microsecond) }

// Ready returns nil, or why the store cannot be used at the moment: two heartbeats in a row, of the
// last five seconds or less, were not stored.
func (s *Store) Ready() error { return s.heartbeat.ready() }

// Present implements store.Shared.
func (s *Store) Present(note func() ([]byte, bool)) { s.heartbeat.present(note) }

// Nodes implements store.Shared.
func (s *Store) Nodes(ctx context.Context) ([]store.Node, error) {
	self := s.memory.nodeNow()
	return listed(ctx, s.db, "listing nodes", func(r pgx.CollectableRow) (n store.Node, err error) {
		var id int64
		err = r.Scan(&id, &n.Name, &n.Opened, &n.Seen, &n.Note)
		n.Self, n.Opened, n.Seen = id == self, n.Opened.UTC(), n.Seen.UTC()
		return n, err
	}, `SELECT id, name, opened, seen, note FROM S.node ORDER BY opened, id LIMIT 1000`)
}

// Failing implements store.Maintained.
func (s *Store) Failing() map[string]time.Time { return s.maintainer.steps.Failing() }
