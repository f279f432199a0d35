package pgqueue

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A Store is a webhook.Store, webhook.Shared and audience.Roster.
type Store struct {
	*database
	update
	changed   chan struct{}          // of Changed; capacity 1
	presented chan struct{}          // makes live send a heartbeat; capacity 1
	farewell  time.Duration          // how long Close waits for the database
	puts      *storekit.Batcher[put] // the calls of Put that wait for a transaction
	alone     semaphore              // held by a single put that waits for a transaction which is adding its keys
	releasing atomic.Bool            // this node makes no more claims; see Release
	fetching  semaphore              // held by Fetch, and by calls during which no item may be handed out
	fetched   atomic.Int64           // when Fetch was last called, in microseconds since 1970

	firstClaims atomic.Int64 // the result of FirstClaims

	// claiming keeps giveBack from freeing a claim that is in the database but not yet in memory.
	// While there may be such a claim, the function claim holds a read lock. giveBack takes the
	// write lock. Both acquire a connection before they lock claiming, so that no holder of the
	// lock waits for a connection.
	//
	// doubted is when storing a claim last failed, in microseconds since 1970. After such a failure,
	// the database may hold claims that are not in memory. It is 0 if there can be none.
	claiming sync.RWMutex
	doubted  atomic.Int64

	settling semaphore // held by calls that store outcomes
	// unsure has the chunks whose latest outcomes may be stored or not, because the answer of the
	// database was lost. settling guards it.
	unsure map[*chunk]bool

	mu      sync.Mutex // guards all below: what this node knows of the store
	node    int64
	note    func() ([]byte, bool) // of Present
	sent    time.Time             // when the latest stored heartbeat was sent
	offset  time.Duration         // how far the database's clock is ahead
	lastErr error                 // the error of the latest heartbeat
	queues  map[queueKey]*queue
	reports uint64           // incremented by each report and for each queue in heard; see learn
	chunks  map[int64]*chunk // the chunks that this node has claimed, by id
	bytes   int64            // of the chunks
	claims  map[uint64]*item
	serial  uint64          // the number of the latest claim
	news    map[string]bool // destinations that others have changed
	allNew  bool            // others may have changed any destination
	looked  time.Duration   // how long it took to read all heads last time
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
	s := &Store{
		database: &database{config: c, pool: pool, schema: name, lock: lockOf(c.Schema, "dedup")},
		changed:  make(chan struct{}, 1), presented: make(chan struct{}, 1), farewell: min(c.Claim, writeTimeout),
		alone: make(semaphore, 1), fetching: make(semaphore, 1), settling: make(semaphore, 1), unsure: make(map[*chunk]bool),
		queues: make(map[queueKey]*queue), chunks: make(map[int64]*chunk), claims: make(map[uint64]*item), news: make(map[string]bool),
	}
	s.update = s.changeAudience
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
	s.background, s.stop = context.WithCancel(context.Background())
	if !s.config.NoListen {
		conn, err := s.connect(ctx)
		if err != nil {
			return err
		}
		s.goroutines.Go(func() { s.listen(conn) })
	}
	s.puts = storekit.NewBatcher(2, maxBatch, s.storeBatch)
	s.goroutines.Go(s.live)
	s.goroutines.Go(s.maintain)
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
