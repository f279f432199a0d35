package boltqueue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// The journal is a file beside the database, to which a commit is one write and
// one sync. It holds the commits since the database was last written, and is
// written from its beginning after that. It begins with two marks, each the first
// bytes of a sector of 512, then come the entries. A mark is
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
// with little-endian numbers. The database names the epoch whose entries follow
// it; what else is in the file is left from earlier ones. The mark of an epoch is on
// the disk before the database names it, in the place of the mark before the last: so
// a file that was replaced is told from one without entries.
const (
	entryHeader = 24
	// entriesStart is where the first entry of an epoch comes.
	entriesStart = 2 * markStep
	markStep     = 512
	markSize     = 16
	// journalStep is by how much the file grows. It is filled with zeros
	// beforehand, as a sync that has no sizes and no extents to write is the
	// quickest.
	journalStep = 1 << 20
	// journalSize is the length of the entries at which the database is
	// written, and maxJournal what they may come to while that fails.
	journalSize = 16 << 20
	maxJournal  = 2 * journalSize
)

func journalPath(path string) string { return path + ".journal" }

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

// A journal is the file that is being written. Only the committer uses it.
type journal struct {
	path   string
	file   *os.File
	epoch  epoch
	mark   int    // which of the marks is that of the epoch
	number uint64 // of the entry to come
	off    int64  // where it comes
	size   int64  // of the file

	write func(b []byte, off int64) (int, error) // (*os.File).WriteAt, but in tests
	sync  func() error                           // syncData, but in tests
}

// makeJournal opens the journal of a store, and makes it if there is none. The
// mark of e, if there is one, is kept until an epoch later than the next begins.
func makeJournal(path string, e epoch) (*journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("boltqueue: %w", err)
	}
	j := &journal{path: path, file: f, write: f.WriteAt, sync: func() error { return syncData(f) }}
	info, err := f.Stat()
	if err == nil {
		j.size = info.Size() / journalStep * journalStep
		if err = j.grow(entriesStart); err == nil {
			err = f.Sync()
		}
	}
	if err == nil {
		marks := make([]byte, entriesStart)
		if _, err = f.ReadAt(marks, 0); err == nil {
			j.epoch, j.mark = e, max(markOf(marks, e), 0)
		}
	}
	if err == nil {
		err = syncFolder(filepath.Dir(path))
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("boltqueue: journal %s: %w", path, err)
	}
	return j, nil
}

// prepare writes the mark of an epoch that may begin, and returns once it is on the
// disk. The mark of the present one is left.
func (j *journal) prepare(e epoch) error {
	if _, err := j.write(appendMark(nil, e), int64(1-j.mark)*markStep); err != nil {
		return err
	}
	return j.sync()
}

// rewind begins the epoch that was prepared last.
func (j *journal) rewind(e epoch) {
	j.epoch, j.mark, j.number, j.off = e, 1-j.mark, 1, entriesStart
}

func appendMark(b []byte, e epoch) []byte {
	b = append(b, 0, 0, 0, 0, 'm', 'a', 'r', 'k')
	b = append(b, e[:]...)
	binary.LittleEndian.PutUint32(b[len(b)-markSize:], crc32.Checksum(b[len(b)-markSize+4:], castagnoli))
	return b
}

// markOf returns which mark of the journal b is that of an epoch, -1 if none is.
func markOf(b []byte, e epoch) int {
	for i := range 2 {
		if at := i * markStep; len(b) >= at+markSize && bytes.Equal(b[at:at+markSize], appendMark(nil, e)) {
			return i
		}
	}
	return -1
}

// fits reports whether there is room for an entry of n bytes.
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
	if err := j.reserve(len(b)); err != nil {
		return err
	}
	if _, err := j.write(b, j.off); err != nil {
		return err
	}
	if err := j.sync(); err != nil {
		return err
	}
	j.off += int64(len(b))
	j.number++
	return nil
}

// reserve sees to it that there is space for an entry of n bytes, on the disk.
func (j *journal) reserve(n int) error { return j.grow(j.off + int64(n)) }

// share shares a group out into the requests that an entry has space for as the
// file is, and the others.
func (j *journal) share(group []*request) (some, others []*request) {
	left := j.size - j.off - entryHeader
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
	if j != nil {
		j.file.Close()
	}
}

