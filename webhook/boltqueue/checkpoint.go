package boltqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/internal/seen"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

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
	err = growError(protect(q.path, func() error { return q.commit1(e.tx) }))
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

	segment segment // that moved go to
	changes []change

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
	lane     *lanes.Lane
	beyond   lanes.Order
	arrived  int
	extended bool // it had a span of the segment:
	span     span
	old      []*lanes.Item // that were in the table
	rows     [][]byte      // of its part of edit.moved; nil is to be made
}

type unnamed struct {
	lane   *lanes.Lane
	number uint32
}

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
	q.segment = e.segment
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
		h.displace(e.segment.number)
		if ch.extended {
			h.place(ch.span)
		}
		h.away -= len(ch.rows)
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
