package boltqueue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/internal/seen"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// A block is where the deliveries are that came in one commit and are in
// memory: a row of the bucket blocks. Only the committer looks into it.
type block struct {
	number uint64
	left   uint64 // the deliveries that are not settled, as bits
	marked bool   // it has a row in the bucket left
}

// A home is what the store knows of a lane.
type home struct {
	number   uint32      // in the file, 0 if it has none
	frontier lanes.Order // rows of waiting up to here are in memory
	arrived  int         // the latest transaction that put rows there
	bytes    int64       // of its items that count against CacheBytes
	pending  int         // puts of the commit going on
	retiring bool        // in Queue.retired
}

func homeOf(l *lanes.Lane) *home {
	if l.Home == nil {
		l.Home = &home{frontier: firstOrder}
	}
	return l.Home.(*home)
}

// retire is asked whether the table may forget a lane. A lane that has a number
// is first taken out of the file.
func (q *Queue) retire(l *lanes.Lane) bool {
	h := homeOf(l)
	if h.pending > 0 {
		return false
	}
	if h.number == 0 {
		return true
	}
	if !h.retiring {
		h.retiring = true
		q.retired = append(q.retired, l)
	}
	return false
}

// committer commits what callers want stored, until Close.
func (q *Queue) committer() {
	defer close(q.stopped)
	var (
		group []*request
		began time.Time
		last  int // requests in the latest group
	)
	for {
		select {
		case <-q.inbox.wake:
		case <-q.stop:
			q.rest()
			return
		}
		for {
			q.gather(began, last)
			if group = q.inbox.take(group[:0]); len(group) == 0 {
				break
			}
			began, last = time.Now(), len(group)
			q.commit(group)
			for i, r := range group {
				close(r.done)
				group[i] = nil
			}
		}
	}
}

// pace is the time between the beginnings of two commits while there is more
// to come: a commit of a few rows takes as much work as one of many.
const pace = time.Millisecond

