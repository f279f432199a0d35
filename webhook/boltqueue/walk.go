package boltqueue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// What bbolt files are made of, as its sources have it (internal/common of
// v1.4): pages in the byte order of the machine that start with a header, and
// two meta pages, of which the valid one with the higher transaction counts.
const (
	pageHeader  = 16
	elementSize = 16

	branchPage = 0x01
	leafPage   = 0x02
	metaPage   = 0x04
	listPage   = 0x10

	bucketLeaf = 0x01

	metaMagic    = 0xED0CDAED
	metaSize     = 64
	noFreelist   = ^uint64(0)
	maxTreeDepth = 64
)

var native = binary.NativeEndian

// A tree is the pages of a database file.
type tree struct {
	file     io.ReaderAt
	pageSize int
	pages    uint64 // how many there are
	root     uint64
	freelist uint64
	seen     []uint64 // pages that were walked through, as bits
	reading  *reading
}

// smallFile is the size up to which all of a file is looked at before it is
// opened: it takes a few hundredths of a second.
const smallFile = 64 << 20

// walk looks at a database file, which nobody writes to, as bbolt would, and
// returns what would make bbolt panic. It looks at the size and the list of
// free pages, and at all pages if the file is small, if all is set, or if there
// is no such list, which makes bbolt look at all pages too.
func walk(f *os.File, all bool, p *reading) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	t := &tree{file: f, reading: p}
	if err := t.readMeta(); err != nil {
		return err
	}
	if uint64(info.Size()) < t.pages*uint64(t.pageSize) {
		return fmt.Errorf("it has %d bytes of %d", info.Size(), t.pages*uint64(t.pageSize))
	}
	t.seen = make([]uint64, t.pages/64+1)
	if t.freelist != noFreelist {
		if err := t.list(t.freelist); err != nil {
			return err
		}
		if !all && t.pages*uint64(t.pageSize) > smallFile {
			return nil
		}
	}
	return t.walk(t.root, 0, nil, nil)
}

// readMeta finds the meta page that counts.
func (t *tree) readMeta() error {
	var latest uint64
	try := func(offset int64) int {
		b := make([]byte, pageHeader+metaSize)
		if _, err := t.file.ReadAt(b, offset); err != nil {
			return 0
		}
		m := b[pageHeader:]
		sum := fnv.New64a()
		sum.Write(m[:metaSize-8])
		if native.Uint32(m) != metaMagic || native.Uint64(m[metaSize-8:]) != sum.Sum64() {
			return 0
		}
		size := int(native.Uint32(m[8:]))
		if tx := native.Uint64(m[48:]); t.pages == 0 || tx > latest {
			latest = tx
			t.pageSize = size
			t.root, t.freelist, t.pages = native.Uint64(m[16:]), native.Uint64(m[32:]), native.Uint64(m[40:])
		}
		return size
	}
	if size := try(0); size > 0 {
		try(int64(size))
	} else {
		for size := int64(1024); size <= 16<<20; size *= 2 {
			if try(size) > 0 {
				break
			}
		}
	}
	if t.pages == 0 || t.pageSize < 1024 || t.pageSize > 16<<20 || t.pageSize&(t.pageSize-1) != 0 {
		return errors.New("it has no valid meta page")
	}
	return nil
}

