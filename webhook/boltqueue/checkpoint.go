package boltqueue

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/internal/seen"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// A block is where deliveries are that stay in memory: a row of the bucket
// blocks. Only the committer looks into it.
type block struct {
	number uint64
	left   uint64 // the deliveries that are not settled, as bits
	marked bool   // it has a row in the bucket left
}

// A home is what the store knows of a lane.
type home struct {
	number   uint32      // in the file, 0 if it has none
	frontier lanes.Order // rows of waiting up to here are in memory
	loaded   int         // how many of these are
	arrived  int         // the latest transaction that put rows there
	bytes    int64       // of its items that count against CacheBytes
	pending  int         // puts of the commit going on
	retiring bool        // in Queue.retired
	moving   bool        // some of its items are being moved to waiting
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

// checkpointDue reports whether there is enough for the database to be written.
// One that fails is left alone for a while; the journal has room meanwhile.
func (q *Queue) checkpointDue() bool {
	return (q.tail.full() || q.journal.off > journalSize) && time.Since(q.failed) >= time.Second
}

// checkpoint has the database hold everything.
func (q *Queue) checkpoint() error {
	if err := q.ready(); err != nil {
		return err
	}
	if q.tail.empty() {
		return nil
	}
	r := &request{work: func(*edit, *request) error { return nil }}
	q.write([]*request{r})
	return r.err
}

// store stores what a group of direct requests wants in the database.
func (q *Queue) store(group []*request) {
	if err := q.ready(); err != nil {
		failAll(group, err)
		return
	}
	if group[0].alone {
		if err := q.checkpoint(); err != nil {
			failAll(group, err)
			return
		}
	}
	q.write(group)
}

// write has the database hold everything, and what a group of direct requests
// wants, by one transaction.
func (q *Queue) write(group []*request) {
	db := q.file
	e := &edit{q: q, db: db, now: time.Now(), count: q.count, epoch: q.journal.epoch.next()}
	err := protect(q.path, func() error { return e.build(group) })
	if err == nil {
		if err = q.journal.prepare(e.epoch); err != nil {
			err = fmt.Errorf("boltqueue: writing %s: %w", q.journal.path, err)
		}
	}
	if err != nil {
		e.rollback()
		q.mu.Lock()
		e.undo()
		q.mu.Unlock()
		if !errors.Is(err, errAlone) {
			q.failed = time.Now()
			failAll(group, err)
			q.config.Logger.Error("boltqueue: commit failed", "file", q.path, "error", err)
		}
		return
	}
	id := e.tx.ID()
	db.NoFreelistSync = !e.syncFreelist()
	err = protect(q.path, func() error { return q.commit1(e.tx) })
	if err == nil {
		q.mu.Lock()
		e.apply(id)
		q.mu.Unlock()
		return
	}
	e.rollback()
	q.failed = time.Now()
	q.config.Logger.Error("boltqueue: commit failed", "file", q.path, "error", err)
	err = fmt.Errorf("boltqueue: writing %s: %w", q.path, err)
	if got, ok := lastTx(db); ok && got == id-1 {
		// Nothing of it is to be seen, and bbolt is as it was before.
		q.mu.Lock()
		e.undo()
		q.mu.Unlock()
		failAll(group, err)
		return
	}
	// The new state may be in the file while bbolt believes in the old one, or
	// something panicked halfway. Only reading the file afresh tells, before
	// anything else is written.
	q.mu.Lock()
	q.file, q.failure = nil, err
	q.landed.Broadcast()
	q.mu.Unlock()
	q.doubt = e
	db.Close()
	if again := q.ready(); again != nil || !e.landed {
		failAll(group, err)
	}
}

// An edit is one transaction: all that is in the journal, and what direct
// requests want.
type edit struct {
	q      *Queue
	db     *bolt.DB
	tx     *bolt.Tx
	now    time.Time
	epoch  epoch // of the journal from here on
	count  counts
	landed bool
	used   int64

	keys    []seen.Key
	stored  []stored      // of direct requests
	kept    []kept        // go into blocks
	moved   []*lanes.Item // go to waiting
	lanes   []changed     // that some of moved are in
	named   []*lanes.Lane // were given a number
	unnamed []unnamed     // had theirs taken
	blocks  []*block      // that settlements have changed
}

// A candidate is an item whose row is not in the database yet.
type candidate struct {
	item *lanes.Item
	row  []byte // nil: the item was in the table before
}

// A kept is an item that stays in memory.
type kept struct {
	candidate
	lane  *lanes.Lane
	block *block
	index int
}

// A changed is a lane some items of which go to waiting, as it was before.
type changed struct {
	lane    *lanes.Lane
	beyond  lanes.Order
	arrived int
	old     []*lanes.Item // that were in the table
	rows    [][]byte      // of its part of edit.moved; nil is to be made
}

type unnamed struct {
	lane   *lanes.Lane
	number uint32
}

type row struct{ key, value []byte }

// build writes the tail, and what the group wants, into a transaction.
func (e *edit) build(group []*request) (err error) {
	if e.tx, err = e.db.Begin(true); err != nil {
		return err
	}
	q := e.q
	e.used = used(e.db, e.tx)
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

// used returns how much of the file is in use.
func used(db *bolt.DB, tx *bolt.Tx) int64 {
	stats := db.Stats()
	return tx.Size() - int64(stats.FreePageN+stats.PendingPageN)*int64(db.Info().PageSize)
}

// full reports whether the file has no room for so many bytes more.
func (e *edit) full(n int64) bool {
	return e.q.config.MaxBytes > 0 && e.used+e.q.tail.rows+n > e.q.config.MaxBytes
}

// plan decides where everything goes. The queue is locked.
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
	byLane := make(map[*lanes.Lane][]candidate)
	for _, it := range q.tail.fresh {
		if it != nil {
			byLane[it.Lane()] = append(byLane[it.Lane()], candidate{item: it})
		}
	}
	for _, r := range group {
		if r.err != nil {
			continue
		}
		if len(r.puts) > 0 && r.work == nil {
			n := bytesOf(r.puts)
			if e.full(n) {
				r.err = webhook.ErrQueueFull
				continue
			}
			e.used += n
		}
		for i := range r.puts {
			p := &r.puts[i]
			if !p.known {
				if !q.seen.Add(p.key, e.now) {
					continue
				}
				e.keys = append(e.keys, p.key)
			}
			if r.work == nil {
				r.stored++
			}
			l := q.table.Lane(p.dest)
			homeOf(l).pending++
			e.count.waiting++
			p.item.Seq = e.number()
			p.item.Destination, p.item.Size = l.Name, sizeOf(p.row)
			e.stored = append(e.stored, stored{*p, l})
			byLane[l] = append(byLane[l], candidate{p.item, p.row})
		}
	}
	cached := q.cached
	for l, cs := range byLane {
		e.share(l, cs, &cached)
	}
	e.blocks = slices.Collect(maps.Keys(q.tail.blocks))
}

// share decides which deliveries of a lane stay in memory, and go into blocks:
// the first, as long as they are due and have room, and those that somebody
// holds. The others go to waiting, and out of memory.
func (e *edit) share(l *lanes.Lane, cs []candidate, cached *int64) {
	q, h := e.q, homeOf(l)
	slices.SortFunc(cs, func(a, b candidate) int { return compareOrders(a.item.Order, b.item.Order) })
	var (
		ch   = changed{lane: l, beyond: l.Beyond, arrived: h.arrived}
		mine = h.bytes
		cut  bool
		now  = e.now.UnixMicro()
	)
	keep := func(c candidate) {
		mine += c.item.Size
		*cached += c.item.Size
		e.kept = append(e.kept, kept{candidate: c, lane: l})
	}
	for _, c := range cs {
		it := c.item
		isNew := c.row != nil
		if !isNew && !it.Free() || !h.frontier.Before(it.Order) {
			keep(c)
			continue
		}
		cut = cut || !it.Order.Before(ch.beyond) || it.At > now || !q.fits(mine, *cached, it.Size)
		if !cut {
			keep(c)
			continue
		}
		if len(ch.rows) == 0 {
			l.Beyond = minOrder(l.Beyond, it.Order)
		}
		if !isNew {
			ch.old = append(ch.old, it)
		}
		e.moved = append(e.moved, it)
		ch.rows = append(ch.rows, c.row)
	}
	if len(ch.rows) == 0 {
		return
	}
	e.name(l)
	h.arrived, h.moving = e.tx.ID(), true
	e.lanes = append(e.lanes, ch)
	if len(ch.old) > 0 {
		out := make(map[*lanes.Item]bool, len(ch.old))
		for _, it := range ch.old {
			out[it] = true
		}
		q.table.Expel(l, func(it *lanes.Item) bool { return out[it] }, now)
	} else {
		q.table.Refresh(l, now)
	}
}

func compareOrders(a, b lanes.Order) int {
	switch {
	case a.Before(b):
		return -1
	case b.Before(a):
		return 1
	}
	return 0
}

func minOrder(a, b lanes.Order) lanes.Order {
	if b.Before(a) {
		return b
	}
	return a
}

// fits reports whether a delivery of n bytes stays in memory, where its lane has
// so many bytes and all have cached. A lane may fill a quarter of what the others
// leave, so that those that hang do not take the memory from those that flow; a
// few deliveries it may always have.
func (q *Queue) fits(lane, cached, n int64) bool {
	free := q.config.CacheBytes - cached
	return lane+n <= free/4 || lane == 0 && cached+n <= 2*q.config.CacheBytes
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

// write writes what was planned.
func (e *edit) write() error {
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
	if err := e.writeWaiting(); err != nil {
		return err
	}
	if err := e.writeBlocks(); err != nil {
		return err
	}
	if len(q.tail.dead) > 0 {
		b := e.bucket(bucketDead)
		b.FillPercent = 0.9 // mostly at the end
		for _, d := range q.tail.dead {
			if err := b.Put(orderKey(nil, d.order), d.row); err != nil {
				return err
			}
		}
	}
	if err := e.remember(); err != nil {
		return err
	}
	meta := e.bucket(bucketMeta)
	if err := meta.Put(rowJournal, e.epoch[:]); err != nil {
		return err
	}
	return meta.Put(rowState, e.count.row())
}

// writeWaiting deletes and puts rows of waiting, in the order of the keys: so a
// page is visited once.
func (e *edit) writeWaiting() error {
	b := e.bucket(bucketWaiting)
	if gone := e.q.tail.gone; len(gone) > 0 {
		keys := make([][]byte, len(gone))
		for i, g := range gone {
			keys[i] = waitingKey(nil, g.number, g.order)
		}
		slices.SortFunc(keys, bytes.Compare)
		for _, k := range keys {
			if err := b.Delete(k); err != nil {
				return err
			}
		}
	}
	if len(e.moved) == 0 {
		return nil
	}
	rows := make([]row, 0, len(e.moved))
	n := 0
	for _, ch := range e.lanes {
		number := homeOf(ch.lane).number
		for _, v := range ch.rows {
			it := e.moved[n]
			n++
			if v == nil {
				var err error
				if v, err = seal(&it.Delivery, len(it.Body)); err != nil {
					return err
				}
			}
			rows = append(rows, row{waitingKey(nil, number, it.Order), v})
		}
	}
	slices.SortFunc(rows, func(x, y row) int { return bytes.Compare(x.key, y.key) })
	b.FillPercent = 0.9 // mostly at the end of a lane
	for _, r := range rows {
		if err := b.Put(r.key, r.value); err != nil {
			return err
		}
	}
	return nil
}

// writeBlocks puts blocks of what stays in memory, in the order it came, and
// what is left of older ones.
func (e *edit) writeBlocks() error {
	blocks, left := e.bucket(bucketBlocks), e.bucket(bucketLeft)
	slices.SortFunc(e.blocks, func(a, b *block) int { return compareNumbers(a.number, b.number) })
	for _, b := range e.blocks {
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
	slices.SortFunc(e.kept, func(a, b kept) int { return compareNumbers(a.item.Seq, b.item.Seq) })
	w := blockWriter{bucket: blocks}
	for i := range e.kept {
		k := &e.kept[i]
		v := k.row
		if v == nil {
			var err error
			if v, err = seal(&k.item.Delivery, len(k.item.Body)); err != nil {
				return err
			}
		}
		var err error
		if k.block, k.index, err = w.add(k.item.Seq, v); err != nil {
			return err
		}
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

// remember writes the keys of what was put, and forgets some of those that the
// window has forgotten.
func (e *edit) remember() error {
	q := e.q
	all := q.tail.keys
	if len(e.keys) > 0 {
		all = append(slices.Clip(all), seenKeys{e.now, e.keys})
	}
	if len(all) == 0 {
		return nil
	}
	b := e.bucket(bucketSeen)
	b.FillPercent = 0.9
	for _, s := range all {
		number := e.number()
		q.turned(number)
		if err := b.Put(numberKey(number), seenRow(s.at.UnixMicro(), s.keys)); err != nil {
			return err
		}
	}
	c := b.Cursor()
	for range 64 * len(all) {
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

func (e *edit) bucket(name []byte) *bolt.Bucket { return e.tx.Bucket(name) }

// apply makes memory show what transaction id has stored. The queue is locked.
func (e *edit) apply(id int) {
	q, now := e.q, e.now.UnixMicro()
	q.applied, q.count, q.used = id, e.count, e.used
	if q.file != nil {
		q.used = e.usedNow()
	}
	for i := range e.kept {
		k := &e.kept[i]
		k.item.Home, k.item.Index = k.block, k.index
		homeOf(k.lane).bytes += k.item.Size
		q.cached += k.item.Size
		if k.row != nil {
			q.table.Add(k.lane, k.item, now)
		}
	}
	for _, s := range e.stored {
		homeOf(s.lane).pending--
	}
	for _, ch := range e.lanes {
		homeOf(ch.lane).moving = false
	}
	for _, b := range e.blocks {
		b.marked = b.left != 0
	}
	for _, g := range q.tail.gone {
		if g.home.loaded == 0 {
			g.home.frontier = firstOrder
		}
	}
	q.tail.reset()
	q.journal.rewind(e.epoch)
	e.landed = true
	q.landed.Broadcast()
}

// usedNow returns how much of the file is in use after the transaction.
func (e *edit) usedNow() (n int64) {
	n = e.used
	e.db.View(func(tx *bolt.Tx) error {
		n = used(e.db, tx)
		return nil
	})
	return n
}

// undo makes memory forget what could not be stored. The queue is locked.
func (e *edit) undo() {
	q, now := e.q, e.now.UnixMicro()
	for _, k := range e.keys {
		q.seen.Remove(k)
	}
	for _, s := range e.stored {
		homeOf(s.lane).pending--
	}
	for _, ch := range e.lanes {
		h := homeOf(ch.lane)
		h.arrived, h.moving = ch.arrived, false
		ch.lane.Beyond = ch.beyond
		q.table.Refresh(ch.lane, now)
		for _, it := range ch.old {
			q.table.Add(ch.lane, it, now)
		}
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
	return used >= 8192 && free <= 1<<17
}
