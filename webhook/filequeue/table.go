package filequeue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"slices"
	"sort"
	"strings"
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
	name   string
	size   int64
	sum    summary // of a table of the history
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

// The names of tables begin with what they have: documents or the history.
const documentTable, historyTable = "table", "history"

func tableName(of string, number uint32) string { return fmt.Sprintf("%s-%010d", of, number) }

// parseTable returns the number of the table with a name. ok reports whether it is the name of one.
func parseTable(name string) (of string, number uint32, ok bool) {
	of, digits, _ := strings.Cut(name, "-")
	_, err := fmt.Sscanf(digits, "%d", &number)
	return of, number, err == nil && (of == documentTable || of == historyTable) && name == tableName(of, number)
}

func (t *table) unpin() {
	if t.pins.Add(-1) == 0 {
		t.file.Close()
	}
}

// writeTable writes a table. The content is durable when writeTable returns nil, but not the name.
// After an error a part of the file may be left.
func writeTable(d disk.Disk, name string, rows iter.Seq2[row, error]) (*table, error) {
	t := &table{name: name}
	t.pins.Store(1)
	var err error
	if t.file, err = d.Create(name); err != nil {
		return nil, err
	}
	if err = t.fill(rows); err != nil {
		t.file.Close()
		return nil, err
	}
	return t, nil
}

// fill writes the rows, and then the index.
func (t *table) fill(rows iter.Seq2[row, error]) error {
	var b, index, sum []byte
	last := ""
	write := func() error {
		from := t.size
		if err := t.write(b); err != nil {
			return err
		}
		t.blocks = append(t.blocks, block{last, from, t.size})
		index = binary.AppendUvarint(appendText(index, last), uint64(len(b)))
		b = b[:0]
		if t.size/maxMove > from/maxMove { // so that other syncs never wait for much
			return t.file.Sync()
		}
		return nil
	}
	for r, err := range rows {
		if err != nil {
			return err
		}
		if len(b) >= blockBytes {
			if err := write(); err != nil {
				return err
			}
		}
		if r.path == summaryPath {
			t.sum, sum = summaryOf(r.value), r.value
			continue
		}
		last, b = r.path, r.append(b)
	}
	if len(b) > 0 {
		if err := write(); err != nil {
			return err
		}
	}
	if sum != nil { // as a block without a length
		index = append(appendText(index, sum), 0)
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
func openTable(d disk.Disk, name string, size int64) (t *table, err error) {
	t = &table{name: name, size: size}
	t.pins.Store(1)
	if t.file, err = d.Open(name); err != nil {
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
		last, n := index.text(), int64(index.number())
		if n == 0 {
			t.sum = summaryOf(last)
			continue
		}
		t.blocks = append(t.blocks, block{string(last), to, to + n + 4})
		to += n + 4
	}
	if to+int64(len(b))+12 != size { // zeros are the checksum of nothing
		t.unpin()
		return nil, fmt.Errorf("%w: %s has %d bytes, and its index is about others", ErrDamaged, t.name, size)
	}
	return t, nil
}

// read returns what is between two offsets of the file, without the checksum at the end.
func (t *table) read(from, to int64) ([]byte, error) {
	damaged := func() ([]byte, error) {
		return nil, fmt.Errorf("%w: %s cannot be read at %d", ErrDamaged, t.name, from)
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

// find returns the number of the block that has a path, if one has it.
func (t *table) find(path string) int {
	return sort.Search(len(t.blocks), func(i int) bool { return t.blocks[i].last >= path })
}

// rows returns the rows of a block whose paths are in the range from one to another. An empty one is no
// bound.
func (t *table) rows(i int, from, to string) (rows []row, err error) {
	b, err := t.read(t.blocks[i].from, t.blocks[i].to)
	for d := (decoder{b}); len(d.b) > 0; {
		path, r := d.text(), row{version: d.number()}
		if d.number() > 0 {
			r.value = d.text()
		}
		if to != "" && string(path) > to {
			break
		}
		if string(path) >= from {
			r.path = string(path)
			rows = append(rows, r)
		}
	}
	return rows, err
}

// scan calls f with the rows whose paths are in a range, the last one first if backwards is set, until f
// returns false. skip, unless it is nil, is told of a damaged block, which scan then leaves out.
func (t *table) scan(from, to string, backwards bool, skip func(error), f func(r row) bool) error {
	first, last := t.find(from), min(t.find(to), len(t.blocks)-1)
	for n := range max(last-first+1, 0) {
		i := first + n
		if backwards {
			i = last - n
		}
		rows, err := t.rows(i, from, to)
		if errors.Is(err, ErrDamaged) && skip != nil {
			skip(err)
		} else if err != nil {
			return err
		}
		if backwards {
			slices.Reverse(rows)
		}
		for _, r := range rows {
			if !f(r) {
				return nil
			}
		}
	}
	return nil
}

// A cursor reads the rows of a table, or those of the memtable, in the order of their paths.
type cursor struct {
	t    *table // nil for the memtable
	at   string // rows in front of this path are left out
	to   string // so are rows behind this one, unless it is empty
	next int    // the next block to read
	end  int    // the block behind the last one to read
	rows []row  // those that were read already
	// skip, unless it is nil, is told of a block that cannot be read, which the cursor then skips.
	skip func(error)
}

// from returns a cursor at the first row whose path is this one or sorts behind it. It goes to the
// end, or to a path.
func (t *table) from(path, to string, skip func(error)) *cursor {
	c := &cursor{t: t, at: path, to: to, next: t.find(path), end: len(t.blocks), skip: skip}
	if to != "" {
		c.end = min(t.find(to)+1, c.end)
	}
	return c
}

// first returns the row at the cursor, nil at the end.
func (c *cursor) first() (*row, error) {
	for len(c.rows) == 0 {
		if c.t == nil || c.next >= c.end {
			return nil, nil
		}
		rows, err := c.t.rows(c.next, c.at, c.to)
		if err != nil && c.skip == nil {
			return nil, err
		} else if err != nil {
			c.skip(err)
		}
		c.rows = rows
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

// all returns the rows of a merger. The argument oldest says that no older table is left, so that nothing
// needs to know of removed documents.
func (m merger) all(oldest bool) iter.Seq2[row, error] {
	return func(yield func(row, error) bool) {
		for {
			r, err := m.next()
			switch {
			case err != nil:
				yield(row{}, err)
				return
			case r == nil:
				return
			case oldest && r.value == nil:
			case !yield(*r, nil):
				return
			}
		}
	}
}
