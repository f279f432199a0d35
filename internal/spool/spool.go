// Package spool keeps the messages of unsent requests in files, so that they survive the
// end of the process that queued them.
//
// A folder holds segments. A [Segment] holds the messages of one request: the bytes to be
// sent, and an index with the end and the checksum of each message. On Linux, macOS,
// FreeBSD and DragonFly, a segment that takes messages is a file mapped into memory. On
// other systems it is a buffer whose changes are written through, with two system calls per
// message. Either way the kernel has the message when Append returns. So the next [Open] of
// the folder finds it, however the process ended. [Config] decides which messages a loss of
// power may cost.
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
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/hookferry/analytics/internal/disk"
)

var (
	// ErrFull is returned by New and Prepare if MaxBytes leaves no room for another
	// segment.
	ErrFull = errors.New("spool: the folder has reached MaxBytes")

	// ErrClosed is returned by calls after Close, and by calls on a segment after Remove.
	ErrClosed = errors.New("spool: closed")

	// ErrLost is returned if somebody has deleted the file of a segment.
	ErrLost = errors.New("spool: the file of the messages was deleted while in use")

	// ErrLocked is returned by Open for a folder that is already open, in this process or
	// another.
	ErrLocked = disk.ErrLocked
)

const (
	// maxSpare is how many files of removed segments a Dir keeps for reuse, with their space
	// on disk and their mapping. So during a steady flow of messages it makes no new files.
	maxSpare = 5

	maxData     = 1 << 24
	maxMessages = 1 << 16
)

// SyncEach is a value of Config.Sync.
const SyncEach time.Duration = -1

// A Config configures the segments of a folder. The caller is responsible for numbers within the
// bounds.
type Config struct {
	// Head is the beginning of Bytes, before the first message. Segments that an
	// earlier process wrote with another head get this head when they are loaded.
	Head string

	// MaxData is the maximum length of Bytes, including Head: at most 16 MB, and more than
	// Head.
	MaxData int

	// MaxMessages is the maximum number of messages of a segment: 1 to 65,536.
	MaxMessages int

	// MaxBytes bounds the files with messages, in bytes on disk. A segment that takes
	// messages counts with its full size, 128 + 8 MaxMessages + MaxData. A segment that
	// waits counts with the bytes that it uses. Spare segments and files set aside do not
	// count. Zero means no bound.
	MaxBytes int64

	// Sync is how often messages are synced to the disk. A loss of power or a crash of the
	// kernel then costs the messages of at most one such interval. With SyncEach, Commit
	// waits until its messages are on the disk. Zero leaves syncing to the kernel: on Linux,
	// a loss of power may cost the messages of the last 35 seconds, unless
	// vm.dirty_expire_centisecs was changed.
	Sync time.Duration

	// Report, if not nil, gets the errors that no call returns: a *[DamageError] for each
	// file that is set aside, and the errors of interval syncs. It may be called from
	// several goroutines at once, and from inside Open, Load and Remove. Report must not
	// call this package.
	Report func(error)

	// Reserve reserves the space of a file on the disk. If it is nil, the package reserves
	// the space itself. Tests set Reserve to simulate a full disk.
	Reserve func(f *os.File, size int64) error

	plain bool // write through even where files can be mapped; set by tests
}

// complete returns c with the defaults filled in.
func (c Config) complete() Config {
	if c.Report == nil {
		c.Report = func(error) {}
	}
	if c.Reserve == nil {
		c.Reserve = reserve
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = math.MaxInt64
	}
	c.plain = c.plain || !canMap
	return c
}

func (c Config) layout() layout { return layout{messages: c.MaxMessages, data: c.MaxData} }

