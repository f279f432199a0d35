package spool

import (
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"github.com/hookferry/analytics/internal/disk"
)

// A file is that of a segment that takes messages, or of a spare one.
type file struct {
	name   string // path
	f      *os.File
	mapped bool
	memory []byte          // all of it, or a copy that is written through
	words  []atomic.Uint64 // its magic, header and index; the same memory
	ends   []int32         // memory for those of a segment
}

// newFile makes a file that holds nothing and has its space on the disk.
func newFile(name string, c Config) (*file, error) {
	l := c.layout()
	osf, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	f := &file{name: name, f: osf, mapped: !c.plain, ends: make([]int32, 0, l.messages)}
	if err = c.Reserve(osf, int64(l.size())); err == nil && c.syncs() {
		err = osf.Sync()
		if err == nil {
			err = disk.SyncFolder(filepath.Dir(name))
		}
	}
	if err == nil && f.mapped {
		f.memory, err = mapFile(osf, l.size())
	} else if err == nil {
		room := make([]uint64, (l.size()+7)/8) // for its alignment
		f.memory = unsafe.Slice((*byte)(unsafe.Pointer(&room[0])), l.size())
	}
	if err == nil && f.mapped {
		// Touched now, the pages will not delay the first messages.
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

// index returns the place of the i-th entry among the words.
func index(i int) int { return headerSize/entrySize + i }

// store writes a message to the place where it starts, after a comma unless it
// is the first, and then its entry.
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
		if err := f.write(s.h.dataAt()+from, start-from+len(message)); err != nil {
			return err
		}
		f.words[word].Store(e.native())
		return f.write(word*entrySize, entrySize)
	}
	f.words[word].Store(e.native())
	return nil
}

// change runs fn, which reads or changes memory, and returns an error for a fault
// of the mapping.
func (f *file) change(fn func() error) error {
	if !f.mapped {
		return fn()
	}
	return guard(f.memory, fn)
}

// written is to be called after n bytes of memory have changed.
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

// shown returns the number of the first entry that is not there, from n on and
// at most limit.
func (f *file) shown(n, limit int) (int, error) {
	err := f.change(func() error {
		for n < limit && f.words[index(n)].Load() != 0 {
			n++
		}
		return nil
	})
	return n, err
}

// vacate empties a file that held n messages.
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

// sync returns when what is in memory is on the disk.
func (f *file) sync() error {
	if f.mapped {
		return syncMapping(f.f, f.memory)
	}
	return f.f.Sync()
}

// close lets go of the file after cutting it to size, and of memory.
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

// discard closes the file and deletes it.
func (f *file) discard() error {
	err := f.close(0)
	if e := os.Remove(f.name); err == nil {
		err = e
	}
	return err
}

// readFile reads at most limit bytes.
func readFile(name string, limit int) ([]byte, error) {
	f, err := os.Open(name)
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
		err = nil // it has been cut since
	}
	return b[:n], err
}
