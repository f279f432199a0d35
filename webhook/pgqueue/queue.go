// Package pgqueue keeps deliveries in PostgreSQL, 13 or newer: a webhook.Queue
// that any number of processes share. Each added process adds throughput, and
// one that dies loses nothing: what it held is taken over by the others once its
// claim has expired.
//
//	pool, err := pgxpool.New(ctx, "postgres://localhost/app")
//	...
//	queue, err := pgqueue.Open(ctx, pool, nil)
//	...
//	f, err := webhook.New(webhook.Config{Store: webhook.FromQueue(queue), ...})
//
// PutTx stores deliveries in a transaction of the caller's own, so that an event
// is forwarded if, and only if, what it tells of was committed.
//
// # What it promises
//
// Put returns once PostgreSQL has committed: with synchronous_commit at its
// default, what was accepted survives the loss of power. A delivery is handed to one
// process at a time, while that process gives signs of life: one that gives none
// loses what it holds to the others within Config.Claim, which may then attempt again
// what it was attempting. When the database was away, processes wait for each other
// as long again, and what they hold stays theirs if they come back in time. Whatever
// part of a transaction's answer is lost, each delivery stays one: Put may be called
// again, and a settlement is stored once.
//
// Destinations get their turns within each process. A backlog is shared by chunks
// of up to 256 deliveries, claimed as a process has room, so that a process that is
// slower, or whose destinations are, takes less. Config.MaxConcurrent and rates of a
// webhook.Forwarder hold for each process.
//
// Due times are compared with the clock of the database. The clocks of processes
// are to be right to about a second, as NTP keeps them: one that is ahead
// delays what it puts by as much.
//
// # Connections
//
// The pool should be the Queue's own, with five to eight connections: signs of
// life wait for a connection as all else does. One more is kept outside of the
// pool to listen for notifications. Behind a pooler that gives each transaction a
// connection of its own, set Config.NoListen, and in the pool's configuration
// pgx.QueryExecModeExec or another DefaultQueryExecMode without prepared statements,
// unless the pooler knows them, as PgBouncer does from 1.21 on.
//
// Transactions of the pool are READ COMMITTED, PostgreSQL's default: Open refuses
// another default_transaction_isolation. That of PutTx and PutSQL is the caller's.
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
// # How it works
//
// Deliveries of one destination that are put at the same time share a row, a
// chunk, of up to 256. So PostgreSQL has a few statements for each hundred
// deliveries under load, and one row for each delivery when there is little to
// do. A process claims chunks, hands out what is in them, and stores what became
// of it: bits in the row, or its end. What a process puts while it delivers is its
// own from the start, if it is due; the others are notified of the rest, and look
// for what they did not hear of each Config.Poll.
//
// Finished rows are not left to vacuum: chunks are kept in four partitions in turn, and
// the keys by which puts are recognised in eight; those that are over are truncated.
// A process that puts much keeps a filter of the keys that are not the newest, and so
// asks the database about the newest alone.
package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/batcher"
	"github.com/hookferry/analytics/webhook/internal/calls"
	"github.com/hookferry/analytics/webhook/internal/lanes"
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

// Config configures a Queue. The zero value is ready for use.
type Config struct {
	// Schema holds the tables; Open makes it if it is missing. Empty means
	// DefaultSchema.
	Schema string
	// NoMigrate has Open change nothing in the database, and fail where the
	// schema is older than this program; see SQL.
	NoMigrate bool
	// NoListen is for poolers that give each transaction a connection of its
	// own, such as PgBouncer in transaction mode: there is no LISTEN, so what
	// other processes put is found within Poll. The pool's own
	// QueryExecMode has to suit the pooler too.
	NoListen bool
	// Claim is how soon others have taken over what this process has claimed
	// when it dies, or gives no sign of life for another reason. There are four
	// signs in that time; three that are missing end the claims. From a second to
	// an hour; zero means DefaultClaim.
	Claim time.Duration
	// CacheBytes bounds the deliveries that are claimed before they are
	// leased: about. Zero means DefaultCacheBytes, 32 MB.
	CacheBytes int64
	// DedupWindow is how long a delivery that was put is recognised when it is
	// put again. Zero means DefaultDedupWindow, 24 hours.
	DedupWindow time.Duration
	// DedupMax bounds about how many puts are remembered for that, at some 80
	// bytes each in the database, and two in a process that puts much; seven
	// eighths as many are in any case remembered for DedupWindow. Zero means
	// DefaultDedupMax, 10,000,000.
	DedupMax int
	// Poll is how often the store is looked through for what no notification
	// told of. It is done less often where it takes long. Zero means
	// DefaultPoll.
	Poll time.Duration
	// Node is what Nodes calls this process. Empty means the host's name and the
	// process id.
	Node string
	// Logger is told when the database cannot be reached, when claims were lost,
	// and what was taken over. Nil means no logs.
	Logger *slog.Logger
}

