package boltqueue

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/internal/seen"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// load reads what is to be in memory of a file that was just opened: the
// blocks, which are no more than fitted into memory before, the first row of
// each lane, and the keys of what was put.
func (q *Queue) load(tx *bolt.Tx) error {
	q.applied = tx.ID()
	if err := q.count.read(tx.Bucket(bucketMeta).Get(rowState)); err != nil {
		return err
	}
	now := time.Now().UnixMicro()
	if err := q.loadLanes(tx, now); err != nil {
		return err
	}
	if err := q.loadBlocks(tx, now); err != nil {
		return err
	}
	return tx.Bucket(bucketSeen).ForEach(func(k, v []byte) error {
		const size = len(seen.Key{})
		if len(k) != 8 || len(v) < 8 || len(v)%size != 8 {
			return fmt.Errorf("%w: of %d bytes in %q", errRow, len(v), bucketSeen)
		}
		at := time.UnixMicro(int64(binary.BigEndian.Uint64(v)))
		for keys := v[8:]; len(keys) > 0; keys = keys[size:] {
			q.seen.Add(seen.Key(keys[:size]), at)
			q.turned(binary.BigEndian.Uint64(k))
		}
		return nil
	})
}

func (q *Queue) loadLanes(tx *bolt.Tx, now int64) error {
	c := tx.Bucket(bucketWaiting).Cursor()
	return tx.Bucket(bucketLanes).ForEach(func(name, v []byte) error {
		if len(v) != 4 {
			return fmt.Errorf("%w: of %d bytes in %q", errRow, len(v), bucketLanes)
		}
		l := q.table.Lane(string(name))
		homeOf(l).number = binary.BigEndian.Uint32(v)
		if k, _ := c.Seek(v); len(k) == waitingKeyLen && bytes.HasPrefix(k, v) {
			l.Beyond = readOrder(k[4:])
			q.table.Refresh(l, now)
		}
		return nil
	})
}

