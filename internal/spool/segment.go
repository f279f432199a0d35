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
//   - It takes messages: New made it. Its file is open, and mapped where files
//     can be.
//   - It waits on disk: Open found it, or Unload was called. It costs no memory
//     beside a few fields. Only Len, Load, Remove and what tells of its making
//     are of use.
//   - It is loaded: its messages can be read and no further one can be added.
//
// Append, Unload, Load and Remove are for one goroutine at a time, who owns the
// segment, and so are Fits, Bytes, Ends and Len. ReadAt and Commit may be called
// at any time beside them, but what ReadAt reads must not be appended to.
type Segment struct {
	dir  *Dir
	name string // path of the file
	h    header

	n    int     // messages
	ends []int32 // where each ends in data; nil while it waits
	data []byte  // the room for data; of a loaded one, the data
	end  int     // of what is used of data
	bad  error   // why it takes no further message
	size int64   // what it counts towards MaxBytes
	gone bool    // removed
	lost int     // messages that Load has left out

	// damage is why the file is to be set aside, not deleted.
	damage error

	// mu keeps memory in its place while ReadAt and Commit look at it. It is
	// held across I/O, which only Unload, Load and Remove wait for.
	mu   sync.RWMutex
	file *file // of a segment that takes messages

	// syncing makes those who Commit at the same time wait for one sync. It
	// is held across that.
	syncing sync.Mutex
	synced  int   // entries of the index that are on the disk
	failed  error // of the first sync that failed; later ones prove nothing
}

var (
	errFits     = errors.New("spool: the message does not fit into the segment")
	errUnloaded = errors.New("spool: the segment is not loaded")
)

// begin makes the empty file of s a segment. The magic comes last. s.mu is held.
func (s *Segment) begin() error {
	f := s.file
	s.data = f.memory[s.h.dataAt():s.h.size()]
	s.ends = f.ends[:0]
	s.end = s.h.head
	return f.change(func() error {
		s.h.put(f.memory)
		copy(s.data, s.dir.conf.Head)
		if err := f.written(s.h.dataAt(), s.h.head); err != nil {
			return err
		}
		if err := f.written(entrySize, headerSize-entrySize); err != nil {
			return err
		}
		f.words[0].Store(entry(magic).native())
		return f.written(0, entrySize)
	})
}

// ID and Opened return what New was given.
func (s *Segment) ID() ID { return s.h.id }

// Opened has a precision of a nanosecond, and is in UTC.
func (s *Segment) Opened() time.Time { return time.Unix(0, s.h.opened).UTC() }

// Len returns how many messages there are. Of a segment that Open found it
// may turn out to be less after Load.
func (s *Segment) Len() int { return s.n }

// Fits reports whether the segment takes a message of n bytes.
func (s *Segment) Fits(n int) bool {
	return s.file != nil && s.bad == nil && n > 0 && s.n < s.h.messages && n <= len(s.data)-s.next()
}

// next is where the next message begins.
func (s *Segment) next() int {
	if s.n > 0 {
		return s.end + 1
	}
	return s.end
}

// Append copies a message into the segment; sum is its Checksum. When Append
// has returned nil, the message survives the process. When it has returned an
// error, the message is not part of the segment, which takes no further one if
// the disk is to blame: what was appended before can still be sent, as far as
// it can be read.
//
// Where files are mapped Append makes no system call. It may still be held up:
// by the kernel, where it limits who dirties memory faster than the disk takes
// it.
func (s *Segment) Append(message []byte, sum uint32) error {
	if !s.Fits(len(message)) {
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

// Bytes returns the head and the messages, with a comma between any two of
// them. It is valid until the next call of Unload or Remove, and not to be
// changed. Reading it where files are mapped needs the disk in rare cases, and
// is a fault that ends the program should the disk fail then; ReadAt returns
// an error.
func (s *Segment) Bytes() []byte { return s.data[:s.end:s.end] }

// Ends returns where each message ends in Bytes. It is valid until the next
// call of Unload or Remove, and not to be changed.
func (s *Segment) Ends() []int32 { return s.ends }

// ReadAt reads from what Bytes returns (see [io.ReaderAt]). It returns ErrClosed
// after Remove, so that a reader who comes late finds no other request's bytes.
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

// Commit returns when the first n messages are as safe as Config asks: with
// SyncEach when they are on the disk, otherwise at once. Calls that come
// together share one sync. After an error the messages are in the segment, and
// survive the process, but not surely a loss of power; it is then the answer to
// all further calls.
func (s *Segment) Commit(n int) error {
	if !s.dir.conf.SyncEach {
		return nil
	}
	return s.sync(n)
}

// sync puts on the disk what the index shows, unless it shows nothing new, or
// the first n messages are there already and n is not 0.
func (s *Segment) sync(n int) error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	if s.failed != nil || n > 0 && s.synced >= n {
		return s.failed
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.file == nil {
		return nil // Unload has synced, or it is sent
	}
	shown, err := s.file.shown(s.synced, s.h.messages)
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

// Unload gives back memory and what the file does not use. The segment takes
// no further message then. The error is that of a sync that Config asked for;
// the segment is unloaded anyway.
func (s *Segment) Unload() error {
	var err error
	if s.file != nil && s.dir.conf.syncs() {
		err = s.sync(0)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.file; f != nil {
		freed := int64(0)
		if used := int64(s.h.dataAt() + s.end); f.close(used) == nil {
			freed = s.size - used
		}
		s.size -= freed
		s.file = nil
		s.dir.forget(s, freed)
	}
	s.data, s.ends, s.end = nil, nil, 0
	return err
}

// Load reads the messages of a segment that waits. Those that are damaged are
// left out, and lost tells how many more these are than at the Load before. If
// nothing can be read, the error is a *DamageError. Remove sets the file aside in
// both cases. Any other error says nothing about the file: the Dir is closed, or the
// process has too many open files, say. Load may be tried again after each.
func (s *Segment) Load() (lost int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.gone || s.dir.isClosed():
		return 0, ErrClosed
	case s.data != nil:
		return 0, nil
	}
	err = s.load()
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

// temporary reports whether err is about the state of the process or the system, and
// not about a file.
func temporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// load sets data and ends.
func (s *Segment) load() error {
	file, err := readFile(s.name, s.h.size())
	if err != nil {
		return err
	}
	h, err := parseHeader(file)
	if err != nil {
		return err
	}
	if h != s.h {
		return errors.New("it is not the segment that it was")
	}
	s.data, s.ends = h.salvage(file, s.dir.conf.Head)
	return nil
}

// Remove ends the segment: its messages have been sent or given up, and will
// not be found by the next Open. Calling it again does nothing.
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

// remove is Remove for a segment that is there. s.mu is held.
func (s *Segment) remove() error {
	f := s.file
	s.gone = true
	s.file, s.data, s.end = nil, nil, 0
	s.dir.forget(s, s.size)
	var err error
	switch {
	case f != nil:
		f.ends = s.ends[:0]
		if s.bad != nil || f.vacate(s.n) != nil {
			err = f.discard()
		} else {
			err = s.dir.recycle(f)
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

// leave is what Close does to a segment.
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