// A Queue is a webhook.Queue, and webhook.DeadLetters, webhook.Counter,
// webhook.DestinationCounter, webhook.Roster, webhook.Pauses, webhook.Presenter and
// webhook.Releaser too.
type Queue struct {
	config Config
	pool   *pgxpool.Pool
	schema string // as SQL has it
	sql    statements
	lock   int64 // the advisory lock of generations

	puts       *batcher.Batcher[put]
	stuck      *batcher.Batcher[put] // those whose keys others are adding, in transactions that go on
	settles    *batcher.Batcher[settle]
	told       *teller
	shelf      atomic.Int32
	window     window
	turns      chan struct{}   // of generations
	unsure     map[*chunk]bool // whose latest progress may be stored or not; of settled alone
	background context.Context
	stop       context.CancelFunc
	goroutines sync.WaitGroup
	calls      calls.Gate
	leasing    sync.Mutex   // one Lease at a time
	leased     atomic.Int64 // when Lease was called last, in microseconds
	wake       chan struct{}
	releasing  atomic.Bool // nothing more is leased here; see Release
	presented  chan struct{}
	sought     chan struct{} // others have told that something is unclaimed, and not what
	farewell   time.Duration // how long Close may take to give back what is claimed
	// claims is held for reading from before a claim is stored until it is in
	// memory, by who has a connection already. doubt is when storing one
	// failed last, in microseconds, so that there may be claims in the
	// database that are not in memory; 0 if there are none.
	claims sync.RWMutex
	doubt  atomic.Int64
	// What was counted last, where that is much.
	counted   memo[counted]
	countedBy memo[[]webhook.DestinationCounts]

	mu      sync.Mutex
	table   *lanes.Table
	chunks  map[chunkKey]*chunk
	cached  int64
	node    int64
	until   time.Time     // the claims hold
	offset  time.Duration // what the database's clock is ahead
	ids     []int64       // that are this process's own, in runs of idRun
	looks   uint64        // how often the database was looked at for what is unclaimed
	lastErr error         // of the latest sign of life
	note    func() []byte // what Nodes is to show of this one; nil: nothing
}

var _ webhook.SchedulingQueue = (*Queue)(nil)

