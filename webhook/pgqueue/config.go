package pgqueue

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

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

// term is how long others leave alone what a node has claimed after its last
// heartbeat. They look for silent nodes in eighths of Claim, and so have taken over
// within Claim of the end of a process.
func (c *Config) term() time.Duration { return c.Claim * 3 / 4 }

// late is the age at which the latest heartbeat of a node is late: it sends one in
// every quarter of Claim.
func (c *Config) late() time.Duration { return c.Claim / 2 }

// trusted is how long a node itself relies on a heartbeat that it sent.
func (c *Config) trusted() time.Duration { return c.term() * 9 / 10 }
