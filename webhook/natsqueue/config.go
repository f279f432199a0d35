package natsqueue

import (
	"cmp"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// The defaults of Config.
const (
	DefaultStream      = "HOOKFERRY"
	DefaultPartitions  = 32
	DefaultClaim       = 10 * time.Second
	DefaultCacheBytes  = 32 << 20
	DefaultDedupWindow = time.Hour
	DefaultDedupMax    = 1_000_000
)

// maxPartitions bounds Config.Partitions: each has a consumer of its own.
const maxPartitions = 256

// Config configures a Store. The zero value is ready for use.
type Config struct {
	// Stream is the name of the stream, and the first part of its subjects: letters, digits, "-" and
	// "_". Empty means DefaultStream.
	Stream string
	// Replicas is how many servers keep the stream, 1 to 5. Zero means as many as an existing stream
	// has, and for a new one 3 if there are as many servers, else 1.
	Replicas int
	// Partitions is into how many parts destinations are divided, and how many nodes share the work
	// at most. It cannot be changed later: Open goes by what the stream says. 1 to 256; zero means
	// DefaultPartitions, 32.
	Partitions int
	// DedupWindow is how long the store recognises a delivery that is put again. A minute or more;
	// zero means DefaultDedupWindow, an hour.
	DedupWindow time.Duration
	// DedupMax bounds how many puts a node remembers for that, at about 40 bytes each, and about how
	// many the stream does for each partition. Half as many are remembered for the whole DedupWindow.
	// Zero means DefaultDedupMax, 1,000,000.
	DedupMax int
	// MaxBytes bounds what the stream takes of each replica's disk, about. Put returns ErrQueueFull
	// beyond it. Zero and webhook.Unlimited mean no bound but the server's.
	MaxBytes int64
	// Claim is how long a node owns its partitions after its last heartbeat. Then other nodes take
	// them over. There are three heartbeats in that time. All nodes need the same. A second to an
	// hour; zero means DefaultClaim, 10 s.
	Claim time.Duration
	// CacheBytes bounds the deliveries in memory that are not claimed, about. Zero means
	// DefaultCacheBytes, 32 MB.
	CacheBytes int64
	// Node is what Nodes and the logs of other nodes call this one. Empty means the host's name and
	// the process id.
	Node string
	// Logger is told when the server cannot be reached, when partitions are taken over or lost, and
	// how accepted deliveries may be lost. Nil means no logs.
	Logger *slog.Logger
}

// complete checks c, and sets what is zero. It leaves Partitions to prepare.
func (c *Config) complete() error {
	c.Stream = cmp.Or(c.Stream, DefaultStream)
	c.Claim = cmp.Or(c.Claim, DefaultClaim)
	c.DedupWindow = cmp.Or(c.DedupWindow, DefaultDedupWindow)
	switch {
	case strings.Trim(c.Stream, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" || len(c.Stream) > 64:
		return fmt.Errorf("natsqueue: Stream %q; want up to 64 letters, digits, - and _", c.Stream)
	case c.Replicas < 0 || c.Replicas > 5:
		return fmt.Errorf("natsqueue: Replicas of %d; want 1 to 5", c.Replicas)
	case c.Partitions < 0 || c.Partitions > maxPartitions:
		return fmt.Errorf("natsqueue: Partitions of %d; want 1 to %d", c.Partitions, maxPartitions)
	case c.Claim < time.Second || c.Claim > time.Hour:
		return fmt.Errorf("natsqueue: Claim of %v; want a second to an hour", c.Claim)
	case c.DedupWindow < time.Minute:
		return fmt.Errorf("natsqueue: DedupWindow of %v; want a minute or more", c.DedupWindow)
	case c.DedupMax < 0:
		return fmt.Errorf("natsqueue: DedupMax: %d is negative", c.DedupMax)
	case c.MaxBytes < webhook.Unlimited:
		return fmt.Errorf("natsqueue: MaxBytes: %d is negative", c.MaxBytes)
	case c.CacheBytes < 0:
		return fmt.Errorf("natsqueue: CacheBytes: %d is negative", c.CacheBytes)
	}
	c.DedupMax = cmp.Or(c.DedupMax, DefaultDedupMax)
	c.MaxBytes = max(c.MaxBytes, 0) // 0: no bound
	c.CacheBytes = cmp.Or(c.CacheBytes, DefaultCacheBytes)
	c.Node = cmp.Or(c.Node, storekit.ProcessName())
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return nil
}
