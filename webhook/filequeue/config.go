package filequeue

import (
	"cmp"
	"errors"
	"log/slog"
	"time"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/webhook/store"
)

// The defaults of Config.
const (
	DefaultDedupWindow  = 24 * time.Hour
	DefaultDedupMax     = 1_000_000
	DefaultHistoryBytes = 1 << 30
	DefaultLockTimeout  = time.Second
)

var (
	// ErrLocked is returned by Open if another process, or another Store of this process, has the
	// folder open.
	ErrLocked = errors.New("filequeue: the folder is in use: this process or another one has it open")
	// ErrDamaged is returned by Open if the folder is not a store, or if files are missing or
	// unreadable. Open then changes nothing in the folder. Rescue copies the readable part.
	ErrDamaged = errors.New("filequeue: the folder is damaged")
	// ErrVersion is returned by Open if the folder was written by a version of this package with
	// another format.
	ErrVersion = errors.New("filequeue: the folder has an unknown version")
	// ErrLost is returned by calls while the file that they write to is removed, moved away or
	// replaced. The store works again once the file is back.
	ErrLost = errors.New("filequeue: a file was removed or replaced while in use")
)

// Config configures a Store. The zero value is ready for use.
type Config struct {
	// MaxBytes bounds the bytes of the records of deliveries, dead letters, the history and
	// documents that are needed. The files take up to about twice that and the dedup window, and 50
	// MB more. At the bound Put returns store.ErrQueueFull, and stored deliveries can still be
	// settled. With zero or store.Unlimited, only the size of the disk is a bound.
	MaxBytes int64
	// DedupWindow is how long Put recognises a delivery that was put before, also after a
	// restart. Zero means DefaultDedupWindow, 24 hours.
	DedupWindow time.Duration
	// DedupMax bounds how many deliveries the dedup window remembers. Each takes about 40 bytes of
	// memory and 16 bytes of the disk. The latest DedupMax/2 stay for the whole DedupWindow. Zero
	// means DefaultDedupMax, 1,000,000.
	DedupMax int
	// HistoryAge is how long delivered deliveries are kept; see store.History. They are removed in
	// groups, so up to a sixteenth of it later. Zero keeps none. With store.Unlimited, only
	// HistoryBytes bounds them.
	HistoryAge time.Duration
	// HistoryBytes bounds the total Size of the delivered deliveries that are kept. Zero means
	// DefaultHistoryBytes, 1 GB (1,073,741,824 bytes). store.Unlimited means no bound. With MaxBytes,
	// at most half of that are kept, so that the history leaves room for new deliveries.
	HistoryBytes int64
	// LockTimeout is how long Open waits for another process to release the folder. Zero
	// means DefaultLockTimeout, 1 second.
	LockTimeout time.Duration
	// Logger gets a line when the disk fails or is full, when it works again, when maintenance keeps
	// failing, and for each record that cannot be read. Nil means no logs.
	Logger *slog.Logger
}

// withDefaults replaces zeros by the defaults. The error names every field that is wrong.
func (c Config) withDefaults() (Config, error) {
	var wrong check.Faults
	check.Least(&wrong, "MaxBytes", &c.MaxBytes, store.Unlimited, store.Unlimited)
	check.Least(&wrong, "DedupWindow", &c.DedupWindow, 0, DefaultDedupWindow)
	check.Least(&wrong, "DedupMax", &c.DedupMax, 0, DefaultDedupMax)
	check.Least(&wrong, "HistoryAge", &c.HistoryAge, store.Unlimited, 0)
	check.Least(&wrong, "HistoryBytes", &c.HistoryBytes, store.Unlimited, DefaultHistoryBytes)
	if c.MaxBytes > 0 && (c.HistoryBytes == store.Unlimited || c.HistoryBytes > c.MaxBytes/2) {
		c.HistoryBytes = max(c.MaxBytes/2, 1)
	}
	check.Least(&wrong, "LockTimeout", &c.LockTimeout, 0, DefaultLockTimeout)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c, wrong.Err("filequeue")
}
