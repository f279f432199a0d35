package pgqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A Store is a webhook.Store, webhook.Shared and audience.Roster. Its parts:
//
//   - database is where all is; memory is what this node has claimed, and knows of the rest.
//   - claimer claims chunks and gives them back: for putter, which stores deliveries, fetcher,
//     which hands them out, and settler and eraser, which end them.
//   - heartbeat proves that this node is alive, and takes over from others.
//   - letters, reader, settings and roster answer for dead letters, what waits, settings and
//     audiences.
type Store struct {
	*database
	*memory
	*claimer
	*putter
	*fetcher
	*settler
	*eraser
	*heartbeat
	*letters
	*reader
	*settings
	*roster
	farewell time.Duration // how long Close may take to give back what is claimed
}

var (
	_ webhook.Store   = (*Store)(nil)
	_ webhook.Shared  = (*Store)(nil)
	_ audience.Roster = (*Store)(nil)
)

// Open opens the store in the database that pool connects to. The pool is the
// caller's, and closed after the Store; a Store uses up to eight of its
// connections, and Dead and its like one more each.
func Open(ctx context.Context, pool *pgxpool.Pool, c Config) (*Store, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	name, err := identifier(c.Schema)
	if err != nil {
		return nil, err
	}
	db := &database{config: c, pool: pool, schema: name, lock: lockOf(c.Schema, "generation")}
	mem := &memory{
		database: db, changed: make(chan struct{}, 1), sought: make(chan struct{}, 1),
		lines: make(map[lineKey]*line), chunks: make(map[chunkKey]*chunk), claimed: make(map[uint64]*item), news: make(map[string]bool),
	}
	claims := &claimer{memory: mem, fetching: make(turn, 1)}
	put := &putter{claimer: claims, stuck: make(turn, 1)}
	settle := &settler{putter: put, settling: make(turn, 1), unsure: make(map[*chunk]bool)}
	s := &Store{
		database: db, memory: mem, claimer: claims, putter: put, fetcher: &fetcher{claims}, settler: settle, eraser: &eraser{settle},
		heartbeat: &heartbeat{claimer: claims, janitor: janitor{db}, presented: make(chan struct{}, 1)},
		letters:   &letters{put}, reader: &reader{mem}, settings: &settings{db}, roster: &roster{db},
		farewell: min(c.Claim, writeTimeout),
	}
	if err := s.begin(ctx); err != nil {
		return nil, fmt.Errorf("pgqueue: opening schema %q: %w", c.Schema, oneLine(err))
	}
	return s, nil
}

// begin starts everything.
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
	s.background, s.stop = context.WithCancel(context.Background())
	if !s.config.NoListen {
		e := ear{s.memory}
		conn, err := e.listening(ctx)
		if err != nil {
			s.stop()
			return err
		}
		s.goroutines.Go(func() { e.listen(conn) })
	}
	s.puts = storekit.NewBatcher(2, maxBatch, s.storePuts)
	s.goroutines.Go(s.live)
	s.goroutines.Go(s.look)
	return nil
}

// checkIsolation returns an error unless transactions of pool are READ COMMITTED,
// as PostgreSQL has it by default. At a stricter level they fail whenever others have
// claimed or settled something meanwhile, which is what SKIP LOCKED and the
// conditions of the statements are there for.
func checkIsolation(ctx context.Context, pool *pgxpool.Pool) error {
	const want = "read committed"
	var level string
	if err := pool.QueryRow(ctx, "SELECT current_setting('default_transaction_isolation')").Scan(&level); err != nil {
		return err
	}
	if level != want {
		return fmt.Errorf("default_transaction_isolation is %q; set it to %q for the role, or in what the pool connects by", level, want)
	}
	return nil
}

// Close implements webhook.Store. What this node had claimed is to be had again at
// once; if the database does not answer in half a minute, when the claims expire.
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
		return fmt.Errorf("pgqueue: giving back what was claimed, which others get in %v: %w", s.config.Claim, err)
	}
	return nil
}
