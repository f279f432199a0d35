package boltqueue

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/hookferry/analytics/webhook/internal/lanes"
	bolt "go.etcd.io/bbolt"
)

const (
	// maxBlock makes two blocks fill four pages of 4 KB: bbolt keeps at least
	// two rows a page, and writes a page whole.
	maxBlock = (4*4096 - 16 - 2*(16+8)) / 2
	// maxEntries is how many deliveries a block may hold: the bits of a mask.
	maxEntries = 64
)

// A block is where deliveries are that stay in memory: a row of the bucket
// blocks.
type block struct {
	number uint64
	left   uint64 // the deliveries that are not settled, as bits; changed with the queue locked
	marked bool   // it has a row in the bucket left; of the writer alone
}

func appendEntry(b []byte, number uint64, row []byte) []byte {
	b = binary.AppendUvarint(b, number)
	b = binary.AppendUvarint(b, uint64(len(row)))
	return append(b, row...)
}

// entries calls each with the entries of a block.
func entries(b []byte, each func(i int, number uint64, row []byte) error) error {
	for i := 0; len(b) > 0; i++ {
		number, n := binary.Uvarint(b)
		if n <= 0 || i == maxEntries {
			return errRow
		}
		size, m := binary.Uvarint(b[n:])
		if m <= 0 || size > uint64(len(b)-n-m) {
			return errRow
		}
		b = b[n+m:]
		if err := each(i, number, b[:size]); err != nil {
			return err
		}
		b = b[size:]
	}
	return nil
}

// loadBlocks puts what is left in the blocks into memory.
func (q *Queue) loadBlocks(tx *bolt.Tx, r *replay, now int64) error {
	left := tx.Bucket(bucketLeft)
	return tx.Bucket(bucketBlocks).ForEach(func(k, v []byte) error {
		if len(k) != 8 {
			return fmt.Errorf("%w: key of %d bytes in %q", errRow, len(k), bucketBlocks)
		}
		b := &block{number: binary.BigEndian.Uint64(k)}
		var numbers []uint64
		err := entries(v, func(i int, number uint64, _ []byte) error {
			b.left |= 1 << i
			numbers = append(numbers, number)
			return nil
		})
		if err != nil {
			return fmt.Errorf("block %x: %w", k, err)
		}
		if v := left.Get(k); len(v) == 8 {
			b.left &= binary.BigEndian.Uint64(v)
			b.marked = true
		}
		r.settle(b, numbers)
		err = entries(v, func(i int, number uint64, row []byte) error {
			if b.left&(1<<i) == 0 {
				return nil
			}
			it := &lanes.Item{Home: b, Index: i, Size: sizeOf(row)}
			if err := unseal(row, &it.Delivery); err != nil {
				return err
			}
			l := q.table.Lane(it.Destination)
			it.Destination = l.Name
			it.Order = lanes.Order{At: it.Due.UnixMicro(), Seq: number}
			homeOf(l).bytes += it.Size
			q.cached += it.Size
			q.table.Add(l, it, now)
			return nil
		})
		if err != nil {
			return fmt.Errorf("block %x: %w", k, err)
		}
		return nil
	})
}

// writeBlocks puts blocks of what stays in memory, in the order it came, and
// what is left of older ones.
func (e *edit) writeBlocks() error {
	blocks, left := e.bucket(bucketBlocks), e.bucket(bucketLeft)
	for _, b := range slices.SortedFunc(maps.Keys(e.tail.blocks), func(a, b *block) int { return compareNumbers(a.number, b.number) }) {
		key := numberKey(b.number)
		if now := e.tail.blocks[b]; now != 0 {
			if err := left.Put(key, binary.BigEndian.AppendUint64(nil, now)); err != nil {
				return err
			}
			continue
		}
		if err := blocks.Delete(key); err != nil {
			return err
		}
		if b.marked {
			if err := left.Delete(key); err != nil {
				return err
			}
		}
	}
	slices.SortFunc(e.kept, func(a, b kept) int { return compareNumbers(a.item.Seq, b.item.Seq) })
	w := blockWriter{bucket: blocks}
	for i := range e.kept {
		k := &e.kept[i]
		var err error
		if k.block, k.index, err = w.add(k.item.Seq, k.row); err != nil {
			return err
		}
		k.body = bytes.Clone(bodyOf(k.row, len(k.item.Body)))
	}
	return w.end()
}

func compareNumbers(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// A blockWriter puts rows into blocks.
type blockWriter struct {
	bucket *bolt.Bucket
	block  *block
	buf    []byte
}

// add puts a row, and returns its place.
func (w *blockWriter) add(number uint64, v []byte) (*block, int, error) {
	if w.block != nil && (len(w.buf)+len(v)+12 > maxBlock || w.block.left == 1<<maxEntries-1) {
		if err := w.end(); err != nil {
			return nil, 0, err
		}
	}
	if w.block == nil {
		w.block, w.buf = &block{number: number}, make([]byte, 0, maxBlock)
	}
	n := bits.Len64(w.block.left)
	w.block.left |= 1 << n
	w.buf = appendEntry(w.buf, number, v)
	return w.block, n, nil
}

// end writes the last block.
func (w *blockWriter) end() error {
	if w.block == nil {
		return nil
	}
	err := w.bucket.Put(numberKey(w.block.number), w.buf)
	w.block, w.buf = nil, nil
	return err
}