func (q *Queue) loadBlocks(tx *bolt.Tx, now int64) error {
	left := tx.Bucket(bucketLeft)
	return tx.Bucket(bucketBlocks).ForEach(func(k, v []byte) error {
		if len(k) != 8 {
			return fmt.Errorf("%w: key of %d bytes in %q", errRow, len(k), bucketBlocks)
		}
		b := &block{number: binary.BigEndian.Uint64(k), left: ^uint64(0)}
		if v := left.Get(k); len(v) == 8 {
			b.left, b.marked = binary.BigEndian.Uint64(v), true
		}
		var all uint64
		err := entries(v, func(i int, number uint64, row []byte) error {
			all |= 1 << i
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
		b.left &= all
		return nil
	})
}

// Lease implements webhook.Queue. Room is called with the queue locked.
func (q *Queue) Lease(ctx context.Context, req webhook.LeaseRequest, dst []webhook.Delivery) ([]webhook.Delivery, time.Time, error) {
	if err := q.enter(ctx); err != nil {
		return dst, time.Time{}, err
	}
	defer q.calls.Done()
	if req.Max < 1 {
		return dst, time.Time{}, errors.New("boltqueue: lease of less than one delivery")
	}
	select {
	case q.leasing <- struct{}{}:
		defer func() { <-q.leasing }()
	case <-ctx.Done():
		return dst, time.Time{}, ctx.Err()
	}
	take := &lanes.Take{Max: req.Max, Until: req.Until.UnixMicro(), Room: req.Room, Out: dst}
	next, err := q.lease(take)
	if err != nil && len(take.Out) == len(dst) {
		return dst, time.Time{}, err
	}
	return take.Out, next, nil
}

// lease hands out what take asks for, and brings into memory what it needs for
// that, without the lock.
func (q *Queue) lease(take *lanes.Take) (next time.Time, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now().UnixMicro()
	had := len(take.Out)
	q.table.Begin(take, now)
	defer q.table.End()
	skipped := false
	for {
		for !q.table.Serve(take, now) {
			loads := make([]load, 0, len(take.Wants))
			for _, l := range take.Wants {
				if homeOf(l).moving {
					// A checkpoint is about to write what comes next.
					q.table.Skip(l)
					skipped = true
					continue
				}
				loads = append(loads, load{lane: l, number: homeOf(l).number, from: l.Beyond, max: take.Want(l), ahead: q.ahead(l)})
			}
			if err = q.bring(loads, now); err != nil {
				// It is still due, and the caller may try again at any time.
				return time.UnixMicro(now).UTC(), err
			}
		}
		if !skipped {
			return q.table.Next(now), nil
		}
		if len(take.Out) > had {
			return time.UnixMicro(now).UTC(), nil
		}
		if q.file == nil {
			return time.UnixMicro(now).UTC(), q.failure
		}
		q.landed.Wait()
		q.table.End()
		q.table.Begin(take, now)
		skipped = false
	}
}

// A load is a part of a lane to be read.
type load struct {
	lane   *lanes.Lane
	number uint32
	from   lanes.Order // of the first row
	max    int         // rows that are wanted
	ahead  int64       // bytes that may be read beyond these

	items []*lanes.Item
	sizes []int
	last  lanes.Order // of the last row that was read
	next  lanes.Order // of the first that was not
	bad   [][]byte    // keys of rows that cannot be read
}

// readAhead is how much of a lane is read at most in one go beyond what is
// wanted.
const readAhead = 64 << 10

// ahead returns how many bytes of l may be read before they are wanted.
func (q *Queue) ahead(l *lanes.Lane) int64 {
	free := q.config.CacheBytes - q.cached
	return max(0, min(readAhead, free/4-homeOf(l).bytes))
}

// bring reads loads. The queue is locked, but not while it reads.
func (q *Queue) bring(loads []load, now int64) error {
	if len(loads) == 0 {
		return nil
	}
	tx, err := q.snapshot()
	if err != nil {
		return err
	}
	id := tx.ID()
	q.mu.Unlock()
	err = protect(q.path, func() error {
		defer tx.Rollback()
		c := tx.Bucket(bucketWaiting).Cursor()
		for i := range loads {
			loads[i].read(c, now)
		}
		return nil
	})
	q.mu.Lock()
	if err != nil {
		return err
	}
	q.install(loads, id, now)
	return nil
}

// install puts into memory what was read of the state after transaction id. The
// queue is locked.
func (q *Queue) install(loads []load, id int, now int64) {
	for i := range loads {
		ld := &loads[i]
		h := homeOf(ld.lane)
		if h.arrived > id || h.number != ld.number {
			continue // a row may have come that was not read; again
		}
		h.frontier = ld.last
		h.loaded += len(ld.items)
		ld.lane.Beyond = ld.next
		for j, it := range ld.items {
			it.Destination = ld.lane.Name
			q.keep(ld.lane, it, ld.sizes[j])
		}
		q.table.Refresh(ld.lane, now)
		if len(ld.bad) > 0 {
			q.inbox.send(&request{done: make(chan struct{}), work: setAside(ld.bad)})
		}
	}
}

// keep adds an item that has a row of n bytes in waiting.
func (q *Queue) keep(l *lanes.Lane, it *lanes.Item, n int) {
	it.Size = int64(n) + itemBytes
	homeOf(l).bytes += it.Size
	q.cached += it.Size
	q.table.Add(l, it, time.Now().UnixMicro())
}

// release gives back the memory that an item counts for.
func (q *Queue) release(it *lanes.Item) {
	h := homeOf(it.Lane())
	switch it.Home.(type) {
	case *tail:
		return
	case nil:
		h.loaded--
	}
	h.bytes -= it.Size
	q.cached -= it.Size
}

// snapshot begins to read the state that memory shows. The queue is locked.
func (q *Queue) snapshot() (*bolt.Tx, error) {
	for {
		if q.file == nil {
			return nil, q.failure
		}
		tx, err := q.file.Begin(false)
		if err != nil {
			return nil, fmt.Errorf("boltqueue: reading %s: %w", q.path, err)
		}
		if tx.ID() == q.applied {
			return tx, nil
		}
		// A commit is in the file, and about to be in memory.
		tx.Rollback()
		q.landed.Wait()
	}
}

// read reads the rows.
func (ld *load) read(c *bolt.Cursor, now int64) {
	prefix := binary.BigEndian.AppendUint32(nil, ld.number)
	ld.last, ld.next = ld.from, lanes.Last
	for k, v := c.Seek(waitingKey(nil, ld.number, ld.from)); len(k) == waitingKeyLen && bytes.HasPrefix(k, prefix); k, v = c.Next() {
		o := readOrder(k[4:])
		if o.At > now || len(ld.items) >= ld.max && ld.ahead < sizeOf(v) {
			ld.next = o
			return
		}
		ld.last = o
		it := &lanes.Item{Order: o}
		if err := unseal(v, &it.Delivery); err != nil {
			ld.bad = append(ld.bad, slices.Clone(k))
			continue
		}
		if len(ld.items) >= ld.max {
			ld.ahead -= sizeOf(v)
		}
		ld.items = append(ld.items, it)
		ld.sizes = append(ld.sizes, len(v))
	}
}

// setAside moves rows of waiting that cannot be read to where they are in
// nobody's way.
func setAside(keys [][]byte) func(*edit, *request) error {
	return func(e *edit, _ *request) error {
		waiting, damaged := e.bucket(bucketWaiting), e.bucket(bucketDamaged)
		for _, k := range keys {
			v := waiting.Get(k)
			if v == nil {
				continue
			}
			if err := damaged.Put(k, slices.Clone(v)); err != nil {
				return err
			}
			if err := waiting.Delete(k); err != nil {
				return err
			}
			e.count.waiting--
			e.q.config.Logger.Error("boltqueue: a delivery cannot be read and is set aside", "file", e.q.path, "row", fmt.Sprintf("%x", k))
		}
		return nil
	}
}
