package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// A Segment holds the messages of one request. It is in one of three states:
//
//   - It takes messages: New made it. Its file is open, and mapped where the system can
//     map files.
//   - It waits on disk: Open found it, or Unload was called. It takes little memory. Only
//     Len, ID, Opened, Load and Remove may be used.
//   - It is loaded: Load was called. Its messages can be read, and no messages can be added.
//
// The goroutine that owns the segment calls Append, Unload, Load, Remove, Bytes, Ends and
// Len. ReadAt, Commit and Lost may be called concurrently with these. But during a ReadAt, no
// message may be appended to the range that it reads. Restore may be called concurrently with all
// of them but Append.
type Segment struct {
	dir  *Dir
	name string      // path of the file
	info os.FileInfo // identifies the file
	h    header

	n    int     // number of messages
	ends []int32 // end of each message in data; nil while the segment waits
	data []byte  // the space for data; in a loaded segment, the data
	end  int     // number of bytes of data in use
	bad  error   // the error of the disk after which the segment takes no more messages, or nil
	size int64   // bytes that count towards MaxBytes
	gone bool    // the segment was removed
	lost int     // number of damaged messages that Load has left out

	// damage is nil, or the reason why Remove sets the file aside instead of deleting it.
	damage error

	// mu keeps data and file valid while ReadAt and Commit use them. ReadAt and Commit hold a
	// read lock during I/O, so only Unload, Load, Remove and Restore wait for them.
	mu   sync.RWMutex
	file *file // the open file of a segment that takes messages, else nil

	// syncing lets concurrent calls of Commit share one sync. It is held during the sync.
	syncing sync.Mutex
	synced  int   // number of index entries that are on the disk
	failed  error // error of the first failed sync; a later success would prove nothing
}

var (
	errFits     = errors.New("spool: the message does not fit into the segment")
	errUnloaded = errors.New("spool: the segment is not loaded")
)

// begin writes the header of s to its empty file. It writes the magic last, so that a
// file with an incomplete header has no magic. s.mu must be held.
func (s *Segment) begin() error {
	f := s.file
	s.data = f.memory[s.h.layout.dataAt():s.h.layout.size()]
	s.ends = f.ends[:0]
	s.end = s.h.head
	return f.change(func() error {
		s.h.put(f.memory)
		copy(s.data, s.dir.conf.Head)
		if err := f.written(s.h.layout.dataAt(), s.h.head); err != nil {
			return err
		}
		if err := f.written(entrySize, headerSize-entrySize); err != nil {
			return err
		}
		f.words[0].Store(entry(magic).native())
		return f.written(0, entrySize)
	})
}

// ID returns the id that was passed to New.
func (s *Segment) ID() ID { return s.h.id }

// Opened returns the time that was passed to New, in UTC, with nanosecond precision.
func (s *Segment) Opened() time.Time { return time.Unix(0, s.h.opened).UTC() }

// Len returns the number of messages. Load may reduce it, because it leaves out damaged
// messages.
func (s *Segment) Len() int { return s.n }

// fits reports whether the segment has room for a message of n bytes.
func (s *Segment) fits(n int) bool {
	return s.file != nil && s.bad == nil && n > 0 && s.n < s.h.layout.messages && n <= len(s.data)-s.next()
}

// next returns the offset at which the next message begins.
func (s *Segment) next() int {
	if s.n > 0 {
		return s.end + 1
	}
	return s.end
}

// Append copies a message into the segment. The argument sum is the message's Checksum. If
// Append returns nil, the message survives the end of the process. If it returns an error,
// the message is not part of the segment. After an error of the disk, the segment takes no
// more messages. The earlier messages stay in the segment. Those that can be read can still
// be sent.
//
// If the file is mapped, Append makes no system call. But the kernel may delay Append if
// it throttles programs that change memory faster than it can write the changes to the
// disk.
func (s *Segment) Append(message []byte, sum uint32) error {
	if !s.fits(len(message)) {
		if s.bad != nil {
			return s.bad
		}
		return errFits
	}
	start := s.next()
	end := start + len(message)
	if err := s.store(message, start, makeEntry(end, sum^s.h.sum)); err != nil {
		s.bad = fmt.Errorf("spool: append: %w", err)
		return s.bad
	}
	s.n++
	s.end = end
	s.ends = append(s.ends, int32(end))
	return nil
}

