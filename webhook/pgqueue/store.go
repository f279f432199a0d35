package pgqueue

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/webhook/store"
)

// The defaults of Config.
const (
	DefaultSchema       = "hookferry"
	DefaultClaim        = 10 * time.Second
	DefaultDedupWindow  = 24 * time.Hour
	DefaultDedupMax     = 10_000_000
	DefaultPoll         = 5 * time.Second
	DefaultHistoryBytes = 10 << 30
)

// Config configures a Store. The zero value is ready for use.
type Config struct {
	// Schema holds the tables; Open creates it if it is missing. Open refuses a schema of another role,
	// which could read all deliveries, unless that is a superuser, the owner of the database, or a role
	// that the pool's is a member of. Empty means DefaultSchema.
	Schema string
	// NoMigrate makes Open change nothing in the database, and fail if the schema is too old; see SQL.
	// A schema of another role then is a warning.
	NoMigrate bool
	// NoListen is for poolers that give each transaction a connection of its own, such as PgBouncer in
	// transaction mode. The Store then does not LISTEN, and finds what other nodes put within Poll. The
	// QueryExecMode of the pool has to suit the pooler, too.
	NoListen bool
	// Claim is the longest time from the last heartbeat of this node until others have taken over its
	// claims. A node sends four heartbeats or more in that time; without any for three quarters of it,
	// its claims end. From a second to an hour; zero means DefaultClaim.
	Claim time.Duration
	// DedupWindow is how long Put recognises a delivery that was put before. Zero means
	// DefaultDedupWindow, 24 hours.
	DedupWindow time.Duration
	// DedupMax bounds, approximately, how many deliveries the dedup window remembers, at about 85 bytes
	// each in the database. It always remembers the latest DedupMax/2 within DedupWindow. Zero means
	// DefaultDedupMax, 10,000,000.
	DedupMax int
	// Poll is how often this node searches the database for deliveries that no notification has
	// reported. If that takes long, it searches less often, but at least once a minute or every Poll.
	// Zero means DefaultPoll.
	Poll time.Duration
	// History is how long deliveries are kept after they were delivered, at least; one may be kept for a
	// seventh, and 90 seconds, longer. Zero keeps none. All nodes should have the same value. Up to ten
	// years.
	History time.Duration
	// HistoryBytes bounds, approximately, the bytes of the kept deliveries in the database. At the bound,
	// the oldest eighth goes before its time. At least 1 MiB; zero means DefaultHistoryBytes, 10 GiB.
	HistoryBytes int64
	// Node names this node in Nodes and in the logs of others. Empty means the host's name and the
	// process id.
	Node string
	// Logger gets a line when the database cannot be reached, when claims are lost, when this node takes
	// over from others, and when maintenance keeps failing. Nil means no logs.
	Logger *slog.Logger
}

// complete fills in the defaults, and returns an error that names every field that is wrong.
func (c *Config) complete() error {
	var wrong check.Faults
	c.Schema = cmp.Or(c.Schema, DefaultSchema)
	check.Range(&wrong, "Claim", &c.Claim, time.Second, time.Hour, DefaultClaim)
	check.Least(&wrong, "DedupWindow", &c.DedupWindow, 0, DefaultDedupWindow)
	check.Least(&wrong, "DedupMax", &c.DedupMax, 0, DefaultDedupMax)
	check.Least(&wrong, "Poll", &c.Poll, 0, DefaultPoll)
	check.Range(&wrong, "History", &c.History, 0, 10*365*24*time.Hour, 0)
	check.Range(&wrong, "HistoryBytes", &c.HistoryBytes, 1<<20, 1<<60, DefaultHistoryBytes)
	c.Node = cmp.Or(c.Node, store.ProcessName())
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return wrong.Err("pgqueue")
}

// term is how long the claims of a node last after its last heartbeat. Other nodes look for dead
// nodes every eighth of Claim, so they take over within Claim.
func (c *Config) term() time.Duration { return c.Claim * 3 / 4 }

// late is the age at which the latest heartbeat of a node counts as late, for other nodes.
func (c *Config) late() time.Duration { return c.Claim / 2 }