// A Dir is an open folder. Its methods may be called from several goroutines
// at once.
type Dir struct {
	path   string
	conf   Config
	stop   chan struct{}  // closed to stop the goroutine that syncs
	syncer sync.WaitGroup // waits for that goroutine

	// making is held while a file is made, so that two goroutines do not make files at
	// the same time. It guards the fields below.
	making sync.Mutex
	lock   *os.File
	again  bool // the folder was deleted since the latest Check

	mu       sync.Mutex // guards the fields below; never held during I/O
	closed   bool
	locked   os.FileInfo // identifies lock
	spare    []*file
	open     map[*Segment]struct{} // segments whose file is open: those that New made, until Unload or Remove
	used     int64                 // bytes of files with messages
	sequence uint64                // sequence of the newest segment
	number   uint64                // number of the newest file
}

// Open opens a folder, and makes it if it does not exist. It returns the segments that
// earlier processes left in it, oldest first, not loaded. It reads only their headers and
// indices. So a backlog of a gigabyte delays Open by milliseconds.
//
// If a file has the name of a segment but is damaged or is not a segment, Open appends
// ".aside" to its name, and reports it. It ignores other files. Open locks the folder in
// a way that the kernel undoes when the process ends. The error for a locked folder is
// [ErrLocked].
//
// Open makes folders and files that only their owner may access. New reserves the space of a
// segment, so New is the call that fails if the disk is full. But on file systems that compress or
// copy on write (Btrfs, ZFS), a write to reserved space may still fail. There Append, too, may
// return the error of a full disk.
func Open(path string, c Config) (*Dir, []*Segment, error) {
	c = c.complete()
	_, missing := os.Stat(path)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, nil, fmt.Errorf("spool: %w", err)
	}
	d := &Dir{path: path, conf: c, open: map[*Segment]struct{}{}}
	lock, info, err := d.takeLock()
	if err != nil {
		return nil, nil, fmt.Errorf("spool: folder %s: %w", path, err)
	}
	d.lock, d.locked = lock, info
	if c.Sync != 0 && missing != nil {
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
	if c.Sync > 0 {
		d.stop = make(chan struct{})
		d.syncer.Go(d.syncOften)
	}
	return d, segments, nil
}

// lockName returns the path of the file whose lock makes the folder this process's own.
func (d *Dir) lockName() string { return filepath.Join(d.path, "lock") }

// takeLock locks the folder, which must exist. It refuses the folder of another user.
func (d *Dir) takeLock() (*os.File, os.FileInfo, error) {
	if err := disk.CheckFolder(d.path); err != nil {
		return nil, nil, err
	}
	lock, err := disk.LockFile(d.lockName())
	if err != nil {
		return nil, nil, err
	}
	info, err := lock.Stat()
	if err != nil {
		lock.Close()
		return nil, nil, err
	}
	return lock, info, nil
}

// Check finds out whether somebody has deleted the folder or its lock file since the latest Check.
// If so, it makes the folder again, locks it, and reports that to Config.Report. Other processes
// may have used the folder meanwhile. If one still does, the error is ErrLocked. The segments whose
// files were deleted, too, are lost; see Segment.Restore.
func (d *Dir) Check() (again bool, err error) {
	d.making.Lock()
	made, err := d.check()
	again, d.again = d.again, false
	d.making.Unlock()
	d.reportAgain(made)
	return again, err
}

// reportAgain reports that check has made the folder again. d.making must not be held, because
// Report may wait for a call that holds it.
func (d *Dir) reportAgain(made bool) {
	if made {
		d.conf.Report(fmt.Errorf("spool: folder %s was deleted while in use; it was made again", d.path))
	}
}

// check makes the folder again if somebody has deleted it, and reports whether it has. d.making must
// be held.
func (d *Dir) check() (made bool, err error) {
	d.mu.Lock()
	closed, locked, spare := d.closed, d.locked, slices.Clone(d.spare)
	d.mu.Unlock()
	if closed {
		return false, ErrClosed
	}
	for _, f := range spare {
		if deleted(f.name, f.info) {
			d.dropSpare(f)
		}
	}
	// On Windows nobody can delete a file that is open.
	if runtime.GOOS == "windows" || !deleted(d.lockName(), locked) {
		return false, nil
	}
	d.again = true
	err = os.MkdirAll(d.path, 0o700)
	if err == nil && d.conf.Sync != 0 {
		err = disk.SyncFolder(filepath.Dir(d.path))
	}
	var lock *os.File
	if err == nil {
		lock, locked, err = d.takeLock()
	}
	if err != nil {
		return false, fmt.Errorf("spool: folder %s was deleted while in use, and cannot be made again: %w", d.path, err)
	}
	d.lock.Close()
	d.lock = lock
	d.mu.Lock()
	d.locked = locked
	d.mu.Unlock()
	return true, nil
}

