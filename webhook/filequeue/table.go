package filequeue

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"sort"
	"sync/atomic"
	"unicode/utf8"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/webhook/store"
)

// A table is a file of rows, in the order of their paths, that never changes. It has blocks of
// about 16 KB, and behind them an index: the last path of each block, and the length of the block.
// Each block, and the index, is followed by its CRC-32C in 4 bytes. The last 8 bytes are the length
// of the index. Paths and values are preceded by their lengths. All other numbers are uvarints.
type table struct {
	number uint32
	size   int64
	file   disk.File
	blocks []block
	pins   atomic.Int32 // one for the index of the store, and one for each reader; the last unpin closes the file
}

// A block is a sequence of rows. Only the file has their content.
type block struct {
	last     string // the path of its last row
	from, to int64  // to is the offset behind its checksum
}

const blockBytes = 16 << 10

// A row is a version of a document. Without a value, the document was removed.
type row struct {
	path    string
	version uint64
	value   []byte
}

// pathOf returns the folder and the name of a document as one string, which no other document has.
// The paths of a folder are next to each other, in the order of the names.
func pathOf(folder, name string) string { return string(rune(len(folder))) + folder + name }

// document returns the row as a document.
func (r *row) document() store.Document {
	n, size := utf8.DecodeRuneInString(r.path)
	rest := r.path[size:]
	n = min(n, rune(len(rest)))
	return store.Document{Folder: rest[:n], Name: rest[n:], Value: r.value, Version: r.version}
}

func tableName(number uint32) string { return fmt.Sprintf("table-%010d", number) }

// parseTable returns the number of the table with a name. ok reports whether it is the name of one.
func parseTable(name string) (number uint32, ok bool) {
	_, err := fmt.Sscanf(name, "table-%d", &number)
	return number, err == nil && name == tableName(number)
}

func (t *table) unpin() {
	if t.pins.Add(-1) == 0 {
		t.file.Close()
	}
}

// writeTable writes a table with the rows that next returns, up to a nil. The content is durable when
// writeTable returns nil, but not the name.
func writeTable(d disk.Disk, number uint32, next func() (*row, error)) (*table, error) {
	t := &table{number: number}
	t.pins.Store(1)
	var err error
	if t.file, err = d.Create(tableName(number)); err != nil {
		return nil, err
	}
	if err = t.fill(next); err != nil {
		t.file.Close()
		d.Remove(tableName(number)) // or Open removes it
		return nil, err
	}
	return t, nil
}

// fill writes the rows, and then the index.
func (t *table) fill(next func() (*row, error)) error {
	var b, index []byte
	last := ""
	for more := true; more; {
		r, err := next()
		if err != nil {
			return err
		}
		if more = r != nil; len(b) >= blockBytes || !more && len(b) > 0 {
			from := t.size
			if err := t.write(b); err != nil {
				return err
			}
			t.blocks = append(t.blocks, block{last, from, t.size})
			index = binary.AppendUvarint(appendText(index, last), uint64(len(b)))
			b = b[:0]
		}
		if more {
			last, b = r.path, r.append(b)
		}
	}
	if err := t.write(index); err != nil {
		return err
	}
	if _, err := t.file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(len(index))), t.size); err != nil {
		return err
	}
	t.size += 8
	return t.file.Sync()
}

// write appends b and its checksum to the file.
func (t *table) write(b []byte) error {
	n := len(b)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	_, err := t.file.WriteAt(b, t.size)
	t.size += int64(n) + 4
	return err
}

