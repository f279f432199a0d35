package filequeue

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// The defaults of Config.
const (
	DefaultDedupWindow  = 24 * time.Hour
	DefaultDedupMax     = 1_000_000
	DefaultHistoryBytes = 1 << 30
	DefaultLockTimeout  = time.Second
)

// Unlimited switches a bound off.
const Unlimited = -1

var (
	// ErrLocked is returned by Open if another process, or another Store of this one, has the
	// folder open.
	ErrLocked = errors.New("filequeue: the folder is in use by another process")
	// ErrDamaged is returned by Open if the folder is not one of this package, or its files
	// cannot be told apart. The files are left as they are; Rescue copies what can be read.
	ErrDamaged = errors.New("filequeue: the folder is damaged")
	// ErrVersion is returned by Open if the folder was written by a version of this package
	// whose format is another.
	ErrVersion = errors.New("filequeue: the folder has an unknown version")
	// ErrLost is what calls return while the file that they write to was removed, moved away
	// or replaced. The store works again once it is back.
	ErrLost = errors.New("filequeue: a file was removed or replaced while in use")
)

// Config configures a Store. The zero value is ready for use.
type Config struct {
	// MaxBytes bounds the bytes of all records that are needed: of deliveries, dead
	// letters, the history and settings. The files take up to about twice that, and some
	// 50 MB. At the bound Put returns webhook.ErrQueueFull, while what is stored may still be
	// settled. Zero and Unlimited mean no bound but the disk's.
	MaxBytes int64
	// DedupWindow is how long a delivery that was put is recognised when it is put again,
	// also after a restart. Zero means DefaultDedupWindow, 24 hours.
	DedupWindow time.Duration
	// DedupMax bounds how many puts are remembered for that, at about 32 bytes of memory
	// and 16 of the disk each; half as many are in any case remembered for DedupWindow. Zero
	// means DefaultDedupMax, 1,000,000.
	DedupMax int
	// HistoryAge is how long what was delivered is kept; see webhook.History. Zero means
	// not at all, Unlimited up to HistoryBytes.
	HistoryAge time.Duration
	// HistoryBytes bounds the Sizes of what was delivered and is kept. Zero means
	// DefaultHistoryBytes, 1 GB of 1,073,741,824 bytes; Unlimited means no bound.
	HistoryBytes int64
	// LockTimeout is how long Open waits for another process to let go of the folder. Zero
	// means DefaultLockTimeout, 1 second.
	LockTimeout time.Duration
	// Logger is told when the disk fails or is full and when it works again, and of what
	// cannot be read. Nil means no logs.
	Logger *slog.Logger
}

// withDefaults returns c with its zeros filled in, or an error that names a field.
func (c Config) withDefaults() (Config, error) {
	for _, f := range []struct {
		name    string
		value   int64
		minimum int64
	}{
		{"MaxBytes", c.MaxBytes, Unlimited}, {"DedupWindow", int64(c.DedupWindow), 0}, {"DedupMax", int64(c.DedupMax), 0},
		{"HistoryAge", int64(c.HistoryAge), Unlimited}, {"HistoryBytes", c.HistoryBytes, Unlimited}, {"LockTimeout", int64(c.LockTimeout), 0},
	} {
		if f.value < f.minimum {
			return c, fmt.Errorf("filequeue: Config.%s is negative: %d", f.name, f.value)
		}
	}
	fill := func(v *int64, by int64) {
		if *v == 0 {
			*v = by
		}
	}
	fill(&c.MaxBytes, Unlimited)
	fill((*int64)(&c.DedupWindow), int64(DefaultDedupWindow))
	fill(&c.HistoryBytes, DefaultHistoryBytes)
	fill((*int64)(&c.LockTimeout), int64(DefaultLockTimeout))
	if c.DedupMax == 0 {
		c.DedupMax = DefaultDedupMax
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// noRoom returns the error of a put that the disk has no room for.
func noRoom(err error) error {
	if !full(err) {
		return fmt.Errorf("filequeue: %w", err)
	}
	return fmt.Errorf("%w: filequeue: %w", webhook.ErrQueueFull, err)
}