// gather lets requests come until there are as many as in the latest commit,
// whose callers are likely to be back, but not longer than a pace after it
// began. So a caller that is alone never waits.
func (q *Queue) gather(began time.Time, last int) {
	left := pace - time.Since(began)
	if left <= 0 || q.inbox.len() >= last || q.inbox.len() == 0 {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	for q.inbox.len() < last {
		select {
		case <-q.inbox.wake:
		case <-timer.C:
			return
		}
	}
}

// commit stores what a group of requests wants, in one transaction.
func (q *Queue) commit(group []*request) {
	fail := func(err error) {
		for _, r := range group {
			if r.err == nil {
				r.err = err
			}
			r.stored = 0
		}
	}
	db, err := q.recover()
	if err != nil {
		fail(err)
		return
	}
	e := &edit{q: q, db: db, now: time.Now(), count: q.count}
	err = protect(q.path, func() error { return e.build(group) })
	if err == nil && !e.dirty {
		err = errNothing
	}
	if err != nil {
		e.rollback()
		q.mu.Lock()
		if err == errNothing {
			e.apply(q.applied)
			err = nil
		} else {
			e.undo()
		}
		q.mu.Unlock()
		if err != nil {
			if !errors.Is(err, errAlone) {
				fail(err)
				q.config.Logger.Error("boltqueue: commit failed", "file", q.path, "error", err)
			}
		}
		return
	}
	id := e.tx.ID()
	q.used = e.used
	db.NoFreelistSync = !e.syncFreelist()
	err = protect(q.path, func() error { return q.commit1(e.tx) })
	if err == nil {
		q.mu.Lock()
		e.apply(id)
		q.mu.Unlock()
		return
	}
	e.rollback()
	q.config.Logger.Error("boltqueue: commit failed", "file", q.path, "error", err)
	err = fmt.Errorf("boltqueue: writing %s: %w", q.path, err)
	if got, ok := lastTx(db); ok && got == id-1 {
		// Nothing of it is to be seen, and bbolt is as it was before.
		q.mu.Lock()
		e.undo()
		q.mu.Unlock()
		fail(err)
		return
	}
	// The new state may be in the file while bbolt believes in the old one, or
	// something panicked halfway. Only reading the file afresh tells, before
	// anything else is written.
	q.mu.Lock()
	q.file, q.failure = nil, err
	q.landed.Broadcast()
	q.mu.Unlock()
	e.id = id
	q.doubt = e
	db.Close()
	if _, again := q.recover(); again != nil || !e.landed {
		fail(err)
	}
}

var (
	errNothing = errors.New("boltqueue: nothing to write")
	errAlone   = errors.New("boltqueue: read only")
)

// An edit is one commit.
type edit struct {
	q      *Queue
	db     *bolt.DB
	tx     *bolt.Tx
	id     int
	now    time.Time
	count  counts
	dirty  bool
	landed bool
	used   int64

	keys    []seen.Key
	stored  []stored
	removed []removed
	renewed []end
	named   []*lanes.Lane // were given a number
	unnamed []unnamed     // had theirs taken
	block   *block        // being filled
	buf     []byte        // its entries
	blocks  []blockRow
	rows    []row // for waiting
}

// A stored is a put that was let in.
type stored struct {
	put
	lane  *lanes.Lane
	order lanes.Order
	block *block // nil: it goes to waiting
}

// A removed is an item whose lease ends.
type removed struct {
	end
	item  *lanes.Item
	order lanes.Order // of a retry
	left  uint64      // of its block, before
}

type unnamed struct {
	lane   *lanes.Lane
	number uint32
}

type blockRow struct {
	block *block
	value []byte
}

type row struct{ key, value []byte }

// build writes what the group wants into a transaction.
func (e *edit) build(group []*request) (err error) {
	if e.tx, err = e.db.Begin(true); err != nil {
		return err
	}
	q := e.q
	stats := e.db.Stats()
	e.used = e.tx.Size() - int64(stats.FreePageN+stats.PendingPageN)*int64(e.db.Info().PageSize)
	for _, r := range group {
		if r.work == nil {
			continue
		}
		if err := r.work(e, r); err != nil {
			return err
		}
	}
	q.mu.Lock()
	e.plan(group)
	q.mu.Unlock()
	return e.write()
}

// full reports whether the file has no room for so many bytes more.
func (e *edit) full(n int64) bool {
	return e.q.config.MaxBytes > 0 && e.used+n > e.q.config.MaxBytes
}

// plan decides what becomes of each request. The queue is locked.
func (e *edit) plan(group []*request) {
	q := e.q
	for _, l := range q.retired {
		h := homeOf(l)
		h.retiring = false
		if l.Empty() && h.number != 0 {
			e.unnamed = append(e.unnamed, unnamed{l, h.number})
			h.number = 0
		}
	}
	q.retired = q.retired[:0]
	for _, r := range group {
		if r.err != nil {
			continue
		}
		if len(r.puts) > 0 && r.work == nil {
			var n int64
			for i := range r.puts {
				n += int64(len(r.puts[i].row))
			}
			if e.full(n) {
				r.err = webhook.ErrQueueFull
				continue
			}
			e.used += n
		}
		for _, p := range r.puts {
			if !p.known {
				if !q.seen.Add(p.key, e.now) {
					continue
				}
				e.keys = append(e.keys, p.key)
			}
			if r.work == nil {
				r.stored++
			}
			e.place(p)
		}
		for _, x := range r.ends {
			it := q.table.Leased(x.lease)
			if it == nil || it.Settling() {
				continue
			}
			if x.verdict == webhook.Renew {
				e.renewed = append(e.renewed, x)
				continue
			}
			q.table.Detach(it, e.now.UnixMicro())
			e.end(x, it)
		}
	}
}

// end notes that the lease of it, detached, ends.
func (e *edit) end(x end, it *lanes.Item) {
	rm := removed{end: x, item: it}
	switch x.verdict {
	case webhook.Retry:
		rm.order = lanes.Order{At: x.at, Seq: e.number()}
		e.name(it.Lane())
	case webhook.Bury:
		rm.order = lanes.Order{At: x.at, Seq: e.number()}
		e.count.dead++
		e.count.waiting--
	default:
		e.count.waiting--
	}
	if b, ok := it.Home.(*block); ok {
		rm.left = b.left
		b.left &^= 1 << it.Index
	}
	e.removed = append(e.removed, rm)
}

func (e *edit) number() uint64 {
	e.count.number++
	return e.count.number
}

// name sees to it that l has a number in the file.
func (e *edit) name(l *lanes.Lane) {
	if h := homeOf(l); h.number == 0 {
		e.count.lane++
		h.number = e.count.lane
		e.named = append(e.named, l)
	}
}

// place decides where p goes: into a block, and memory, if it is due and
// there is room, else among the rows of its lane.
func (e *edit) place(p put) {
	q := e.q
	l := q.table.Lane(p.dest)
	h := homeOf(l)
	h.pending++
	s := stored{put: p, lane: l, order: lanes.Order{At: p.item.At, Seq: e.number()}}
	e.count.waiting++
	if p.item.At <= e.now.UnixMicro() && q.fits(h, sizeOf(p.row)) {
		if e.block == nil || len(e.buf) > 0 && (len(e.buf)+len(p.row)+12 > maxBlock || e.block.left == 1<<maxEntries-1) {
			e.endBlock()
			e.block = &block{number: s.order.Seq}
		}
		n := bits.Len64(e.block.left)
		e.block.left |= 1 << n
		e.buf = appendEntry(e.buf, s.order.Seq, p.row)
		p.item.Home, p.item.Index, p.item.Size = e.block, n, sizeOf(p.row)
		s.block = e.block
		h.bytes += sizeOf(p.row)
		q.cached += sizeOf(p.row)
	} else {
		e.name(l)
	}
	e.stored = append(e.stored, s)
}

func (e *edit) endBlock() {
	if e.block != nil {
		e.blocks = append(e.blocks, blockRow{e.block, e.buf})
		e.block, e.buf = nil, make([]byte, 0, maxBlock)
	}
}

// fits reports whether a delivery of n bytes is kept in memory. A lane may fill
// a quarter of what the others leave, so that those that hang do not take the
// memory from those that flow; a few deliveries it may always have.
func (q *Queue) fits(h *home, n int64) bool {
	free := q.config.CacheBytes - q.cached
	return h.bytes+n <= free/4 || h.bytes == 0 && q.cached+n <= 2*q.config.CacheBytes
}

// write writes what was planned.
func (e *edit) write() error {
	e.endBlock()
	q := e.q
	if len(e.named)+len(e.unnamed) > 0 {
		b := e.bucket(bucketLanes)
		for _, u := range e.unnamed {
			if err := b.Delete([]byte(u.lane.Name)); err != nil {
				return err
			}
		}
		for _, l := range e.named {
			if err := b.Put([]byte(l.Name), binary.BigEndian.AppendUint32(nil, homeOf(l).number)); err != nil {
				return err
			}
		}
	}
	for _, s := range e.stored {
		if s.block == nil {
			e.rows = append(e.rows, row{waitingKey(nil, homeOf(s.lane).number, s.order), s.row})
		}
	}
	if err := e.remove(); err != nil {
		return err
	}
	if len(e.rows) > 0 {
		// In the order of the keys a page is visited once.
		slices.SortFunc(e.rows, func(x, y row) int { return bytes.Compare(x.key, y.key) })
		b := e.bucket(bucketWaiting)
		b.FillPercent = 0.9 // mostly at the end of a lane
		for _, r := range e.rows {
			if err := b.Put(r.key, r.value); err != nil {
				return err
			}
		}
	}
	if len(e.blocks) > 0 {
		b := e.bucket(bucketBlocks)
		for _, r := range e.blocks {
			if err := b.Put(numberKey(r.block.number), r.value); err != nil {
				return err
			}
		}
	}
	if len(e.keys) > 0 {
		if err := e.remember(); err != nil {
			return err
		}
	}
	if e.count != q.count {
		return e.bucket(bucketMeta).Put(rowState, e.count.row())
	}
	return nil
}

// remove writes the ends of leases.
func (e *edit) remove() error {
	if len(e.removed) == 0 {
		return nil
	}
	touched := map[*block]bool{}
	for _, rm := range e.removed {
		it := rm.item
		if b, ok := it.Home.(*block); ok {
			touched[b] = true
		} else if err := e.bucket(bucketWaiting).Delete(waitingKey(nil, homeOf(it.Lane()).number, it.Order)); err != nil {
			return err
		}
		switch rm.verdict {
		case webhook.Retry:
			e.rows = append(e.rows, row{waitingKey(nil, homeOf(it.Lane()).number, rm.order), rm.row})
		case webhook.Bury:
			b := e.bucket(bucketDead)
			b.FillPercent = 0.9 // mostly at the end
			if err := b.Put(orderKey(nil, rm.order), rm.row); err != nil {
				return err
			}
		}
	}
	blocks, left := e.bucket(bucketBlocks), e.bucket(bucketLeft)
	for b := range touched {
		key := numberKey(b.number)
		if b.left != 0 {
			if err := left.Put(key, binary.BigEndian.AppendUint64(nil, b.left)); err != nil {
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
	return nil
}

// remember writes the keys of what was put, and forgets some of those that the
// window has forgotten.
func (e *edit) remember() error {
	q := e.q
	b := e.bucket(bucketSeen)
	b.FillPercent = 0.9
	number := e.number()
	q.turned(number)
	if err := b.Put(numberKey(number), seenRow(e.now.UnixMicro(), e.keys)); err != nil {
		return err
	}
	c := b.Cursor()
	for range 64 {
		k, _ := c.First()
		if len(k) != 8 || binary.BigEndian.Uint64(k) >= q.rows.older {
			break
		}
		if err := c.Delete(); err != nil {
			return err
		}
	}
	return nil
}

// turned notes that the keys of the row with this number are in the window's
// present generation, or the one before.
func (q *Queue) turned(number uint64) {
	for ; q.turn != q.seen.Turns(); q.turn++ {
		q.rows.older, q.rows.newer = q.rows.newer, number
	}
}

func (e *edit) bucket(name []byte) *bolt.Bucket {
	e.dirty = true
	return e.tx.Bucket(name)
}

// apply makes memory show what transaction id has stored. The queue is locked.
func (e *edit) apply(id int) {
	q, now := e.q, e.now.UnixMicro()
	q.applied, q.count = id, e.count
	for _, s := range e.stored {
		homeOf(s.lane).pending--
		if s.block == nil {
			e.arrive(id, s.lane, s.order, s.row)
			continue
		}
		s.item.Destination = s.lane.Name
		s.item.Order = s.order
		q.table.Add(s.lane, s.item, now)
	}
	for _, rm := range e.removed {
		l := rm.item.Lane()
		q.table.Remove(rm.item, now)
		q.release(rm.item)
		if b, ok := rm.item.Home.(*block); ok {
			b.marked = true
		}
		if rm.verdict == webhook.Retry {
			e.arrive(id, l, rm.order, rm.row)
		}
	}
	for _, x := range e.renewed {
		if it := q.table.Leased(x.lease); it != nil && !it.Settling() {
			q.table.Renew(it, x.at, now)
		}
	}
	e.landed = true
	q.landed.Broadcast()
}

// arrive notes that a lane has a row more in waiting.
func (e *edit) arrive(id int, l *lanes.Lane, o lanes.Order, row []byte) {
	q, h := e.q, homeOf(l)
	h.arrived = id
	if h.frontier.Before(o) {
		if o.Before(l.Beyond) {
			l.Beyond = o
			q.table.Refresh(l, e.now.UnixMicro())
		}
		return
	}
	// The rows up to the frontier are known to be in memory.
	it := &lanes.Item{Order: o}
	if err := unseal(row, &it.Delivery); err != nil {
		panic("boltqueue: a row that was just made cannot be read")
	}
	it.Destination = l.Name
	q.keep(l, it, len(row))
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
	homeOf(it.Lane()).bytes -= it.Size
	q.cached -= it.Size
}

// undo makes memory forget what could not be stored. The queue is locked.
func (e *edit) undo() {
	q := e.q
	for _, k := range e.keys {
		q.seen.Remove(k)
	}
	for _, s := range e.stored {
		h := homeOf(s.lane)
		h.pending--
		if s.block != nil {
			h.bytes -= sizeOf(s.row)
			q.cached -= sizeOf(s.row)
		}
	}
	for i := len(e.removed) - 1; i >= 0; i-- {
		rm := e.removed[i]
		if b, ok := rm.item.Home.(*block); ok {
			b.left = rm.left
		}
		q.table.Attach(rm.item)
	}
	for _, l := range e.named {
		homeOf(l).number = 0
	}
	for _, u := range e.unnamed {
		homeOf(u.lane).number = u.number
	}
	q.landed.Broadcast()
}

func (e *edit) rollback() {
	if e.tx != nil {
		protect(e.q.path, e.tx.Rollback)
	}
}

// syncFreelist reports whether the list of free pages is to be written. Without
// it the next Open, unless it follows a Close, finds the free pages by looking
// at all that are used, which takes long where there are many. Writing it takes
// long where many are free.
func (e *edit) syncFreelist() bool {
	free := e.db.Stats().FreePageN
	used := e.used / int64(e.db.Info().PageSize)
	return used >= 8192 && free <= 4096
}