// Bytes returns the head and the messages, with a comma between messages. The result is
// valid until the next call of Unload or Remove, and must not be changed. In a mapped file,
// reading these bytes may have to read from the disk. If the disk fails then, the fault
// ends the program. ReadAt returns an error instead.
func (s *Segment) Bytes() []byte { return s.data[:s.end:s.end] }

// Ends returns the end of each message in Bytes. The result is valid until the next call of
// Unload or Remove, and must not be changed.
func (s *Segment) Ends() []int32 { return s.ends }

// ReadAt reads from the result of Bytes; see [io.ReaderAt]. After Remove it returns
// ErrClosed, so that a late reader does not get the bytes of another request.
func (s *Segment) ReadAt(p []byte, off int64) (int, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case s.gone:
		return 0, ErrClosed
	case s.data == nil:
		return 0, errUnloaded
	case off < 0:
		return 0, fmt.Errorf("spool: read at %d", off)
	case off >= int64(s.end):
		return 0, io.EOF
	}
	from := s.data[off:s.end]
	if s.file == nil {
		copy(p, from)
	} else if err := guard(s.file.memory, func() error { copy(p, from); return nil }); err != nil {
		return 0, fmt.Errorf("spool: read: %w", err)
	}
	if len(from) < len(p) {
		return len(from), io.EOF
	}
	return len(p), nil
}

// Commit returns when the first n messages are as durable as Config asks. With SyncEach it
// waits until they are on the disk. Otherwise it returns at once. Concurrent calls share
// one sync. After an error the messages are in the segment and survive the process, but
// they may not survive a loss of power. All later calls return the same error, except after ErrLost.
func (s *Segment) Commit(n int) error {
	if s.dir.conf.Sync != SyncEach {
		return nil
	}
	return s.sync(n)
}

// sync writes the messages in the index to the disk, if the index has entries that no
// earlier sync has written. If n is not 0 and the first n messages are already on the disk,
// sync does nothing.
func (s *Segment) sync(n int) error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	if s.failed != nil || n > 0 && s.synced >= n {
		return s.failed
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.file == nil {
		return nil // Unload has synced, or the segment was removed
	}
	if deleted(s.name, s.info) {
		return ErrLost
	}
	shown, err := s.file.shown(s.synced, s.h.layout.messages)
	if err == nil && shown > s.synced {
		err = s.file.sync()
	}
	if err != nil {
		s.failed = fmt.Errorf("spool: sync: %w", err)
		return s.failed
	}
	s.synced = shown
	return nil
}

// Unload releases the memory of the segment and the unused space of its file. The segment then
// takes no more messages. If Config asks for syncs, Unload syncs the file and returns the error
// of the sync. Even after an error, the segment is unloaded.
func (s *Segment) Unload() error {
	s.mu.RLock()
	taking := s.file != nil
	s.mu.RUnlock()
	var err error
	if taking && s.dir.conf.Sync != 0 {
		err = s.sync(0)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.file; f != nil {
		freed := int64(0)
		if used := int64(s.h.layout.dataAt() + s.end); f.close(used) == nil {
			freed = s.size - used
		}
		s.size -= freed
		s.file = nil
		s.dir.forget(s, freed)
	}
	s.data, s.ends, s.end = nil, nil, 0
	return err
}

// Load reads the messages of a segment that waits on disk. It leaves out damaged messages. The
// result lost counts those that no earlier Load has counted. If Load cannot read the file or
// its header, the error is a *DamageError. After a damaged message or a *DamageError, Remove
// sets the file aside instead of deleting it. Any other error does not mean that the file is
// damaged. The error is ErrClosed, or a lack of resources, such as too many open files, after
// which a later Load may succeed.
func (s *Segment) Load() (lost int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.gone || s.dir.isClosed():
		return 0, ErrClosed
	case s.data != nil:
		return 0, nil
	}
	if err = ErrLost; !deleted(s.name, s.info) {
		err = s.load()
	}
	if temporary(err) {
		return 0, fmt.Errorf("spool: load: %w", err)
	}
	if s.damage = err; err != nil {
		return 0, &DamageError{File: s.name, Err: err}
	}
	lost = s.n - len(s.ends)
	s.n, s.end = len(s.ends), len(s.data)
	if s.lost += lost; s.lost != 0 {
		s.damage = fmt.Errorf("%d of %d messages do not match their checksums", s.lost, s.n+s.lost)
	}
	return lost, nil
}