// dropSpare discards a spare file, unless Take has taken it meanwhile.
func (d *Dir) dropSpare(f *file) {
	d.mu.Lock()
	i := slices.Index(d.spare, f)
	if i >= 0 {
		d.spare = slices.Delete(d.spare, i, i+1)
	}
	d.mu.Unlock()
	if i >= 0 {
		f.discard()
	}
}

// New returns an empty segment. It stores id and opened in the segment, so that the caller can
// read them there after a restart. opened must be between the years 1678 and 2262. The error is
// ErrFull, ErrClosed, or an error of the file system. New reserves the space of the segment, so it
// fails if the disk is full.
//
// If there is a spare segment and files are mapped, New does no I/O.
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

// Take is like New, for callers that cannot wait. If files are mapped, it does no I/O. It returns
// nil if no spare segment is ready, MaxBytes is reached or d is closed. It also returns the number
// of spare segments left. An error says that Take could not write the header of the segment.
func (d *Dir) Take(id ID, opened time.Time) (*Segment, int, error) {
	l := d.conf.layout()
	s := &Segment{dir: d, size: int64(l.size())}
	s.mu.Lock() // held until begin is done, because Close may find s before that
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

	s.name, s.info = s.file.name, s.file.info
	if err := s.begin(); err != nil {
		s.bad = err
		s.remove()
		return nil, last, fmt.Errorf("spool: begin a segment: %w", err)
	}
	return s, last, nil
}

// Prepare makes spare segments until there are n. Its errors are those of New. A caller
// that runs Prepare in the background whenever Take has left fewer than n spare segments
// usually finds one at the next Take.
func (d *Dir) Prepare(n int) error {
	d.making.Lock()
	made, err := d.prepare(n)
	d.making.Unlock()
	d.reportAgain(made)
	return err
}

// prepare is Prepare for callers that hold d.making. It reports whether it has made the folder again.
func (d *Dir) prepare(n int) (made bool, err error) {
	for {
		d.mu.Lock()
		switch {
		case d.closed:
			d.mu.Unlock()
			return made, ErrClosed
		case d.used > d.conf.MaxBytes-int64(d.conf.layout().size()):
			d.mu.Unlock()
			return made, ErrFull
		case len(d.spare) >= n:
			d.mu.Unlock()
			return made, nil
		}
		d.number++
		number := d.number
		d.mu.Unlock()

		again, err := d.check()
		if err != nil {
			return made, err
		}
		made = made || again
		f, err := newFile(filepath.Join(d.path, fileName(number)), d.conf)
		if err != nil {
			return made, fmt.Errorf("spool: make a segment: %w", err)
		}
		d.mu.Lock()
		d.spare = append(d.spare, f) // d is not closed here, because Close locks d.making first
		d.mu.Unlock()
	}
}

// recycle keeps the file of a removed segment as a spare. If there are enough spares, it
// deletes the file.
func (d *Dir) recycle(f *file) error {
	d.mu.Lock()
	keep := !d.closed && len(d.spare) < maxSpare
	if keep {
		d.spare = append(d.spare, f)
	}
	d.mu.Unlock()
	if keep {
		return nil
	}
	return f.discard()
}

// forget removes s from the open segments, and subtracts n bytes from d.used.
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

// syncOften syncs the open segments every Config.Sync, until stop is closed.
func (d *Dir) syncOften() {
	ticker := time.NewTicker(d.conf.Sync)
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

// Close unloads the remaining segments, deletes the spare ones, and releases the folder. It
// must be the last call. Messages that Load has read can still be read, and Remove returns
// ErrClosed. The next Open finds all segments that have messages and were not removed.
// Calling Close again does nothing.
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
