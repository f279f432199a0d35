package boltqueue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// The journal is two files beside the database, to which a commit is one write and
// one sync. One of them is written; the other holds what is being written to the
// database, or nothing that counts. Each begins with a mark, the first bytes of a
// sector of 512, then come the entries. A mark is
//
//	CRC-32C of what follows  4 bytes
//	"mark"                   4
//	epoch                    8
//
// and an entry
//
//	CRC-32C of what follows  4 bytes
//	length of the payload    4
//	epoch                    8
//	number of the entry      8, counted from 1 in each epoch
//	payload                  see entry.go
//
// with little-endian numbers. The header of an entry is in one sector: one that would
// not be begins with the next sector. The database names the epoch whose entries follow
// it. The last entry of an epoch names the next, which is in the other file, and
// whose mark is on the disk by then. What else is in the files is left from earlier
// epochs. By its mark a file that was replaced is told from one without entries.
const (
	entryHeader = 24
	// entriesStart is where the first entry of an epoch comes.
	entriesStart = sectorSize
	// sectorSize is what a loss of power leaves as it was, or as it is.
	sectorSize = 512
	markSize   = 16
	// nextSize is what the last entry of an epoch takes, with what may be left free before
	// it; there is always room for it.
	nextSize = 2*entryHeader + 32
	// journalStep is by how much the file grows. It is filled with zeros
	// beforehand, as a sync that has no sizes and no extents to write is the
	// quickest.
	journalStep = 1 << 20
	// journalSize is the length of the entries at which the next epoch begins, and
	// maxJournal what they may come to while it cannot.
	journalSize = 16 << 20
	maxJournal  = 2 * journalSize
)

// journalPaths returns the files of a store's journal.
func journalPaths(path string) [2]string { return [2]string{path + ".journal", path + ".journal2"} }

// An epoch tells the entries that count from those of the past. It is a number
// that grows: so a database that is older than its journal is noticed.
type epoch [8]byte

// next returns a later epoch, of the clock if that is later still, so that
// stores do not share theirs.
func (e epoch) next() (n epoch) {
	binary.LittleEndian.PutUint64(n[:], max(e.number()+1, uint64(time.Now().UnixNano())))
	return n
}

func (e epoch) number() uint64 { return binary.LittleEndian.Uint64(e[:]) }

// closedMark follows the epoch in the database when no entries follow it.
const closedMark = 'c'

// readEpoch reads the epoch in the database; a new one has none.
func readEpoch(v []byte) (e epoch, closed bool, err error) {
	switch {
	case len(v) == 0:
		return e, true, nil
	case len(v) == len(e):
	case len(v) == len(e)+1 && v[len(e)] == closedMark:
		closed = true
	default:
		return e, false, fmt.Errorf("%w: an epoch of %d bytes", errRow, len(v))
	}
	copy(e[:], v)
	return e, closed, nil
}

// A journal is one of the two files.
type journal struct {
	path   string
	file   *os.File // nil while there was no room for it
	info   os.FileInfo
	epoch  epoch  // whose entries it has
	ready  bool   // the mark of epoch is on the disk, and no entry
	number uint64 // of the entry to come
	off    int64  // where it comes
	size   int64  // of the file

	write func(b []byte, off int64) (int, error) // (*os.File).WriteAt, but in tests
	sync  func() error                           // syncData, but in tests
	wrap  func()                                 // in tests: is called once the file is open
}

// open opens the file, and makes it if there is none.
func (j *journal) open() error {
	if j.file != nil {
		return nil
	}
	f, err := os.OpenFile(j.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		err = syncFolder(filepath.Dir(j.path))
	}
	if err != nil {
		f.Close()
		return err
	}
	j.file, j.info = f, info
	j.size = info.Size() / journalStep * journalStep
	j.write, j.sync = f.WriteAt, func() error {
		if !syncing {
			return nil
		}
		return syncData(f)
	}
	if j.wrap != nil {
		j.wrap()
	}
	return nil
}