// pulse is how often a node sends a heartbeat: every quarter of Claim, and every few seconds even if
// Claim is long, so that Ready soon knows that the database is lost.
func (c *Config) pulse() time.Duration { return min(c.Claim, DefaultClaim) / 4 }

// A Store is a store.Store, store.Shared, store.Outbox, store.Maintained and store.History.
type Store struct {
	db         *database
	heartbeat  *heartbeat
	memory     *memory
	claimer    *claimer
	maintainer *maintainer
	puts       *store.Batcher[put] // the calls of Put that wait for a transaction
	alone      *store.Batcher[put] // those that wait for a transaction of their own
	// ordered and orderedAlone are the same for calls that have a delivery with a Key, so that a Key whose
	// stripe is locked does not delay deliveries without a Key; see also lockWait.
	ordered, orderedAlone *store.Batcher[put]
	farewell              time.Duration // how long Close waits for the database

	stop       context.CancelFunc // ends the goroutines, which run until the Store is closed
	goroutines sync.WaitGroup
}

var (
	_ store.Store      = (*Store)(nil)
	_ store.Shared     = (*Store)(nil)
	_ store.Outbox     = (*Store)(nil)
	_ store.Maintained = (*Store)(nil)
	_ store.History    = (*Store)(nil)
)

// Open opens the store in the database that pool connects to. The caller closes pool after the
// Store. A Store uses up to twelve connections of the pool, and one more for each list that is being
// read.
func Open(ctx context.Context, pool *pgxpool.Pool, c Config) (*Store, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	name, err := identifier(c.Schema)
	if err != nil {
		return nil, err
	}
	db := &database{
		config: c, pool: pool, schema: name, channel: channelOf(c.Schema),
		names: strings.NewReplacer("'S.ids'", literal(name+".ids"), "S.", name+"."), statements: make(map[string]string),
	}
	s := newStore(db)
	for _, step := range []func(context.Context) error{db.checkIsolation, db.migrate, s.claimer.enroll} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("pgqueue: opening schema %q: %w", c.Schema, lineError{err})
		}
	}
	background, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.goroutines.Go(func() { s.claimer.live(background) })
	s.goroutines.Go(func() { s.maintainer.maintain(background) })
	s.goroutines.Go(func() { (&releaser{maintainer: s.maintainer}).run(background) })
	if !c.NoListen {
		l := listener{db: db, memory: s.memory, maintainer: s.maintainer}
		s.goroutines.Go(func() { l.listen(background) })
	}
	return s, nil
}

// newStore returns the Store of a database, whose parts do not run yet.
func newStore(db *database) *Store {
	logger := db.config.Logger
	h := newHeartbeat(db)
	m := newMemory(logger)
	c := newClaimer(db, h, m)
	s := &Store{
		db: db, heartbeat: h, memory: m, claimer: c,
		maintainer: &maintainer{db: db, heartbeat: h, memory: m, claimer: c, steps: store.NewUpkeep("pgqueue", logger)},
		farewell:   min(db.config.Claim, writeTimeout),
	}
	s.puts, s.alone = store.NewBatcher(2, maxBatch, c.store), store.NewBatcher(1, 0, c.store)
	s.ordered, s.orderedAlone = store.NewBatcher(1, maxBatch, c.store), store.NewBatcher(2, 0, c.store)
	return s
}

// Close implements store.Store. It ends the claims of this node. If the database does not answer
// within Config.Claim, or within half a minute if that is shorter, the claims end when they expire.
func (s *Store) Close() error {
	if !s.db.calls.Close() {
		return nil
	}
	for _, b := range []*store.Batcher[put]{s.puts, s.alone, s.ordered, s.orderedAlone} {
		b.Close()
	}
	s.stop()
	s.goroutines.Wait()

	ctx, cancel := context.WithTimeout(context.Background(), s.farewell)
	defer cancel()
	if err := s.claimer.resign(ctx); err != nil {
		return fmt.Errorf("pgqueue: could not give back the claims of this node; other nodes get them within %v: %w", s.db.config.Claim, err)
	}
	return nil
}
