// Package spool keeps the messages of unsent requests in files, so that they
// survive the death of the process that queued them.
//
// A folder holds segments. A [Segment] holds the messages of one request: the bytes that
// will be sent, and an index of where each message ends with its checksum. A segment that
// takes messages is a file mapped into memory (Linux, macOS, FreeBSD, DragonFly), or a
// buffer whose changes are written through (elsewhere: two system calls a message). Either
// way the kernel has a message when Append returns, and the next [Open] of the folder finds
// it however the process ended. [Config] chooses what a loss of power may cost.
//
//	dir, backlog, err := spool.Open(folder, config) // backlog: of earlier processes
//	s, err := dir.New(id, now)
//	err = s.Append(message, spool.Checksum(message)) // any number of times
//	...                                              // send s.Bytes()
//	err = s.Remove()
//
// A backlog costs no memory: [Segment.Load] reads a segment when it is needed.
// [Segment.Unload] puts a segment made by New into the same state.
package spool

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hookferry/analytics/internal/disk"
)

var (
	// ErrFull is returned by New and Prepare when the segments that hold
	// messages leave no room for another one within MaxBytes.
	ErrFull = errors.New("spool: the folder holds as much as it may")

	// ErrClosed is returned for what comes after Close, or, of a segment,
	// after Remove.
	ErrClosed = errors.New("spool: closed")

	// ErrLocked is returned by Open for a folder that is open already, in
	// this process or another.
	ErrLocked = disk.ErrLocked
)

// DefaultSpare is how many spare segments are kept where Config says nothing.
const DefaultSpare = 5

const (
	maxData     = 1 << 24
	maxMessages = 1 << 16
)

// A Config says what the segments of a folder are like.
type Config struct {
	// Head is what Bytes begins with, before the first message. Segments of
	// an earlier process with another head are given this one as they load.
	Head string

	// MaxData is the length that Bytes may reach, head included: 1 to 16 MB,
	// and more than Head.
	MaxData int

	// MaxMessages is how many messages a segment may hold: 1 to 65,536.
	MaxMessages int

	// MaxBytes bounds the files that hold messages, in bytes on disk. One
	// that takes messages counts with its full size, 128 + 8 MaxMessages +
	// MaxData; one that waits, with what it uses. Spare segments and files set
	// aside come on top. Zero means no bound; less than one segment is an
	// error.
	MaxBytes int64

	// Spare is how many segments that were sent are kept for reuse, with
	// their space on disk and their mapping, so that a steady flow makes no
	// files. Zero means DefaultSpare.
	Spare int

	// SyncEach makes Commit wait until its messages are on the disk. Without
	// it, a loss of power (or of the kernel) may cost what the kernel had not
	// written yet: on Linux, where nobody changed vm.dirty_expire_centisecs,
	// what came in the last 35 seconds.
	SyncEach bool

	// SyncInterval, if not zero, writes messages to the disk that often, so
	// that a loss of power costs those of one interval at most. SyncEach
	// makes it needless and is not combined with it.
	SyncInterval time.Duration

	// Report, if not nil, gets the errors that no call returns: a *[DamageError] for each
	// file that is set aside, and the errors of interval syncs. It may be called from
	// several goroutines at once, and from inside Open, Load and Remove. It must not call
	// the package.
	Report func(error)

	// Reserve reserves the space of a file on the disk. Nil asks the file system
	// for it. Tests simulate a full disk by it.
	Reserve func(f *os.File, size int64) error

	plain bool // write through even where files can be mapped; set by tests
}