// Open opens the store in the database that pool connects to. The pool is the
// caller's, and closed after the Queue; a Queue uses up to eight of its
// connections, and Dead and its like one more each.
func Open(ctx context.Context, pool *pgxpool.Pool, c *Config) (*Queue, error) {
	if c == nil {
		c = new(Config)
	}
	q := &Queue{
		config: *c, pool: pool, table: lanes.New(nil), chunks: make(map[chunkKey]*chunk), unsure: make(map[*chunk]bool),
		counted: newMemo[counted](), countedBy: newMemo[[]webhook.DestinationCounts](),
		wake: make(chan struct{}, 1), turns: make(chan struct{}, 1), presented: make(chan struct{}, 1), sought: make(chan struct{}, 1),
	}
	if err := q.config.complete(); err != nil {
		return nil, err
	}
	q.farewell = min(q.config.Claim, writeTimeout)
	name, err := identifier(q.config.Schema)
	if err != nil {
		return nil, err
	}
	if err := checkIsolation(ctx, pool); err != nil {
		return nil, fmt.Errorf("pgqueue: opening schema %q: %w", q.config.Schema, oneLine(err))
	}
	prepare := migrate
	if c.NoMigrate {
		prepare = checkVersion
	}
	if err := prepare(ctx, pool, q.config.Schema); err != nil {
		return nil, fmt.Errorf("pgqueue: opening schema %q: %w", q.config.Schema, oneLine(err))
	}
	q.schema, q.sql = name, newStatements(name)
	q.lock = lockOf(q.config.Schema, "generation")
	if err := q.enroll(ctx); err != nil {
		return nil, fmt.Errorf("pgqueue: opening schema %q: %w", q.config.Schema, oneLine(err))
	}
	var ear *pgx.Conn
	if !c.NoListen {
		if ear, err = q.listening(ctx); err != nil {
			return nil, fmt.Errorf("pgqueue: listening for what others put: %w", oneLine(err))
		}
	}
	if err := q.discover(ctx); err != nil {
		if ear != nil {
			ear.Close(context.WithoutCancel(ctx))
		}
		return nil, fmt.Errorf("pgqueue: opening schema %q: %w", q.config.Schema, oneLine(err))
	}
	q.background, q.stop = context.WithCancel(context.Background())
	q.puts = batcher.New(2, maxBatch, func(ps []*put) { q.store(ps, busyWait) })
	q.stuck = batcher.New(1, 0, func(ps []*put) { q.store(ps, stuckWait) })
	q.settles = batcher.New(1, maxBatch, q.settled)
	q.told = newTeller(q)
	q.goroutines.Go(q.live)
	q.goroutines.Go(q.look)
	q.goroutines.Go(q.study)
	if !c.NoListen {
		q.goroutines.Go(func() { q.listen(ear) })
		q.goroutines.Go(q.told.run)
	}
	return q, nil
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
	if c.CacheBytes <= 0 {
		c.CacheBytes = DefaultCacheBytes
	}
	if c.DedupWindow <= 0 {
		c.DedupWindow = DefaultDedupWindow
	}
	if c.DedupMax <= 0 {
		c.DedupMax = DefaultDedupMax
	}
	if c.Poll <= 0 {
		c.Poll = DefaultPoll
	}
	if c.Node == "" {
		c.Node = calls.Process()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// now is the time of the store. The queue is locked.
func (q *Queue) now() time.Time { return time.Now().Add(q.offset) }

// Close implements webhook.Queue. What this process had claimed is due again at
// once; if the database does not answer in half a minute, when the claims expire.
func (q *Queue) Close() error {
	if !q.calls.Close() {
		return nil
	}
	q.puts.Close()
	q.stuck.Close()
	q.settles.Close()
	q.stop()
	q.goroutines.Wait()

	ctx, cancel := context.WithTimeout(context.Background(), q.farewell)
	defer cancel()
	err := q.resign(ctx)
	q.mu.Lock()
	q.table, q.chunks = nil, nil
	q.mu.Unlock()
	if err != nil {
		return fmt.Errorf("pgqueue: giving back what was claimed, which others get in %v: %w", q.config.Claim, err)
	}
	return nil
}

// Lease implements webhook.Queue. Room is called with the queue locked.
func (q *Queue) Lease(ctx context.Context, req webhook.LeaseRequest, dst []webhook.Delivery) ([]webhook.Delivery, time.Time, error) {
	if req.Max < 1 {
		return dst, time.Time{}, errors.New("pgqueue: lease of less than one delivery")
	}
	if err := q.calls.Enter(ctx); err != nil {
		return dst, time.Time{}, err
	}
	defer q.calls.Leave()
	q.leasing.Lock()
	defer q.leasing.Unlock()
	q.leased.Store(time.Now().UnixMicro())

	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	take := lanes.Take{Max: req.Max, Until: req.Until.Add(q.offset).UnixMicro(), Room: req.Room, Out: dst}
	q.table.Begin(&take, now.UnixMicro())
	defer func() { q.table.End() }() // Room may panic
	for {
		if time.Now().After(q.until) {
			return take.Out, time.Time{}, q.unheard()
		}
		if q.table.Serve(&take, now.UnixMicro()) {
			break
		}
		if err := q.claim(ctx, &take, now); err != nil {
			if len(take.Out) > len(dst) {
				break // the next call meets the failure
			}
			return take.Out, time.Time{}, err
		}
	}
	for i := len(dst); i < len(take.Out); i++ {
		q.table.Leased(take.Out[i].Claim).Home.(*chunk).used = now
	}
	next := q.table.Next(now.UnixMicro())
	if !next.IsZero() {
		next = next.Add(-q.offset) // by the caller's clock, as Until is
	}
	return take.Out, next, nil
}

func (q *Queue) unheard() error {
	if q.lastErr != nil {
		return fmt.Errorf("pgqueue: claims have expired: %w", oneLine(q.lastErr))
	}
	return errors.New("pgqueue: claims have expired: no sign of life was stored in time")
}

// Wake has a value whenever something that this process did not put may have
// become due.
func (q *Queue) Wake() <-chan struct{} { return q.wake }
