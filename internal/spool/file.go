package spool

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/hookferry/analytics/internal/disk"
)

// A file is the open file of a segment that takes messages, or of a spare segment.
type file struct {
	name   string // path
	f      *os.File
	info   os.FileInfo // identifies the file; see deleted
	mapped bool
	memory []byte          // the complete mapped file, or a copy whose changes are written through
	words  []atomic.Uint64 // magic, header and index, in the same memory
	ends   []int32         // memory for Segment.ends
}

// newFile makes a file without messages and reserves its space on the disk.
func newFile(name string, c Config) (*file, error) {
	l := c.layout()
	osf, err := disk.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, err
	}
	f := &file{name: name, f: osf, mapped: !c.plain, ends: make([]int32, 0, l.messages)}
	if f.info, err = osf.Stat(); err != nil {
		osf.Close()
		os.Remove(name)
		return nil, err
	}
	if err = c.Reserve(osf, int64(l.size())); err == nil && c.Sync != 0 {
		err = osf.Sync()
		if err == nil {
			err = disk.SyncFolder(filepath.Dir(name))
		}
	}
	if err == nil && f.mapped {
		f.memory, err = mapFile(osf, l.size())
	} else if err == nil {
		room := make([]uint64, (l.size()+7)/8) // of uint64, so that it is aligned
		f.memory = unsafe.Slice((*byte)(unsafe.Pointer(&room[0])), l.size())
	}
	if err == nil && f.mapped {
		// Write to each page of the mapping now, so that page faults do not delay the
		// first messages.
		err = guard(f.memory, func() error {
			for i := 0; i < len(f.memory); i += os.Getpagesize() {
				f.memory[i] = 0
			}
			return nil
		})
	}
	if err != nil {
		f.discard()
		return nil, err
	}
	f.words = unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&f.memory[0])), l.dataAt()/entrySize)
	return f, nil
}

// index returns the position of the i-th entry in file.words.
func index(i int) int { return headerSize/entrySize + i }

// store writes a message at offset start, after a comma unless it is the first message. It
// then writes the message's entry.
func (s *Segment) store(message []byte, start int, e entry) (err error) {
	f := s.file
	if f.mapped {
		defer recoverFault(f.memory, debug.SetPanicOnFault(true), &err)
	}
	copy(s.data[start:], message)
	from := s.end
	if from < start {
		s.data[from] = separator
	}
	word := index(s.n)
	if !f.mapped {
		if err := f.write(s.h.layout.dataAt()+from, start-from+len(message)); err != nil {
			return err
		}
		f.words[word].Store(e.native())
		return f.write(word*entrySize, entrySize)
	}
	f.words[word].Store(e.native())
	return nil
}

// change runs fn, which reads or changes memory. It returns an error if the mapping
// faults.
func (f *file) change(fn func() error) error {
	if !f.mapped {
		return fn()
	}
	return guard(f.memory, fn)
}

// written must be called after a change of memory[at:at+n]. If the file is not mapped, it
// writes these bytes to the file.
func (f *file) written(at, n int) error {
	if f.mapped {
		return nil
	}
	return f.write(at, n)
}

// write writes n bytes of memory to the file.
func (f *file) write(at, n int) error {
	_, err := f.f.WriteAt(f.memory[at:at+n], int64(at))
	return err
}

// shown looks at the entries from number n on, in the index of the file. It returns the number of
// the first entry that is missing, or limit if all entries before limit exist.
func (f *file) shown(n, limit int) (int, error) {
	err := f.change(func() error {
		for n < limit && f.words[index(n)].Load() != 0 {
			n++
		}
		return nil
	})
	return n, err
}

// vacate empties a file with n messages.
func (f *file) vacate(n int) error {
	return f.change(func() error {
		f.words[0].Store(0)
		if err := f.written(0, entrySize); err != nil {
			return err
		}
		clear(f.memory[headerSize : headerSize+n*entrySize])
		return f.written(headerSize, n*entrySize)
	})
}

// sync returns when the content of memory is on the disk.
func (f *file) sync() error {
	if f.mapped {
		return syncMapping(f.f, f.memory)
	}
	return f.f.Sync()
}

// close truncates the file to size, closes it and releases its memory.
func (f *file) close(size int64) error {
	var err error
	if f.mapped && f.memory != nil {
		err = unmap(f.memory)
	}
	f.memory, f.words = nil, nil
	if e := f.f.Truncate(size); err == nil {
		err = e
	}
	if e := f.f.Close(); err == nil {
		err = e
	}
	return err
}

// deleted reports whether somebody has deleted the file that info describes, or has put another
// file in its place. name is its path.
func deleted(name string, info os.FileInfo) bool {
	now, err := os.Lstat(name)
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || err == nil && !os.SameFile(info, now)
}

// discard closes the file and deletes it, unless somebody else has.
func (f *file) discard() error {
	err := f.close(0)
	if deleted(f.name, f.info) {
		return err
	}
	if e := os.Remove(f.name); err == nil {
		err = e
	}
	return err
}

// readFile returns the content of a file, but at most limit bytes.
func readFile(name string, limit int) ([]byte, error) {
	f, err := disk.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(info.Size(), int64(limit)))
	n, err := io.ReadFull(f, b)
	if err == io.ErrUnexpectedEOF {
		err = nil // the file was truncated meanwhile
	}
	return b[:n], err
}
