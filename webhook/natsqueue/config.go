package natsqueue

import (
	"cmp"
	"log/slog"
	"regexp"
	"time"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/webhook/store"
)

// The defaults of Config.
const (
	DefaultStream      = "HOOKFERRY"
	DefaultPartitions  = 32
	DefaultClaim       = 10 * time.Second
	DefaultDedupWindow = time.Hour
	DefaultDedupMax    = 1_000_000
)

// maxPartitions bounds Config.Partitions, because each partition needs a consumer of its own.
const maxPartitions = 256

// Config configures a Store. The zero value is ready for use.
type Config struct {
	// Stream is the name of the stream and the first token of its subjects. It consists of up to 64
	// letters, digits, "-" and "_". Empty means DefaultStream.
	Stream string
	// Replicas is how many servers keep a copy of the stream, 1 to 5. Zero leaves an existing stream
	// as it is. For a new stream, zero means 3, or 1 if there are fewer than three servers.
	Replicas int
	// Partitions is how many partitions the destinations are divided into, 1 to 256. It also bounds
	// how many nodes share the work. Zero means DefaultPartitions, 32. It cannot be changed later:
	// Open uses the number of an existing stream instead.
	Partitions int
	// DedupWindow is how long the store recognises a delivery that is put again. It is a minute or
	// more. Zero means DefaultDedupWindow, an hour.
	DedupWindow time.Duration
	// DedupMax bounds how many deliveries a node remembers for its dedup window, at about 40 bytes
	// each. It also bounds, approximately, how many keys the stream keeps for each partition. If more
	// are put within DedupWindow, at least the latest DedupMax/2 are remembered. Zero means
	// DefaultDedupMax, 1,000,000.
	DedupMax int
	// MaxBytes bounds, approximately, how much disk space the stream takes on each replica. Put
	// returns store.ErrQueueFull beyond it. With zero or store.Unlimited only the server's own
	// bounds apply. An account that requires max_bytes needs MaxBytes to create the stream, which
	// gets this size; puts then leave a sixteenth of it to other records. The same holds for a
	// stream that was created beforehand with max_bytes.
	MaxBytes int64
	// Claim is how long a node owns its partitions after its last heartbeat. After that, other
	// nodes take them over. A node sends three heartbeats in that time. Claim must be the same on
	// all nodes, and is from a second to an hour. Zero means DefaultClaim, 10 s.
	Claim time.Duration
	// Node is the name of this node in the results of Nodes. Empty means the host's name and the
	// process id.
	Node string
	// Logger receives messages when the server cannot be reached, when partitions are taken over or
	// lost, and when accepted deliveries may be lost. Nil means no logs.
	Logger *slog.Logger

	size int64 // max_bytes of the stream, 0 if it has none; set by prepare
}

// complete checks c and sets the defaults of zero fields, except for Partitions, which prepare
// sets.
func (c *Config) complete() error {
	var wrong check.Faults
	c.Stream = cmp.Or(c.Stream, DefaultStream)
	wrong.Refuse(!isStream(c.Stream), "Stream", "%q is not 1 to 64 letters, digits, - and _", c.Stream)
	check.Range(&wrong, "Replicas", &c.Replicas, 1, 5, 0)
	check.Range(&wrong, "Partitions", &c.Partitions, 1, maxPartitions, 0)
	check.Least(&wrong, "DedupWindow", &c.DedupWindow, time.Minute, DefaultDedupWindow)
	check.Least(&wrong, "DedupMax", &c.DedupMax, 0, DefaultDedupMax)
	check.Least(&wrong, "MaxBytes", &c.MaxBytes, store.Unlimited, 0)
	check.Range(&wrong, "Claim", &c.Claim, time.Second, time.Hour, DefaultClaim)
	c.MaxBytes = max(c.MaxBytes, 0) // 0: no bound
	c.Node = cmp.Or(c.Node, store.ProcessName())
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return wrong.Err("natsqueue")
}

var isStream = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`).MatchString