// precedes returns an error if the journal is of a later epoch than the database:
// one of the two has been replaced, or the database has lost its latest state.
func (e epoch) precedes(path string, b []byte) error {
	if len(b) < entriesStart+entryHeader {
		return nil
	}
	// Not the marks: that of an epoch which did not begin does no harm.
	b = b[entriesStart:]
	if first := epoch(b[8:16]); first.number() > e.number() {
		if _, ok := entryAt(b, first, 1); ok {
			return fmt.Errorf("%w: the journal %s is later than the data file", errRow, path)
		}
	}
	return nil
}

// readJournal calls each with the payloads of the entries of an epoch. An entry
// that was being written when the process ended is left out: nobody was told
// that it is stored. It returns an error that wraps errRow if one before the
// last is damaged, or the file ends amid one.
func readJournal(path string, e epoch, each func(payload []byte) error) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: the journal %s is missing", errRow, path)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	return readEntries(path, b, e, each)
}

// readEntries is readJournal for the bytes of the file.
func readEntries(path string, b []byte, e epoch, each func(payload []byte) error) error {
	if err := e.precedes(path, b); err != nil {
		return err
	}
	cut := fmt.Errorf("%w: the journal %s is cut short", errRow, path)
	// A file that was growing when the process ended has zeros at its end.
	whole := len(b) / journalStep * journalStep
	if whole == 0 || len(bytes.TrimRight(b[whole:], "\x00")) > 0 {
		return cut
	}
	if markOf(b, e) < 0 {
		return fmt.Errorf("%w: the journal %s is not the one that the data file asks for", errRow, path)
	}
	b = b[entriesStart:whole]
	for number := uint64(1); ; number++ {
		n, ok := entryAt(b, e, number)
		if !ok {
			break
		}
		if err := each(b[entryHeader:n]); err != nil {
			return fmt.Errorf("entry %d of the journal %s: %w", number, path, err)
		}
		b = b[n:]
	}
	if len(b) >= entryHeader && bytes.Equal(b[8:16], e[:]) && int64(binary.LittleEndian.Uint32(b[4:])) > int64(len(b)-entryHeader) {
		return cut
	}
	// One entry is written at a time: what follows a torn one is not whole.
	for from := 0; ; {
		i := bytes.Index(b[from:], e[:])
		if i < 0 {
			return nil
		}
		if at := from + i - 8; at > 0 {
			if _, ok := entryAt(b[at:], e, 0); ok {
				return fmt.Errorf("%w: an entry of the journal %s, and later ones are whole", errRow, path)
			}
		}
		from += i + 1
	}
}

// salvageJournal is readJournal for a file with damages anywhere, which it passes
// over. Without an epoch it is that of the first entry that is whole. It reports
// how many stretches it passed over.
func salvageJournal(path string, e *epoch, each func(payload []byte) error) (lost int, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	lost = salvageEntries(b, e, each)
	if e != nil && markOf(b, *e) < 0 {
		lost++
	}
	return lost, nil
}

// salvageEntries is salvageJournal for the bytes of the file.
func salvageEntries(b []byte, e *epoch, each func(payload []byte) error) (lost int) {
	next, last := uint64(1), entriesStart // the entry to come, and where the last one ended
	for at := 0; at+entryHeader <= len(b); {
		if e == nil {
			var found epoch
			copy(found[:], b[at+8:])
			if found != (epoch{}) {
				if _, ok := entryAt(b[at:], found, 0); ok {
					e = &found
				}
			}
		}
		if e == nil {
			at++
			continue
		}
		n, ok := entryAt(b[at:], *e, 0)
		if !ok {
			i := bytes.Index(b[min(at+9, len(b)):], e[:])
			if i < 0 {
				break
			}
			at += 1 + i
			continue
		}
		if number := binary.LittleEndian.Uint64(b[at+16:]); number != next || at != last {
			lost++
			next = number
		}
		if err := each(b[at+entryHeader : at+n]); err != nil {
			lost++
		}
		at += n
		last = at
		next++
	}
	return lost
}

// entryAt returns the length of the entry that b begins with, if it is whole and
// has this number; 0 is any.
func entryAt(b []byte, e epoch, number uint64) (n int, ok bool) {
	if len(b) < entryHeader || !bytes.Equal(b[8:16], e[:]) {
		return 0, false
	}
	size := binary.LittleEndian.Uint32(b[4:])
	if uint64(size) > uint64(len(b)-entryHeader) {
		return 0, false
	}
	n = entryHeader + int(size)
	if number != 0 && binary.LittleEndian.Uint64(b[16:]) != number {
		return 0, false
	}
	return n, crc32.Checksum(b[4:n], castagnoli) == binary.LittleEndian.Uint32(b)
}