// check returns c with its defaults.
func (c Config) check() (Config, error) {
	if c.Spare == 0 {
		c.Spare = DefaultSpare
	}
	if c.Report == nil {
		c.Report = func(error) {}
	}
	if c.Reserve == nil {
		c.Reserve = reserve
	}
	c.plain = c.plain || !canMap
	switch {
	case c.MaxData < 1 || c.MaxData > maxData:
		return c, fmt.Errorf("spool: MaxData is %d, must be 1 to %d", c.MaxData, maxData)
	case len(c.Head) >= c.MaxData:
		return c, fmt.Errorf("spool: Head has %d bytes, must have fewer than MaxData, %d", len(c.Head), c.MaxData)
	case c.MaxMessages < 1 || c.MaxMessages > maxMessages:
		return c, fmt.Errorf("spool: MaxMessages is %d, must be 1 to %d", c.MaxMessages, maxMessages)
	case c.Spare < 0:
		return c, fmt.Errorf("spool: Spare is %d, must not be negative", c.Spare)
	case c.SyncInterval < 0:
		return c, fmt.Errorf("spool: SyncInterval is %v, must not be negative", c.SyncInterval)
	case c.MaxBytes == 0:
		c.MaxBytes = math.MaxInt64
	case c.MaxBytes < int64(c.layout().size()):
		return c, fmt.Errorf("spool: MaxBytes is %d, must be at least one segment, %d", c.MaxBytes, c.layout().size())
	}
	return c, nil
}

func (c Config) layout() layout { return layout{messages: c.MaxMessages, data: c.MaxData} }

// syncs reports whether anything is to survive a loss of power.
func (c Config) syncs() bool { return c.SyncEach || c.SyncInterval > 0 }

// A Dir is an open folder. Its methods may be called from several goroutines
// at once.
type Dir struct {
	path   string
	conf   Config
	lock   *os.File
	stop   chan struct{}  // closed to end the goroutine that syncs
	syncer sync.WaitGroup // that goroutine

	// making is held while a file is made, to make one at a time.
	making sync.Mutex

	mu       sync.Mutex // guards the rest; never held across I/O
	closed   bool
	spare    []*file
	open     map[*Segment]struct{} // that take messages or did, and have their file open
	used     int64                 // bytes of files that hold messages
	sequence uint64                // of the newest segment
	number   uint64                // of the newest file
}

// Open opens a folder, making it if there is none, and returns what earlier
// processes left in it, oldest first, not loaded. It reads where the messages
// end and not the messages, so a backlog of a gigabyte delays it by
// milliseconds.
//
// A file that is named like a segment and is none, or a damaged one, is renamed
// by adding ".aside" to its name, and reported. Other files are left alone.
// The folder is locked, by means that the kernel undoes when the process dies:
// the error for a folder in use is [ErrLocked].
//
// Files are for their owner alone, as is a folder that Open makes. On file
// systems that compress or copy on write (Btrfs, ZFS), reserved space is no
// guarantee that writes succeed; a segment then refuses messages when the disk
// is full, as everywhere else New does.
func Open(path string, c Config) (*Dir, []*Segment, error) {
	c, err := c.check()
	if err != nil {
		return nil, nil, err
	}
	_, missing := os.Stat(path)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, nil, fmt.Errorf("spool: %w", err)
	}
	lock, err := disk.LockFile(filepath.Join(path, "lock"))
	if err != nil {
		return nil, nil, fmt.Errorf("spool: folder %s: %w", path, err)
	}
	d := &Dir{path: path, conf: c, lock: lock, open: map[*Segment]struct{}{}}
	if c.syncs() && missing != nil {
		err = disk.SyncFolder(filepath.Dir(path))
	}
	var segments []*Segment
	if err == nil {
		segments, err = d.recover()
	}
	if err != nil {
		lock.Close()
		return nil, nil, fmt.Errorf("spool: %w", err)
	}
	if c.SyncInterval > 0 && !c.SyncEach {
		d.stop = make(chan struct{})
		d.syncer.Go(d.syncOften)
	}
	return d, segments, nil
}

// New returns an empty segment. id and opened are for the caller, who finds
// them in the segment again after a restart; opened may lie between the years
// 1678 and 2262. The error is ErrFull, ErrClosed, or the file system's: the
// space of a segment is reserved here, so a full disk shows here.
//
// New does no I/O when there is a spare segment.
func (d *Dir) New(id ID, opened time.Time) (*Segment, error) {
	for {
		if s, _, err := d.Take(id, opened); s != nil || err != nil {
			return s, err
		}
		if err := d.Prepare(1); err != nil {
			return nil, err
		}
	}
}

