package boltqueue

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// The journal is a file beside the database, to which a commit is one write and
// one sync. It holds the commits since the database was last written, and is
// written from its beginning after that. An entry is
//
//	CRC-32C of what follows  4 bytes
//	length of the payload    4
//	epoch                    8
//	number of the entry      8, counted from 1 in each epoch
//	payload                  see entry.go
//
// with little-endian numbers. The database names the epoch whose entries follow
// it; what else is in the file is left from earlier ones.
const (
	entryHeader = 24
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

// An epoch tells the entries that count from those of the past.
type epoch [8]byte

func newEpoch() (e epoch) {
	rand.Read(e[:])
	return e
}

// A journal is the file that is being written. Only the committer uses it.
type journal struct {
	path   string
	file   *os.File
	epoch  epoch
	number uint64 // of the entry to come
	off    int64  // where it comes
	size   int64  // of the file

	write func(b []byte, off int64) (int, error) // (*os.File).WriteAt, but in tests
	sync  func() error                           // syncData, but in tests
}

// makeJournal opens the journal of a store, and makes it if there is none.
func makeJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("boltqueue: %w", err)
	}
	j := &journal{path: path, file: f, write: f.WriteAt, sync: func() error { return syncData(f) }}
	info, err := f.Stat()
	if err == nil {
		j.size = info.Size() / journalStep * journalStep
		if err = j.grow(entryHeader); err == nil {
			err = f.Sync()
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("boltqueue: journal %s: %w", path, err)
	}
	syncFolder(filepath.Dir(path))
	return j, nil
}

// rewind begins an epoch.
func (j *journal) rewind(e epoch) { j.epoch, j.number, j.off = e, 1, 0 }

// fits reports whether there is room for an entry of n bytes.
func (j *journal) fits(n int) bool { return j.off+int64(n) <= maxJournal }

// append writes an entry, whose header b has room for, and returns once it is on
// the disk. After an error the next entry takes its place.
func (j *journal) append(b []byte) error {
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-entryHeader))
	copy(b[8:], j.epoch[:])
	binary.LittleEndian.PutUint64(b[16:], j.number)
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	if end := j.off + int64(len(b)); end > j.size {
		// The size is on the disk before an entry needs it: so a file that was
		// cut is told from an entry that was.
		if err := j.grow(end); err != nil {
			return err
		}
		if err := j.sync(); err != nil {
			return err
		}
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

// grow sees to it that the file has n bytes.
func (j *journal) grow(n int64) error {
	if n <= j.size {
		return nil
	}
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
	j.size = n
	return nil
}

func (j *journal) close() {
	if j != nil {
		j.file.Close()
	}
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
	b, err := io.ReadAll(io.LimitReader(f, maxJournal+1<<30))
	if err != nil {
		return err
	}
	cut := fmt.Errorf("%w: the journal %s is cut short", errRow, path)
	// A file that was growing when the process ended has zeros at its end.
	whole := len(b) / journalStep * journalStep
	if whole == 0 || len(bytes.TrimRight(b[whole:], "\x00")) > 0 {
		return cut
	}
	b = b[:whole]
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
