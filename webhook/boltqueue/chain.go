package boltqueue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// A journalFile is what a file of the journal holds.
type journalFile struct {
	path string
	b    []byte
	err  error // why it could not be read
}

func readJournals(path string) (files [2]journalFile) {
	for i, p := range journalPaths(path) {
		b, err := os.ReadFile(p)
		files[i] = journalFile{p, b, err}
	}
	return files
}

// A chain is the epochs that the database does not have: one, or two when the
// process ended while the first was being written to it.
type chain struct {
	players []*player
	last    epoch
	file    int    // which file has the last
	number  uint64 // of the entry to come there
	off     int64  // and where it comes
}

// readChainOf is readChain for a database, whose journal is not read if it was closed.
func readChainOf(tx *bolt.Tx, path string) (chain, error) {
	e, closed, err := readEpoch(tx.Bucket(bucketMeta).Get(rowJournal))
	if err != nil {
		return chain{}, err
	}
	files := readJournals(path)
	if closed {
		// What may be there is what the Close could not remove.
		return chain{last: e}, noneLater(files, e)
	}
	return readChain(files, e)
}

// readChain plays the journal that follows the database with epoch e. It returns an
// error that wraps errRow unless all is there that was acknowledged.
func readChain(files [2]journalFile, e epoch) (c chain, err error) {
	for {
		c.last = e
		c.file = slices.IndexFunc(files[:], func(f journalFile) bool { return hasMark(f.b, e) })
		if c.file < 0 {
			return c, noJournal(files)
		}
		p := newPlayer()
		if len(c.players) > 0 {
			p.older = c.players[0]
		}
		c.players = append(c.players, p)
		if c.number, c.off, err = files[c.file].play(e, p); err != nil {
			return c, err
		}
		if p.next == nil {
			return c, noneLater(files, e)
		}
		if len(c.players) == 2 || p.next.number() <= e.number() {
			return c, fmt.Errorf("%w: the journal %s names an epoch that cannot follow", errRow, files[c.file].path)
		}
		e = *p.next
	}
}

// check returns an error that wraps errRow if what the journal says was settled is
// neither in it nor in the blocks.
func (c *chain) check(tx *bolt.Tx) error {
	blocks := tx.Bucket(bucketBlocks)
	numbers := make(map[uint64]bool)
	err := blocks.ForEach(func(_, v []byte) error {
		return entries(v, func(_ int, number uint64, _ []byte) error {
			numbers[number] = true
			return nil
		})
	})
	if err != nil {
		return err
	}
	for _, p := range c.players {
		for block := range p.bits {
			if blocks.Get(numberKey(block)) == nil {
				return noBlock(block)
			}
		}
		for number := range p.settled {
			if p.older == nil && !numbers[number] {
				return notThere(number)
			}
		}
	}
	return nil
}

// noJournal says why no file is the one that is asked for.
func noJournal(files [2]journalFile) error {
	for _, f := range files {
		if f.err != nil && !errors.Is(f.err, fs.ErrNotExist) {
			return f.err
		}
	}
	for _, f := range files {
		if f.err != nil {
			return fmt.Errorf("%w: the journal %s is missing", errRow, f.path)
		}
	}
	return fmt.Errorf("%w: the journal %s is not the one that the data file asks for", errRow, files[0].path)
}

// noneLater returns an error if a file has entries of a later epoch than the last one:
// something was replaced, or the database has lost its latest state.
func noneLater(files [2]journalFile, last epoch) error {
	for _, f := range files {
		if f.later(last) {
			return fmt.Errorf("%w: the journal %s is later than the data file", errRow, f.path)
		}
	}
	return nil
}

// later reports whether the file has entries of a later epoch.
func (f *journalFile) later(e epoch) bool {
	first, ok := f.first()
	return ok && first.number() > e.number()
}

// first returns the epoch of the first entry. Not of the mark: that of an epoch which
// did not begin does no harm.
func (f *journalFile) first() (e epoch, ok bool) {
	if len(f.b) < entriesStart+entryHeader {
		return e, false
	}
	copy(e[:], f.b[entriesStart+8:])
	_, ok = entryAt(f.b[entriesStart:], e, 1)
	return e, ok
}

// play plays the entries of an epoch, and returns the number and the place of the
// next. An entry that was being written when the process ended is left out: nobody
// was told that it is stored. It returns an error that wraps errRow if one before the
// last is damaged, or the file ends amid one.
func (f *journalFile) play(e epoch, p *player) (number uint64, off int64, err error) {
	cut := fmt.Errorf("%w: the journal %s is cut short", errRow, f.path)
	// A file that was growing when the process ended has zeros at its end.
	whole := len(f.b) / journalStep * journalStep
	if whole == 0 || len(bytes.TrimRight(f.b[whole:], "\x00")) > 0 {
		return 0, 0, cut
	}
	b := f.b[entriesStart:whole]
	off = entriesStart
	for number = 1; ; number++ {
		n, ok := entryAt(b, e, number)
		if !ok {
			break
		}
		if err := ops(b[entryHeader:n], p.play); err != nil {
			return 0, 0, fmt.Errorf("entry %d of the journal %s: %w", number, f.path, err)
		}
		off = entryStart(off + int64(n))
		b = f.b[off:whole]
	}
	if len(b) >= entryHeader && bytes.Equal(b[8:16], e[:]) && int64(binary.LittleEndian.Uint32(b[4:])) > int64(len(b)-entryHeader) {
		return 0, 0, cut
	}
	// One entry is written at a time: what follows a torn one is not whole.
	for from := 0; ; {
		i := bytes.Index(b[from:], e[:])
		if i < 0 {
			return number, off, nil
		}
		if at := from + i - 8; at > 0 {
			if _, ok := entryAt(b[at:], e, 0); ok {
				return 0, 0, fmt.Errorf("%w: an entry of the journal %s, and later ones are whole", errRow, f.path)
			}
		}
		from += i + 1
	}
}

// salvage is play for a file with damages anywhere, which it passes over. It reports
// how many stretches it passed over.
func (f *journalFile) salvage(e epoch, each func(payload []byte) error) (lost int) {
	b := f.b
	if !hasMark(b, e) {
		lost++
	}
	next, last := uint64(1), entriesStart // the entry to come, and where the last one ended
	for at := 0; at+entryHeader <= len(b); {
		n, ok := entryAt(b[at:], e, 0)
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
		at = int(min(entryStart(int64(at+n)), int64(len(b))))
		last = at
		next++
	}
	return lost
}

// guess returns the epoch of the file: that of its mark, or else of the first entry
// that is whole.
func (f *journalFile) guess() (e epoch, ok bool) {
	if len(f.b) < markSize {
		return e, false
	}
	copy(e[:], f.b[8:])
	if hasMark(f.b, e) {
		return e, true
	}
	for at := 0; at+entryHeader <= len(f.b); at++ {
		copy(e[:], f.b[at+8:])
		if e == (epoch{}) {
			continue
		}
		if _, ok := entryAt(f.b[at:], e, 0); ok {
			return e, true
		}
	}
	return e, false
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