// temporary reports whether err comes from the state of the process or the system, so
// that the file itself may be undamaged.
func temporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// load sets s.data and s.ends.
func (s *Segment) load() error {
	file, err := readFile(s.name, s.h.layout.size())
	if err != nil {
		return err
	}
	h, err := parseHeader(file)
	if err != nil {
		return err
	}
	if h != s.h {
		return errors.New("the header has changed since the file was opened")
	}
	if err := h.checkIndex(file); err != nil {
		return err
	}
	s.data, s.ends = h.salvage(file, s.dir.conf.Head)
	return nil
}

// Remove removes the segment, whose messages have been sent or given up, so that the next
// Open does not find it. Calling it again does nothing.
func (s *Segment) Remove() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil
	}
	if s.dir.isClosed() {
		return ErrClosed
	}
	return s.remove()
}

// remove does the work of Remove, for a segment that has not been removed yet. s.mu
// must be held.
func (s *Segment) remove() error {
	f := s.file
	s.gone = true
	s.file, s.data, s.end = nil, nil, 0
	s.dir.forget(s, s.size)
	var err error
	switch {
	case f != nil:
		f.ends = s.ends[:0]
		if s.bad != nil || deleted(s.name, s.info) || f.vacate(s.n) != nil {
			err = f.discard()
		} else {
			err = s.dir.recycle(f)
		}
	case deleted(s.name, s.info): // do not touch a file of this name, which may be another process's
		if s.damage != nil {
			s.dir.conf.Report(&DamageError{s.name, s.damage})
		}
	case s.damage != nil:
		s.dir.setAside(s.name, s.damage)
	default:
		err = os.Remove(s.name)
	}
	s.ends = nil
	if err != nil {
		return fmt.Errorf("spool: remove: %w", err)
	}
	return nil
}

// Lost reports whether somebody has deleted the segment's file, or has put another file in its
// place. Then the next Open does not find the messages of the segment.
func (s *Segment) Lost() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return !s.gone && deleted(s.name, s.info)
}

// Restore copies the messages of a lost segment to a new file, as durable as Config.Sync asks. It
// does nothing if the segment is not lost. It returns ErrLost for a segment that waits on disk: its
// messages are gone. The segment takes no more messages after that.
func (s *Segment) Restore() error {
	if !s.Lost() {
		return nil
	}
	d := s.dir
	if _, err := d.Check(); err != nil {
		return err
	}
	t, err := s.copy()
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.gone || s.data == nil || !deleted(s.name, s.info) { // removed, unloaded or restored meanwhile
		s.mu.Unlock()
		return t.Remove()
	}
	t.mu.Lock()
	old := s.file
	s.file, s.data, s.end, s.name, s.info, s.h = t.file, t.data, t.end, t.name, t.info, t.h
	t.file, t.data, t.gone = nil, nil, true
	t.mu.Unlock()
	d.mu.Lock()
	delete(d.open, t)
	d.open[s] = struct{}{}
	d.used -= s.size
	s.size = t.size
	d.mu.Unlock()
	s.mu.Unlock()
	if old != nil {
		return old.close(0)
	}
	return nil
}

// copy returns a new segment with the messages of s. It syncs the messages if Config asks for syncs.
func (s *Segment) copy() (*Segment, error) {
	s.mu.RLock()
	data, ends, id, opened := make([]byte, s.end), s.ends, s.h.id, s.Opened()
	s.mu.RUnlock()
	if _, err := s.ReadAt(data, 0); err != nil {
		return nil, fmt.Errorf("%w, and cannot be copied: %w", ErrLost, err)
	}
	t, err := s.dir.New(id, opened)
	if err != nil {
		return nil, err
	}
	start := len(s.dir.conf.Head)
	for _, end := range ends {
		message := data[start:end]
		if err = t.Append(message, Checksum(message)); err != nil {
			break
		}
		start = int(end) + 1
	}
	if err == nil && s.dir.conf.Sync != 0 {
		err = t.sync(0)
	}
	if err != nil {
		t.Remove()
		return nil, err
	}
	return t, nil
}

// leave unloads the segment, or removes it if it has no messages. Close calls it.
func (s *Segment) leave() error {
	if s.n > 0 {
		return s.Unload()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil
	}
	return s.remove()
}
