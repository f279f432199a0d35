// Package pgqueue keeps deliveries in PostgreSQL, 13 or newer: a webhook.Store
// that any number of processes share. Each added process adds throughput, and
// one that dies loses nothing: the others take over what it had claimed once its
// heartbeats have ended.
//
//	pool, err := pgxpool.New(ctx, "postgres://localhost/app")
//	...
//	store, err := pgqueue.Open(ctx, pool, pgqueue.Config{})
//	...
//	f, err := webhook.New(webhook.Config{Store: store, ...})
//
// webhook.Forwarder.ForwardTx stores an event in a transaction of the caller's own, the
// transactional outbox: it is forwarded if, and only if, what it tells of was committed.
//
// # What it promises
//
// Put returns once PostgreSQL has committed: with synchronous_commit at its
// default, what was accepted survives the loss of power. A delivery is handed to one
// node at a time, while the heartbeats of that node are stored. The others take over
// from a node without heartbeats within Config.Claim, and may attempt again what it was
// attempting. When the database was away, nodes wait for each other as long again, and
// what a node has claimed stays claimed if it comes back in time. Whatever part of a
// transaction's answer is lost, each delivery stays one: Put may be called again, and a
// settlement is stored once.
//
// A node claims chunks of up to 256 deliveries of a destination, as it has room, so that
// a node that is slower, or whose destinations are, takes less. Config.MaxConcurrent and
// rates of a webhook.Forwarder hold for each node.
//
// Due times are compared with the clock of the database. The clocks of nodes
// are to be right to about a second, as NTP keeps them: one that is ahead
// delays what it puts by as much.
//
// A Store keeps no webhook.History: to keep what was delivered it would have to write
// each body once more.
//
// # Connections
//
// The pool should be the Store's own, with five to eight connections: heartbeats
// wait for a connection as all else does. One more is kept outside of the
// pool to listen for notifications. Behind a pooler that gives each transaction a
// connection of its own, set Config.NoListen, and in the pool's configuration
// pgx.QueryExecModeExec or another DefaultQueryExecMode without prepared statements,
// unless the pooler knows them, as PgBouncer does from 1.21 on.
//
// Transactions of the pool are READ COMMITTED, PostgreSQL's default: Open refuses
// another default_transaction_isolation. That of ForwardTx is the caller's.
//
// # Schema
//
// Open creates the tables, and brings them to its version; several processes may do
// so at once. A program whose role may not do that sets Config.NoMigrate, and
// somebody else applies what SQL returns, before the first program of that version.
//
// Programs of different versions work side by side on the newest schema of them, as
// while they are replaced one by one: a migration adds, and takes away only what no program
// has used since some version. The schema knows that version, and programs
// older than that refuse to open it.
//
// The views waiting and dead_letters show with psql what waits, for whom and why, and
// what was given up:
//
//	SELECT destination, state, reason, sum(deliveries), min(due) FROM hookferry.waiting GROUP BY 1, 2, 3;
//
// # How it works
//
// Deliveries of one destination that are put at the same time share a row, a
// chunk, of up to 256. So PostgreSQL has a few statements for each hundred
// deliveries under load, and one row for each delivery when there is little to
// do. A node claims chunks, hands out what is in them, and stores what became
// of it: bits in the row, or its end. A node that delivers claims what it puts with the
// same statement; the others are notified of the rest, and look every Config.Poll for
// what they did not hear of.
//
// Finished rows are not left to vacuum, which a transaction that stays open holds up:
// chunks are kept in four partitions in turn, and the keys by which puts are recognised in
// two. Those that are over are truncated.
package pgqueue

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// The defaults of Config.
const (
	DefaultSchema      = "hookferry"
	DefaultClaim       = 10 * time.Second
	DefaultCacheBytes  = 32 << 20
	DefaultDedupWindow = 24 * time.Hour
	DefaultDedupMax    = 10_000_000
	DefaultPoll        = 5 * time.Second
)

// Config configures a Store. The zero value is ready for use.
type Config struct {
	// Schema holds the tables; Open makes it if it is missing. Empty means
	// DefaultSchema.
	Schema string
	// NoMigrate has Open change nothing in the database, and fail where the
	// schema is older than this program; see SQL.
	NoMigrate bool
	// NoListen is for poolers that give each transaction a connection of its
	// own, such as PgBouncer in transaction mode: there is no LISTEN, so what
	// other nodes put is found within Poll. The pool's own
	// QueryExecMode has to suit the pooler too.
	NoListen bool
	// Claim is how soon others have taken over what this node has claimed when it
	// dies, or its heartbeats end for another reason. There are four heartbeats in
	// that time; three that are missing end the claims. From a second to an hour;
	// zero means DefaultClaim.
	Claim time.Duration
	// CacheBytes bounds, about, the deliveries that are in memory because their chunks are
	// claimed. A node with more gives chunks back that it has not begun. Zero means
	// DefaultCacheBytes, 32 MB.
	CacheBytes int64
	// DedupWindow is how long a delivery that was put is recognised when it is
	// put again. Zero means DefaultDedupWindow, 24 hours.
	DedupWindow time.Duration
	// DedupMax bounds about how many puts are remembered for that, at some 85
	// bytes each in the database; half as many are in any case remembered for
	// DedupWindow. Zero means DefaultDedupMax, 10,000,000.
	DedupMax int
	// Poll is how often the store is looked through for what no notification
	// told of. It is done less often where it takes long. Zero means
	// DefaultPoll.
	Poll time.Duration
	// Node is what Nodes calls this node. Empty means the host's name and the
	// process id.
	Node string
	// Logger is told when the database cannot be reached, when claims were lost,
	// and what was taken over. Nil means no logs.
	Logger *slog.Logger
}

