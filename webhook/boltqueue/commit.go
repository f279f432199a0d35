package boltqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hookferry/analytics/internal/seen"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

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
			if group[0].direct() {
				q.store(group)
			} else {
				q.commit(group)
			}
			due := q.checkpointDue()
			for i, r := range group {
				close(r.done)
				group[i] = nil
			}
			if due {
				q.checkpoint() // tells the log if it fails
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

// failAll has all of a group fail that has not failed already.
func failAll(group []*request, err error) {
	for _, r := range group {
		if r.err == nil {
			r.err = err
		}
		r.stored = 0
	}
}

// ready returns nil if the files can be written, once the database is open again
// if it had to be closed.
func (q *Queue) ready() error {
	// Before the database is opened again, which would make one.
	for _, f := range q.files {
		if now, err := os.Stat(f.path); err != nil || !os.SameFile(now, f.info) {
			return fmt.Errorf("%w: %s", ErrLost, f.path)
		}
	}
	return q.recover()
}

// commit stores what a group of requests wants by an entry of the journal.
func (q *Queue) commit(group []*request) {
	if err := q.ready(); err != nil {
		failAll(group, err)
		return
	}
	size, puts := entryHeader, int64(0)
	for _, r := range group {
		n, p := r.size()
		size += n
		puts += p
	}
	if q.full(puts) && q.tail.removals > 0 || !q.journal.fits(size) || puts > 0 && q.tail.bytes > 2*tailBytes {
		// There may be room afterwards. While the database cannot be written,
		// the journal and memory take no more than they have room for; and
		// nothing while nobody knows which epoch the database names.
		if err := q.checkpoint(); err != nil && (q.doubt != nil || !q.journal.fits(size) || q.tail.bytes > 2*tailBytes) {
			failAll(group, err)
			return
		}
	}
	if err := q.reserve(size); err != nil {
		// Some may fit where all do not, above all settlements, and others after
		// the database was written again.
		if some, others := q.journal.share(group); len(some) > 0 && len(others) > 0 && q.doubt == nil {
			q.commit(some)
			q.commit(others)
			return
		}
		q.config.Logger.Error("boltqueue: commit failed", "file", q.path, "error", err)
		failAll(group, err)
		return
	}
	c := &commit{q: q, now: time.Now(), count: q.count, buf: q.buf[:entryHeader]}
	q.mu.Lock()
	c.plan(group)
	q.mu.Unlock()
	if c.write {
		err := q.journal.append(c.buf)
		if q.buf = c.buf; cap(q.buf) > 1<<20 {
			q.buf = make([]byte, entryHeader)
		}
		if err != nil {
			q.mu.Lock()
			c.undo()
			q.mu.Unlock()
			q.config.Logger.Error("boltqueue: commit failed", "file", q.path, "error", err)
			failAll(group, fmt.Errorf("boltqueue: writing %s: %w", q.journal.path, err))
			return
		}
	}
	q.mu.Lock()
	c.apply()
	q.mu.Unlock()
}

// reserve sees to it that the journal has room for an entry of n bytes. One that
// cannot grow, because the disk is full, is written from its beginning instead: the
// database may have room.
func (q *Queue) reserve(n int) error {
	err := q.journal.reserve(n)
	if err != nil && !q.tail.empty() && time.Since(q.failed) >= time.Second {
		if again := q.checkpoint(); again != nil {
			return again
		}
		err = q.journal.reserve(n)
	}
	if err != nil {
		return fmt.Errorf("boltqueue: writing %s: %w", q.journal.path, err)
	}
	return nil
}

// full reports whether there is no room for so many bytes more.
func (q *Queue) full(n int64) bool {
	return q.config.MaxBytes > 0 && n > 0 && q.used+q.tail.rows+n > q.config.MaxBytes
}

// errAlone ends a transaction that only reads.
var errAlone = errors.New("boltqueue: read only")

// A commit is an entry of the journal, and what it means to memory.
type commit struct {
	q       *Queue
	now     time.Time
	count   counts
	rows    int64 // bytes of rows put so far
	buf     []byte
	write   bool // there is something to write
	keys    []seen.Key
	stored  []stored
	removed []removed
	renewed []end
}

// A stored is a put that was let in.
type stored struct {
	put
	lane *lanes.Lane
}

// A removed is an item whose lease ends.
type removed struct {
	end
	item  *lanes.Item
	place place
	order lanes.Order // of a retry or a dead letter
	left  uint64      // of its block, before
}

// plan decides what becomes of each request, and writes it down. The queue is
// locked.
func (c *commit) plan(group []*request) {
	q := c.q
	c.buf = appendMicros(c.buf, c.now)
	for _, r := range group {
		if len(r.puts) > 0 {
			n := bytesOf(r.puts)
			if q.full(c.rows + n) {
				r.err = webhook.ErrQueueFull
				continue
			}
			c.rows += n
		}
		for i := range r.puts {
			p := &r.puts[i]
			if !q.seen.Add(p.key, c.now) {
				continue
			}
			c.keys = append(c.keys, p.key)
			r.stored++
			l := q.table.Lane(p.dest)
			homeOf(l).pending++
			c.count.number++
			c.count.waiting++
			p.item.Seq = c.count.number
			c.stored = append(c.stored, stored{*p, l})
			c.buf = appendPut(c.buf, p.item.Order, p.row)
			c.write = true
		}
		for _, x := range r.ends {
			it := q.table.Leased(x.lease)
			if it == nil || it.Settling() {
				continue
			}
			if x.verdict == webhook.Renew {
				c.renewed = append(c.renewed, x)
				continue
			}
			q.table.Detach(it, c.now.UnixMicro())
			c.end(x, it)
			c.write = true
		}
	}
}

// end notes that the lease of it, detached, ends.
func (c *commit) end(x end, it *lanes.Item) {
	rm := removed{end: x, item: it, place: placeOf(it)}
	switch x.verdict {
	case webhook.Retry:
		c.count.number++
		rm.order = lanes.Order{At: x.at, Seq: c.count.number}
	case webhook.Bury:
		c.count.number++
		rm.order = lanes.Order{At: x.at, Seq: c.count.number}
		c.count.dead++
		c.count.waiting--
	default:
		c.count.waiting--
	}
	if b, ok := it.Home.(*block); ok {
		rm.left = b.left
		b.left &^= 1 << it.Index
	}
	c.buf = appendEnd(c.buf, x.verdict, rm.place, rm.order, x.row)
	c.removed = append(c.removed, rm)
}

// apply makes memory show what was stored. The queue is locked.
func (c *commit) apply() {
	q, now := c.q, c.now.UnixMicro()
	q.count = c.count
	q.tail.remember(c.now, c.keys)
	for i := range c.stored {
		s := &c.stored[i]
		homeOf(s.lane).pending--
		s.item.Destination = s.lane.Name
		q.tail.add(s.item, len(s.row))
		q.table.Add(s.lane, s.item, now)
	}
	for i := range c.removed {
		rm := &c.removed[i]
		l := rm.item.Lane()
		q.table.Remove(rm.item, now)
		q.release(rm.item)
		q.tail.remove(rm)
		if rm.verdict == webhook.Retry {
			it := &lanes.Item{Order: rm.order}
			if err := unseal(rm.row, &it.Delivery); err != nil {
				panic("boltqueue: a row that was just made cannot be read")
			}
			it.Destination = l.Name
			q.tail.add(it, len(rm.row))
			q.table.Add(l, it, now)
		}
	}
	for _, x := range c.renewed {
		if it := q.table.Leased(x.lease); it != nil && !it.Settling() {
			q.table.Renew(it, x.at, now)
		}
	}
}

// undo makes memory forget what could not be stored. The queue is locked.
func (c *commit) undo() {
	q := c.q
	for _, k := range c.keys {
		q.seen.Remove(k)
	}
	for i := range c.stored {
		homeOf(c.stored[i].lane).pending--
	}
	for i := len(c.removed) - 1; i >= 0; i-- {
		rm := &c.removed[i]
		if b, ok := rm.item.Home.(*block); ok {
			b.left = rm.left
		}
		q.table.Attach(rm.item)
	}
}

// appendMicros appends a time as the payload of an entry begins.
func appendMicros(b []byte, t time.Time) []byte { return binary.AppendVarint(b, t.UnixMicro()) }
