package pgqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A Store is a webhook.Store, webhook.Shared and audience.Roster. Its parts:
//
//   - database accesses the schema. memory has the claimed chunks, and what this node knows of the
//     others.
//   - claimer claims chunks and gives them back. putter stores deliveries, fetcher hands them out,
//     settler stores their outcomes, and sweeper changes and erases waiting ones.
//   - heartbeat proves that this node is alive, and takes over from dead nodes.
//   - letters manages dead letters, reader lists waiting deliveries, settings manages settings, and
//     roster manages audiences.
type Store struct {
	*database
	*memory
	*claimer
	*putter
	*fetcher
	*settler
	*sweeper
	*heartbeat
	*letters
	*reader
	*settings
	*roster
	farewell time.Duration // how long Close waits for the database
}

var (
	_ webhook.Store   = (*Store)(nil)
	_ webhook.Shared  = (*Store)(nil)
	_ webhook.Outbox  = (*Store)(nil)
	_ audience.Roster = (*Store)(nil)
)

// Open opens the store in the database that pool connects to. The caller closes pool after the
// Store. A Store uses up to eight connections of the pool, and one more for each list that is being
// read.
func Open(ctx context.Context, pool *pgxpool.Pool, c Config) (*Store, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	name, err := identifier(c.Schema)
	if err != nil {
		return nil, err
	}
	db := &database{config: c, pool: pool, schema: name, lock: lockOf(c.Schema, "dedup")}
	mem := &memory{
		database: db, changed: make(chan struct{}, 1),
		queues: make(map[queueKey]*queue), chunks: make(map[int64]*chunk), claims: make(map[uint64]*item), news: make(map[string]bool),
	}
	claims := &claimer{memory: mem, fetching: make(semaphore, 1)}
	put := &putter{claimer: claims, alone: make(semaphore, 1)}
	settle := &settler{putter: put, settling: make(semaphore, 1), unsure: make(map[*chunk]bool)}
	s := &Store{
		database: db, memory: mem, claimer: claims, putter: put, fetcher: &fetcher{claims}, settler: settle, sweeper: &sweeper{settle},
		heartbeat: &heartbeat{claimer: claims, janitor: janitor{db}, presented: make(chan struct{}, 1)},
		letters:   &letters{put}, reader: &reader{mem}, settings: &settings{db}, roster: newRoster(db),
		farewell: min(c.Claim, writeTimeout),
	}
	if err := s.begin(ctx); err != nil {
		return nil, fmt.Errorf("pgqueue: opening schema %q: %w", c.Schema, oneLine(err))
	}
	return s, nil
}

// begin brings the schema up to date, makes this process a node, and starts the goroutines that
// Close waits for.
func (s *Store) begin(ctx context.Context) error {
	if err := checkIsolation(ctx, s.pool); err != nil {
		return err
	}
	if err := s.migrate(ctx); err != nil {
		return err
	}
	if err := s.enroll(ctx); err != nil {
		return err
	}
	l := listener{s.memory}
	var conn *pgx.Conn
	if !s.config.NoListen {
		var err error
		if conn, err = l.connect(ctx); err != nil {
			return err
		}
	}
	s.background, s.stop = context.WithCancel(context.Background())
	s.puts = storekit.NewBatcher(2, maxBatch, s.storeBatch)
	s.goroutines.Go(s.live)
	s.goroutines.Go(s.maintain)
	if conn != nil {
		s.goroutines.Go(func() { l.listen(conn) })
	}
	return nil
}

// checkIsolation returns an error unless transactions of pool are READ COMMITTED, PostgreSQL's
// default. At a stricter level, a transaction fails if another node claims or settles a chunk at
// the same time. This package handles that case itself, by SKIP LOCKED and by conditions in its
// statements.
func checkIsolation(ctx context.Context, pool *pgxpool.Pool) error {
	const want = "read committed"
	var level string
	if err := pool.QueryRow(ctx, "SELECT current_setting('default_transaction_isolation')").Scan(&level); err != nil {
		return err
	}
	if level != want {
		return fmt.Errorf("default_transaction_isolation is %q; set it to %q for the role or in the pool's connection settings", level, want)
	}
	return nil
}

// Close implements webhook.Store. It ends the claims of this node. If the database does not answer
// within half a minute, the claims end when they expire.
func (s *Store) Close() error {
	if !s.calls.Close() {
		return nil
	}
	s.puts.Close()
	s.stop()
	s.goroutines.Wait()

	ctx, cancel := context.WithTimeout(context.Background(), s.farewell)
	defer cancel()
	if err := s.resign(ctx); err != nil {
		return fmt.Errorf("pgqueue: could not give back the claims of this node; other nodes get them within %v: %w", s.config.Claim, err)
	}
	return nil
}
