package natsqueue

import (
	"cmp"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

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
	// Stream is the name of the stream, and the first part of its subjects. Letters, digits,
	// "-" and "_". Empty means DefaultStream.
	Stream string
	// Replicas is how many servers keep the stream, 1 to 5. Zero means what an
	// existing stream has, and for a new one 3 where there are as many servers,
	// else 1.
	Replicas int
	// Storage is where servers keep the stream. It cannot be changed later. Zero
	// is jetstream.FileStorage for a new stream.
	Storage jetstream.StorageType
	// NoCreate has Open create and change no stream, and fail where it is missing.
	NoCreate bool
	// Partitions is into how many parts destinations are divided; as many
	// nodes share the work at most. It cannot be changed later: Open
	// goes by what the stream says. 1 to 256; zero means DefaultPartitions, 32.
	Partitions int
	// DedupWindow is how long a delivery that was put is recognised when it is
	// put again. A minute or more. Zero means DefaultDedupWindow, an hour.
	DedupWindow time.Duration
	// DedupMax bounds how many puts a node remembers for that, at about 32 bytes each, and
	// the stream about as many of each partition; half as many are in any case remembered
	// for DedupWindow. Zero means DefaultDedupMax, 1,000,000.
	DedupMax int
	// MaxBytes bounds what the stream takes of the disk, in each replica: about. Put returns
	// ErrQueueFull beyond it. Zero and webhook.Unlimited mean no bound but the server's.
	MaxBytes int64
	// Claim is how long what this node owns is its own after its last heartbeat;
	// then others take it over. There are three heartbeats in that time. From a
	// second to an hour; zero means DefaultClaim. It is to be the same in all
	// nodes.
	Claim time.Duration
	// CacheBytes bounds the deliveries in memory that are not claimed: about. Zero
	// means DefaultCacheBytes, 32 MB.
	CacheBytes int64
	// Node is what Nodes and the logs of others call this node. Empty means the
	// host's name and the process id.
	Node string
	// Logger is told when the server cannot be reached, when partitions are taken
	// over or were lost, and how what was accepted may be lost. Nil means no logs.
	Logger *slog.Logger

	wanted int  // Partitions as they were asked for
	stored bool // Storage was given
}

func (c *Config) complete() error {
	if c.Stream == "" {
		c.Stream = DefaultStream
	}
	if strings.Trim(c.Stream, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" || len(c.Stream) > 64 {
		return fmt.Errorf("natsqueue: Stream %q; want up to 64 letters, digits, - and _", c.Stream)
	}
	if c.Replicas < 0 || c.Replicas > 5 {
		return fmt.Errorf("natsqueue: Replicas of %d; want 1 to 5", c.Replicas)
	}
	c.wanted = c.Partitions
	if c.Partitions == 0 {
		c.Partitions = DefaultPartitions
	}
	if c.Partitions < 1 || c.Partitions > maxPartitions {
		return fmt.Errorf("natsqueue: Partitions of %d; want 1 to %d", c.Partitions, maxPartitions)
	}
	if c.Claim == 0 {
		c.Claim = DefaultClaim
	}
	if c.Claim < time.Second || c.Claim > time.Hour {
		return fmt.Errorf("natsqueue: Claim of %v; want a second to an hour", c.Claim)
	}
	c.stored = c.Storage != jetstream.FileStorage
	if c.DedupWindow == 0 {
		c.DedupWindow = DefaultDedupWindow
	}
	if c.DedupWindow < time.Minute {
		return fmt.Errorf("natsqueue: DedupWindow of %v; want a minute or more", c.DedupWindow)
	}
	switch {
	case c.Storage != jetstream.FileStorage && c.Storage != jetstream.MemoryStorage:
		return fmt.Errorf("natsqueue: Storage: %d is unknown", c.Storage)
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
	if c.Node == "" {
		c.Node = storekit.ProcessName()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}