// page reads a page with what overflows it.
func (t *tree) page(id uint64) ([]byte, error) {
	if id < 2 || id >= t.pages {
		return nil, fmt.Errorf("page %d of %d", id, t.pages)
	}
	if err := t.reading.step(t.pageSize); err != nil {
		return nil, err
	}
	b := make([]byte, t.pageSize)
	if _, err := t.file.ReadAt(b, int64(id)*int64(t.pageSize)); err != nil {
		return nil, err
	}
	over := uint64(native.Uint32(b[12:]))
	if native.Uint64(b) != id || id+over >= t.pages {
		return nil, fmt.Errorf("page %d has number %d and overflows by %d", id, native.Uint64(b), over)
	}
	for p := id; p <= id+over; p++ {
		if t.seen[p/64]&(1<<(p%64)) != 0 {
			return nil, fmt.Errorf("page %d is used twice", p)
		}
		t.seen[p/64] |= 1 << (p % 64)
	}
	if over > 0 {
		need, err := t.length(id, b)
		if err != nil {
			return nil, err
		}
		if over*uint64(t.pageSize) >= need {
			return nil, fmt.Errorf("page %d overflows by %d with %d bytes", id, over, need)
		}
		rest := make([]byte, (over+1)*uint64(t.pageSize))
		copy(rest, b)
		if _, err := t.file.ReadAt(rest[t.pageSize:], int64(id+1)*int64(t.pageSize)); err != nil {
			return nil, err
		}
		b = rest
		if err := t.reading.step(len(b) - t.pageSize); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// length returns how many bytes a page with this beginning has by what is in it, so
// that no more is read for a number that is spoilt. For a list of free pages it is
// what may have been expected when its space was taken.
func (t *tree) length(id uint64, b []byte) (uint64, error) {
	flags, n := native.Uint16(b[8:]), uint64(native.Uint16(b[10:]))
	if flags == listPage {
		if n == 0xFFFF {
			n = native.Uint64(b[pageHeader:]) + 1
		}
		n = min(n, t.pages)
		over := uint64(native.Uint32(b[12:]))
		return pageHeader + 8*(n+over+1) + 2*uint64(t.pageSize), nil
	}
	if n == 0 {
		return pageHeader, nil
	}
	el := make([]byte, elementSize)
	last := pageHeader + (n-1)*elementSize
	if _, err := t.file.ReadAt(el, int64(id)*int64(t.pageSize)+int64(last)); err != nil {
		return 0, err
	}
	if flags == branchPage {
		return last + uint64(native.Uint32(el)) + uint64(native.Uint32(el[4:])), nil
	}
	return last + uint64(native.Uint32(el[4:])) + uint64(native.Uint32(el[8:])) + uint64(native.Uint32(el[12:])), nil
}

func (t *tree) list(id uint64) error {
	b, err := t.page(id)
	if err != nil {
		return fmt.Errorf("list of free pages: %w", err)
	}
	n, ids := uint64(native.Uint16(b[10:])), b[pageHeader:]
	if n == 0xFFFF {
		n, ids = native.Uint64(ids), ids[8:]
	}
	if native.Uint16(b[8:]) != listPage || n > uint64(len(ids)/8) {
		return fmt.Errorf("page %d is no list of free pages", id)
	}
	for last := uint64(1); n > 0; n, ids = n-1, ids[8:] {
		p := native.Uint64(ids)
		if p <= last || p >= t.pages {
			return fmt.Errorf("the list of free pages has page %d after %d", p, last)
		}
		last = p
		t.seen[p/64] |= 1 << (p % 64) // nothing else may lead there
	}
	return nil
}

// walk looks at a page, whose keys are not before from, and before to; nil is no
// bound.
func (t *tree) walk(id uint64, depth int, from, to []byte) error {
	b, err := t.page(id)
	if err != nil {
		return err
	}
	if err := t.node(b, depth, from, to); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// node looks at a branch or a leaf, and what is below it.
func (t *tree) node(b []byte, depth int, from, to []byte) error {
	if depth > maxTreeDepth {
		return errors.New("the tree is too deep")
	}
	flags, n := native.Uint16(b[8:]), int(native.Uint16(b[10:]))
	if flags != branchPage && flags != leafPage || flags == branchPage && n == 0 {
		return fmt.Errorf("flags %#x and %d elements", flags, n)
	}
	if pageHeader+n*elementSize > len(b) {
		return fmt.Errorf("%d elements in %d bytes", n, len(b))
	}
	leaf := flags == leafPage
	element := func(i int) (el, k, v []byte, err error) {
		el = b[pageHeader+i*elementSize:]
		var pos, key, value uint64
		if leaf {
			pos, key, value = uint64(native.Uint32(el[4:])), uint64(native.Uint32(el[8:])), uint64(native.Uint32(el[12:]))
		} else {
			pos, key = uint64(native.Uint32(el)), uint64(native.Uint32(el[4:]))
		}
		if pos > uint64(len(el)) || key+value > uint64(len(el))-pos {
			return nil, nil, nil, fmt.Errorf("element %d ends outside", i)
		}
		return el, el[pos : pos+key], el[pos+key : pos+key+value], nil
	}
	for i := range n {
		el, k, v, err := element(i)
		if err != nil {
			return err
		}
		next := to
		if i+1 < n {
			if _, next, _, err = element(i + 1); err != nil {
				return err
			}
		}
		if i == 0 && from != nil && bytes.Compare(k, from) < 0 || next != nil && bytes.Compare(k, next) >= 0 {
			return fmt.Errorf("key %d is out of order", i)
		}
		switch {
		case !leaf:
			if err := t.walk(native.Uint64(el[8:]), depth+1, k, next); err != nil {
				return err
			}
		case native.Uint32(el)&bucketLeaf != 0:
			if err := t.bucket(v, depth); err != nil {
				return fmt.Errorf("bucket %q: %w", k, err)
			}
		}
	}
	return nil
}

// bucket looks at a bucket: a root and a sequence, and the page itself if it is
// small.
func (t *tree) bucket(v []byte, depth int) error {
	if len(v) < 16 {
		return errors.New("it is cut short")
	}
	if root := native.Uint64(v); root != 0 {
		return t.walk(root, depth+1, nil, nil)
	}
	if len(v) < 16+pageHeader {
		return errors.New("it is cut short")
	}
	return t.node(v[16:], depth+1, nil, nil)
}