func appendText[T string | []byte](b []byte, text T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// append appends the encoded row to b.
func (r *row) append(b []byte) []byte {
	b = binary.AppendUvarint(appendText(b, r.path), r.version)
	if r.value == nil {
		return append(b, 0)
	}
	return appendText(append(b, 1), r.value)
}

// A decoder reads what appendText and binary.AppendUvarint have written. After an error, b is nil.
type decoder struct{ b []byte }

func (d *decoder) number() uint64 {
	n, size := binary.Uvarint(d.b)
	if size <= 0 {
		d.b = nil
		return 0
	}
	d.b = d.b[size:]
	return n
}

func (d *decoder) text() (text []byte) {
	n := d.number()
	if n > uint64(len(d.b)) {
		d.b = nil
		return nil
	}
	text, d.b = d.b[:n:n], d.b[n:]
	return text
}

// openTable opens a table of a size, and reads its index.
func openTable(d disk.Disk, number uint32, size int64) (t *table, err error) {
	t = &table{number: number, size: size}
	t.pins.Store(1)
	if t.file, err = d.Open(tableName(number)); err != nil {
		return nil, err
	}
	var length [8]byte
	_, err = t.file.ReadAt(length[:], max(size-8, 0))
	n := int64(min(binary.LittleEndian.Uint64(length[:]), 1<<40))
	var b []byte
	if err == nil || err == io.EOF {
		b, err = t.read(size-12-n, size-8)
	}
	if err != nil {
		t.unpin()
		return nil, err
	}
	to := int64(0)
	for index := (decoder{b}); len(index.b) > 0; {
		k := block{last: string(index.text()), from: to}
		to += int64(index.number()) + 4
		k.to = to
		t.blocks = append(t.blocks, k)
	}
	return t, nil
}

// read returns what is between two offsets of the file, without the checksum at the end.
func (t *table) read(from, to int64) ([]byte, error) {
	damaged := func() ([]byte, error) {
		return nil, fmt.Errorf("%w: %s cannot be read at %d", ErrDamaged, tableName(t.number), from)
	}
	if from < 0 || to < from+4 {
		return damaged()
	}
	b := make([]byte, to-from)
	if _, err := t.file.ReadAt(b, from); err == io.EOF {
		return damaged()
	} else if err != nil {
		return nil, fmt.Errorf("filequeue: %w", err)
	}
	n := len(b) - 4
	if crc32.Checksum(b[:n], castagnoli) != binary.LittleEndian.Uint32(b[n:]) {
		return damaged()
	}
	return b[:n:n], nil
}

// A cursor reads the rows of a table, or those of the memtable, in the order of their paths.
type cursor struct {
	t    *table // nil for the memtable
	at   string // rows in front of this path are left out
	next int    // the next block to read
	rows []row  // those that were read already
	// skip, unless it is nil, is told of a block that cannot be read, which the cursor then skips.
	skip func(error)
}

// from returns a cursor at the first row whose path is this one or sorts behind it.
func (t *table) from(path string, skip func(error)) *cursor {
	next := sort.Search(len(t.blocks), func(i int) bool { return t.blocks[i].last >= path })
	return &cursor{t: t, at: path, next: next, skip: skip}
}

// first returns the row at the cursor, nil at the end.
func (c *cursor) first() (*row, error) {
	for len(c.rows) == 0 {
		if c.t == nil || c.next == len(c.t.blocks) {
			return nil, nil
		}
		k := &c.t.blocks[c.next]
		b, err := c.t.read(k.from, k.to)
		if err != nil && c.skip == nil {
			return nil, err
		} else if err != nil {
			c.skip(err)
		}
		for d := (decoder{b}); len(d.b) > 0; {
			r := row{path: string(d.text()), version: d.number()}
			if d.number() > 0 {
				r.value = d.text()
			}
			if r.path >= c.at {
				c.rows = append(c.rows, r)
			}
		}
		c.next++
	}
	return &c.rows[0], nil
}

// A merger reads the rows of several cursors, the newest version of each document. A newer cursor is in
// front of an older one.
type merger []*cursor

// next returns the next row, nil at the end.
func (m merger) next() (best *row, err error) {
	for _, c := range m {
		r, err := c.first()
		if err != nil {
			return nil, err
		}
		if r != nil && (best == nil || r.path < best.path) {
			best = r
		}
	}
	for _, c := range m {
		if best != nil && len(c.rows) > 0 && c.rows[0].path == best.path {
			c.rows = c.rows[1:]
		}
	}
	return best, nil
}
