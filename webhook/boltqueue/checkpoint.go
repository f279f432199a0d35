package boltqueue

import (
	"encoding/binary"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/webhook/internal/lanes"
	"github.com/hookferry/analytics/webhook/storekit"
)

// An edit is one transaction: what was sealed, and what requests want.
type edit struct {
	q       *Queue
	db      *bolt.DB
	tx      *bolt.Tx
	now     time.Time
	tail    *tail // what was sealed, if sealed is set; or an empty one
	sealed  bool
	epoch   epoch // whose entries follow
	stamp   []byte
	changed delta  // by the requests
	count   counts // then
	rows    uint64 // the number of the first row of seen
	landed  bool
	used    int64
	pending int64 // what is to be stored by others

	segment segment // that moved go to
	changes []change
	aside   []*home // had a row set aside, once for each

	keys    []storekit.Key
	stored  []stored                    // of direct requests
	kept    []kept                      // go into blocks
	cached  int64                       // of these
	byLane  map[*lanes.Lane][]candidate // of the tail; those of none are gone
	lanes   []changed                   // some of which goes to waiting
	named   []*lanes.Lane               // were given a number
	unnamed []unnamed                   // had theirs taken
}

// A candidate is an item whose row is not in the database yet.
type candidate struct {
	item   *lanes.Item
	row    []byte
	direct bool // a request puts it; otherwise the table has it
}

// A kept is an item that stays in memory.
type kept struct {
	candidate
	lane  *lanes.Lane
	block *block
	index int
	body  []byte // by itself: the array of the row has others
}

// A changed is a lane some items of which go to waiting, as it was before.
type changed struct {
	lane     *lanes.Lane
	beyond   lanes.Order
	arrived  int
	extended bool // it had a span of the segment:
	span     span
	moved    []candidate // in their order
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
	e.gather()
	q.mu.Lock()
	e.pending = q.pending()
	q.mu.Unlock()
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
	e.planLanes()
	q.mu.Lock()
	e.total()
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
	return e.q.config.MaxBytes > 0 && e.used+e.pending+n > e.q.config.MaxBytes
}

// write writes what was planned.
func (e *edit) write() error {
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
	if len(e.tail.dead) > 0 {
		b := e.bucket(bucketDead)
		b.FillPercent = 0.9 // mostly at the end
		for _, d := range e.tail.dead {
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
	if err := meta.Put(rowSession, e.stamp); err != nil {
		return err
	}
	return meta.Put(rowState, e.count.row())
}

// seen returns the keys of what was put.
func (e *edit) seen() []seenKeys {
	if len(e.keys) == 0 {
		return e.tail.keys
	}
	return append(slices.Clip(e.tail.keys), seenKeys{e.now, e.keys})
}

// remember writes the keys of what was put, and forgets some of those that the
// window has forgotten.
func (e *edit) remember() error {
	all := e.seen()
	if len(all) == 0 {
		return nil
	}
	b := e.bucket(bucketSeen)
	b.FillPercent = 0.9
	for i, s := range all {
		if err := b.Put(numberKey(e.rows+uint64(i)), seenRow(s.at.UnixMicro(), s.keys)); err != nil {
			return err
		}
	}
	c := b.Cursor()
	for range 64 * len(all) {
		k, _ := c.First()
		if len(k) != 8 || binary.BigEndian.Uint64(k) >= e.q.rows.older {
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
	for ; q.turns != q.seen.Turns(); q.turns++ {
		q.rows.older, q.rows.newer = q.rows.newer, number
	}
}

func (e *edit) bucket(name []byte) *bolt.Bucket { return e.tx.Bucket(name) }

// land makes memory show what transaction id has stored.
func (e *edit) land(id int) {
	q := e.q
	used := e.usedNow()
	q.mu.Lock()
	q.used = used
	e.apply(id)
	q.mu.Unlock()
}

// apply is land for what the queue shows. It is locked.
func (e *edit) apply(id int) {
	q, now := e.q, e.now.UnixMicro()
	q.applied, q.base, q.stamp, q.begun = id, e.count, e.stamp, true
	q.count.add(e.changed)
	for i := range e.kept {
		k := &e.kept[i]
		if !k.direct && k.item.Gone() {
			// It was settled since it was sealed.
			k.block.left &^= 1 << k.index
			q.tail.settle(k.block)
			continue
		}
		k.item.Home, k.item.Index, k.item.Body = k.block, k.index, k.body
		homeOf(k.lane).bytes += k.item.Size
		q.cached += k.item.Size
		if k.direct {
			q.table.Add(k.lane, k.item, now)
		}
	}
	for _, s := range e.stored {
		homeOf(s.lane).pending--
	}
	for _, u := range e.unnamed {
		homeOf(u.lane).pending--
	}
	for _, ch := range e.lanes {
		h := homeOf(ch.lane)
		h.moving = false
		h.fold(e.segment.number)
	}
	for b, left := range e.tail.blocks {
		b.marked = left != 0
	}
	for _, h := range e.aside {
		h.away--
	}
	for _, g := range e.tail.gone {
		g.home.gone--
		if g.home.loaded == 0 {
			g.home.frontier = firstOrder
		}
	}
	if len(e.tail.gone) > 0 {
		for _, g := range q.tail.gone { // there still
			if h := g.home; h.loaded == 0 && h.frontier.Before(g.order) {
				h.frontier = g.order
			}
		}
	}
	if e.sealed {
		q.sealed, q.unused = nil, e.tail.reset()
	}
	q.segment = e.segment
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
		h.away -= len(ch.moved)
		ch.lane.Beyond = ch.beyond
		q.table.Refresh(ch.lane, now)
		for _, c := range ch.moved {
			if !c.direct {
				q.table.Add(ch.lane, c.item, now)
			}
		}
	}
	for _, l := range e.named {
		homeOf(l).number = 0
	}
	for _, u := range e.unnamed {
		homeOf(u.lane).number = u.number
		homeOf(u.lane).pending--
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