// release lets go of the file if it was removed, so that open makes it anew, and
// reports whether it was.
func (j *journal) release() bool {
	if j.file == nil {
		return false
	}
	if _, err := os.Stat(j.path); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	j.file.Close()
	j.file, j.ready = nil, false
	return true
}

// prepare leaves no entries in the file, and returns once the mark of an epoch that
// may begin is on the disk. It is written no earlier than it has to be: so a file is told
// from what it was before.
func (j *journal) prepare(e epoch) error {
	j.ready = false
	if err := j.open(); err != nil {
		return err
	}
	if err := j.grow(entriesStart); err != nil {
		return err
	}
	if _, err := j.write(appendMark(nil, e), 0); err != nil {
		return err
	}
	if err := j.sync(); err != nil {
		return err
	}
	j.epoch, j.ready, j.number, j.off = e, true, 1, entriesStart
	return nil
}

func appendMark(b []byte, e epoch) []byte {
	b = append(b, 0, 0, 0, 0, 'm', 'a', 'r', 'k')
	b = append(b, e[:]...)
	binary.LittleEndian.PutUint32(b[len(b)-markSize:], crc32.Checksum(b[len(b)-markSize+4:], castagnoli))
	return b
}

// hasMark reports whether the file b has the mark of an epoch.
func hasMark(b []byte, e epoch) bool { return bytes.HasPrefix(b, appendMark(nil, e)) }

// entryStart returns where the entry begins that follows one that ends at off. So a header
// that can be read is whole, also when the power was lost while it was written.
func entryStart(off int64) int64 {
	if left := sectorSize - off%sectorSize; left < entryHeader {
		return off + left
	}
	return off
}

// fits reports whether there may be room for an entry of n bytes.
func (j *journal) fits(n int) bool { return j.off+int64(n) <= maxJournal }

// append writes an entry, whose header b has room for, and returns once it is on
// the disk. After an error the next entry takes its place.
func (j *journal) append(b []byte) error {
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-entryHeader))
	copy(b[8:], j.epoch[:])
	binary.LittleEndian.PutUint64(b[16:], j.number)
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	// The size is on the disk before an entry needs it: so a file that was cut is
	// told from an entry that was.
	if err := j.grow(j.off + int64(len(b))); err != nil {
		return err
	}
	if _, err := j.write(b, j.off); err != nil {
		return err
	}
	if err := j.sync(); err != nil {
		return err
	}
	j.off = entryStart(j.off + int64(len(b)))
	j.number++
	j.ready = false
	return nil
}

// end writes the last entry of the epoch, after which those of the epoch to come
// count.
func (j *journal) end(next epoch) error {
	b := appendMicros(make([]byte, entryHeader, nextSize), time.Now())
	return j.append(appendNext(b, next))
}

// reserve sees to it that there is space for an entry of n bytes, and for the last one,
// on the disk.
func (j *journal) reserve(n int) error { return j.grow(j.off + int64(n) + nextSize) }

// share shares a group out into the requests that an entry has space for as the
// file is, and the others.
func (j *journal) share(group []*request) (some, others []*request) {
	left := j.size - j.off - entryHeader - nextSize
	for _, r := range group {
		if n, _ := r.size(); int64(n) <= left {
			left -= int64(n)
			some = append(some, r)
		} else {
			others = append(others, r)
		}
	}
	return some, others
}

// grow sees to it that the file has n bytes, on the disk.
func (j *journal) grow(n int64) (err error) {
	if n <= j.size {
		return nil
	}
	defer func() {
		if err != nil {
			j.file.Truncate(j.size) // what it got is of use to the database
		}
	}()
	n = (n + journalStep - 1) / journalStep * journalStep
	at := j.size
	zeros := make([]byte, 64<<10)
	for at < n {
		k := min(int64(len(zeros)), n-at)
		if _, err := j.write(zeros[:k], at); err != nil {
			return err
		}
		at += k
	}
	if err := j.sync(); err != nil {
		return err
	}
	j.size = n
	return nil
}

func (j *journal) close() {
	if j.file != nil {
		j.file.Close()
	}
}