// A Store is a webhook.Store, webhook.Shared and audience.Roster.
type Store struct {
	config     Config
	pool       *pgxpool.Pool
	schema     string // as SQL has it
	sql        statements
	lock       int64         // the advisory lock of generations
	farewell   time.Duration // how long Close may take to give back what is claimed
	calls      storekit.Gate
	background context.Context
	stop       context.CancelFunc
	goroutines sync.WaitGroup

	puts     *storekit.Batcher[put]
	stuck    turn // of puts whose keys others are adding, in transactions that go on
	fetching turn
	fetched  atomic.Int64 // when Fetch was called last, in microseconds
	// firstClaims counts deliveries of transactions; see FirstClaims.
	firstClaims atomic.Int64
	settling    turn
	unsure      map[*chunk]bool // their latest settlement may be stored or not; of who has the turn of settling

	// claims is held for reading from before a claim is stored until it is in
	// memory, by who has a connection already. doubt is when storing one
	// failed last, in microseconds, so that there may be claims in the
	// database that are not in memory; 0 if there are none.
	claims    sync.RWMutex
	doubt     atomic.Int64
	releasing atomic.Bool // nothing more is fetched here; see Release

	changed   chan struct{}
	presented chan struct{}
	sought    chan struct{} // others have told that something is unclaimed, and not what

	mu      sync.Mutex
	node    int64
	sent    time.Time     // when the latest heartbeat was sent that was stored
	offset  time.Duration // what the database's clock is ahead
	lastErr error         // of the latest heartbeat
	note    func() ([]byte, bool)
	lines   map[lineKey]*line
	epoch   uint64 // lines of an earlier one may not know what others have changed
	clock   uint64 // counts reports to lines
	chunks  map[chunkKey]*chunk
	cached  int64            // bytes of the chunks
	claimed map[uint64]*item // by claim
	serial  uint64           // of the latest claim
	news    map[string]bool  // destinations that others have changed
	allNew  bool             // others have changed any
	looked  time.Duration    // how long the latest look at all heads took
}

var (
	_ webhook.Store  = (*Store)(nil)
	_ webhook.Shared = (*Store)(nil)
)

// A turn is taken by one call at a time.
type turn chan struct{}

func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) give() { <-t }

// Open opens the store in the database that pool connects to. The pool is the
// caller's, and closed after the Store; a Store uses up to eight of its
// connections, and Dead and its like one more each.
func Open(ctx context.Context, pool *pgxpool.Pool, c Config) (*Store, error) {
	s := &Store{
		config: c, pool: pool, unsure: make(map[*chunk]bool),
		stuck: make(turn, 1), fetching: make(turn, 1), settling: make(turn, 1),
		changed: make(chan struct{}, 1), presented: make(chan struct{}, 1), sought: make(chan struct{}, 1),
		lines: make(map[lineKey]*line), chunks: make(map[chunkKey]*chunk), claimed: make(map[uint64]*item), news: make(map[string]bool),
	}
	if err := s.config.complete(); err != nil {
		return nil, err
	}
	s.farewell = min(s.config.Claim, writeTimeout)
	name, err := identifier(s.config.Schema)
	if err != nil {
		return nil, err
	}
	s.schema, s.sql, s.lock = name, newStatements(name), lockOf(s.config.Schema, "generation")
	prepare := migrate
	if c.NoMigrate {
		prepare = checkVersion
	}
	err = checkIsolation(ctx, pool)
	if err == nil {
		err = prepare(ctx, pool, s.config.Schema)
	}
	if err == nil {
		err = s.enroll(ctx)
	}
	var ear *pgx.Conn
	if err == nil && !c.NoListen {
		ear, err = s.listening(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("pgqueue: opening schema %q: %w", s.config.Schema, oneLine(err))
	}
	s.background, s.stop = context.WithCancel(context.Background())
	s.puts = storekit.NewBatcher(2, maxBatch, s.storePuts)
	s.goroutines.Go(s.live)
	s.goroutines.Go(s.look)
	if !c.NoListen {
		s.goroutines.Go(func() { s.listen(ear) })
	}
	return s, nil
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

func (c *Config) complete() error {
	if c.Schema == "" {
		c.Schema = DefaultSchema
	}
	if c.Claim == 0 {
		c.Claim = DefaultClaim
	}
	if c.Claim < time.Second || c.Claim > time.Hour {
		return fmt.Errorf("pgqueue: Claim of %v; want a second to an hour", c.Claim)
	}
	switch {
	case c.CacheBytes < 0:
		return fmt.Errorf("pgqueue: CacheBytes: %d is negative", c.CacheBytes)
	case c.DedupWindow < 0:
		return fmt.Errorf("pgqueue: DedupWindow: %v is negative", c.DedupWindow)
	case c.DedupMax < 0:
		return fmt.Errorf("pgqueue: DedupMax: %d is negative", c.DedupMax)
	case c.Poll < 0:
		return fmt.Errorf("pgqueue: Poll: %v is negative", c.Poll)
	}
	c.CacheBytes = cmp.Or(c.CacheBytes, DefaultCacheBytes)
	c.DedupWindow = cmp.Or(c.DedupWindow, DefaultDedupWindow)
	c.DedupMax = cmp.Or(c.DedupMax, DefaultDedupMax)
	c.Poll = cmp.Or(c.Poll, DefaultPoll)
	if c.Node == "" {
		c.Node = storekit.ProcessName()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Now implements webhook.Store.
func (s *Store) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.offset).UTC().Truncate(time.Microsecond)
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