// Take is New for callers that cannot wait. It does no I/O where files are mapped, and
// returns nil when no spare segment is ready. It also returns how many spare segments are
// left. The error is that of writing the beginning of the segment.
func (d *Dir) Take(id ID, opened time.Time) (*Segment, int, error) {
	l := d.conf.layout()
	s := &Segment{dir: d, size: int64(l.size())}
	s.mu.Lock() // until it has begun; Close may find it before
	defer s.mu.Unlock()

	d.mu.Lock()
	last := len(d.spare) - 1
	if d.closed || last < 0 || d.used > d.conf.MaxBytes-s.size {
		left := len(d.spare)
		d.mu.Unlock()
		return nil, left, nil
	}
	s.file, d.spare = d.spare[last], d.spare[:last]
	d.sequence++
	s.h = header{layout: l, head: len(d.conf.Head), sequence: d.sequence, opened: opened.UnixNano(), id: id}
	d.used += s.size
	d.open[s] = struct{}{}
	d.mu.Unlock()

	s.name = s.file.name
	if err := s.begin(); err != nil {
		s.bad = err
		s.remove()
		return nil, last, fmt.Errorf("spool: begin a segment: %w", err)
	}
	return s, last, nil
}

// Prepare makes spare segments until there are n. Its errors are those of New.
// If it is called in the background whenever Take has left fewer than n, Take
// always succeeds.
func (d *Dir) Prepare(n int) error {
	d.making.Lock()
	defer d.making.Unlock()
	for {
		d.mu.Lock()
		switch {
		case d.closed:
			d.mu.Unlock()
			return ErrClosed
		case d.used > d.conf.MaxBytes-int64(d.conf.layout().size()):
			d.mu.Unlock()
			return ErrFull
		case len(d.spare) >= n:
			d.mu.Unlock()
			return nil
		}
		d.number++
		number := d.number
		d.mu.Unlock()

		f, err := newFile(filepath.Join(d.path, fileName(number)), d.conf)
		if err != nil {
			return fmt.Errorf("spool: make a segment: %w", err)
		}
		d.mu.Lock()
		d.spare = append(d.spare, f) // not closed: Close waits for making
		d.mu.Unlock()
	}
}

// recycle keeps the file of a segment that was removed as a spare, or deletes it if
// there are enough.
func (d *Dir) recycle(f *file) error {
	d.mu.Lock()
	keep := !d.closed && len(d.spare) < d.conf.Spare
	if keep {
		d.spare = append(d.spare, f)
	}
	d.mu.Unlock()
	if keep {
		return nil
	}
	return f.discard()
}

// forget takes s off the open segments, and n bytes off what is used.
func (d *Dir) forget(s *Segment, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, s)
	d.used -= n
}

func (d *Dir) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// Used returns the bytes on disk that count towards MaxBytes.
func (d *Dir) Used() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used
}

// syncOften runs until stop is closed.
func (d *Dir) syncOften() {
	ticker := time.NewTicker(d.conf.SyncInterval)
	defer ticker.Stop()
	for {
		select {
		case <-d.stop:
			return
		case <-ticker.C:
		}
		for _, s := range d.opened() {
			if err := s.sync(0); err != nil {
				d.conf.Report(err)
			}
		}
	}
}

// opened returns the segments whose file is open.
func (d *Dir) opened() []*Segment {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]*Segment, 0, len(d.open))
	for s := range d.open {
		list = append(list, s)
	}
	return list
}

// Close unloads the segments that are left, deletes the spare ones, and lets
// the folder go. It is to come last: what Load has read can still be read, and
// Remove returns ErrClosed. Segments stay for the next Open unless they were
// removed or hold nothing. Calling it again does nothing.
func (d *Dir) Close() error {
	d.making.Lock()
	defer d.making.Unlock()
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	spare := d.spare
	d.spare = nil
	d.mu.Unlock()

	if d.stop != nil {
		close(d.stop)
		d.syncer.Wait()
	}
	var errs []error
	for _, f := range spare {
		errs = append(errs, f.discard())
	}
	for _, s := range d.opened() {
		errs = append(errs, s.leave())
	}
	errs = append(errs, d.lock.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("spool: close: %w", err)
	}
	return nil
}
