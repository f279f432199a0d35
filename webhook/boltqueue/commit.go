package boltqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
	"github.com/hookferry/analytics/webhook/storekit"
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
			return
		}
		for {
			q.gather(began, last)
			if group = q.inbox.take(group[:0]); len(group) == 0 {
				break
			}
			began, last = time.Now(), len(group)
			if group[0].large {
				// Nothing is put meanwhile: it may be the same.
				r := group[0]
				e := &request{puts: r.puts, large: true}
				r.err = q.await(e)
				r.stored = e.stored
			} else {
				q.committing.Lock()
				q.commit(group)
				q.committing.Unlock()
			}
			q.turn()
			for i, r := range group {
				close(r.done)
				group[i] = nil
			}
		}
	}
}

// await has the writer do what r says.
func (q *Queue) await(r *request) error {
	r.done = make(chan struct{})
	q.errands.send(r)
	<-r.done
	return r.err
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

// lost returns an error if a file is not where it was: what was written would be gone
// with it. One of the journal may be missing, but not be replaced, as it is not for us to
// write over what another has put there. The journal does not change meanwhile.
func (q *Queue) lost(but *journal) error {
	for _, f := range q.files {
		now, err := os.Stat(f.path)
		if but != nil && f.path == but.path && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || !os.SameFile(now, f.info) {
			return fmt.Errorf("%w: %s", ErrLost, f.path)
		}
	}
	return nil
}

// idle returns the file of the journal that holds nothing which counts, or nil. The
// journal does not change meanwhile.
func (q *Queue) idle() *journal {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.sealed != nil {
		return nil
	}
	return q.other()
}

// commit stores what a group of requests wants by an entry of the journal.
func (q *Queue) commit(group []*request) {
	if err := q.lost(q.idle()); err != nil {
		failAll(group, err)
		return
	}
	if puts, others := q.apart(group); len(puts) > 0 && len(others) > 0 {
		q.commit(others)
		q.commit(puts)
		return
	}
	size, puts := entryHeader, int64(0)
	for _, r := range group {
		n, p := r.size()
		size += n
		puts += p
	}
	if err := q.room(size, puts); err != nil {
		// Some may fit where all do not, above all settlements, and others after
		// the database was written again.
		if some, others := q.journal.share(group); len(some) > 0 && len(others) > 0 && q.usable() {
			q.commit(some)
			q.commit(others)
			return
		}
		q.complain(err)
		failAll(group, err)
		return
	}
	c := &commit{q: q, now: time.Now(), buf: slices.Grow(q.buf[:entryHeader], size)}
	q.mu.Lock()
	c.plan(group)
	q.mu.Unlock()
	if c.write {
		err := q.journal.append(c.buf)
		if q.buf = c.buf; cap(q.buf) > 1<<20 && len(q.buf) < cap(q.buf)/4 {
			q.buf = make([]byte, entryHeader)
		}
		if err != nil {
			q.mu.Lock()
			c.undo()
			q.mu.Unlock()
			q.complain(err)
			failAll(group, fmt.Errorf("boltqueue: writing %s: %w", q.journal.path, err))
			return
		}
	}
	q.mu.Lock()
	c.apply()
	q.written = q.journal.off
	q.mu.Unlock()
}

// apart shares a group out into puts and others, if the puts have to wait for the
// database, which the others need not, nor fail with it.
func (q *Queue) apart(group []*request) (puts, others []*request) {
	q.mu.Lock()
	crowded := q.crowded()
	q.mu.Unlock()
	if !crowded {
		return nil, group
	}
	for _, r := range group {
		if len(r.puts) > 0 {
			puts = append(puts, r)
		} else {
			others = append(others, r)
		}
	}
	return puts, others
}

// errAlone ends a transaction that only reads.
var errAlone = errors.New("boltqueue: read only")

// A commit is an entry of the journal, and what it means to memory.
type commit struct {
	q       *Queue
	now     time.Time
	changed delta
	rows    int64 // bytes of rows put so far
	buf     []byte
	write   bool // there is something to write
	keys    []storekit.Key
	stored  []stored
	removed []removed
}

// A stored is a put that was let in.
type stored struct {
	*put
	lane *lanes.Lane
}

// A removed is an item whose lease ends.
type removed struct {
	end
	item  *lanes.Item
	place place
	order lanes.Order // of a retry or a dead letter
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
			if p.added = q.seen.Add(p.key, c.now); !p.added {
				continue
			}
			c.keys = append(c.keys, p.key)
			r.stored++
			l := q.table.Lane(p.dest)
			homeOf(l).pending++
			c.changed.waiting++
			p.item.Seq = q.number()
			c.stored = append(c.stored, stored{p, l})
			c.buf = appendPut(c.buf, p.item.Order, p.row)
			c.write = true
		}
		for _, x := range r.ends {
			it := q.table.Leased(x.lease)
			if it == nil || it.Settling() {
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
		rm.order = lanes.Order{At: x.at, Seq: c.q.number()}
	case webhook.Bury:
		rm.order = lanes.Order{At: x.at, Seq: c.q.number()}
		c.changed.dead++
		c.changed.waiting--
	default:
		c.changed.waiting--
	}
	c.buf = appendEnd(c.buf, x.verdict, rm.place, rm.order, x.row)
	c.removed = append(c.removed, rm)
}

// apply makes memory show what was stored. The queue is locked.
func (c *commit) apply() {
	q, now := c.q, c.now.UnixMicro()
	q.count.add(c.changed)
	q.tail.changed.waiting += c.changed.waiting
	q.tail.changed.dead += c.changed.dead
	q.tail.remember(c.now, c.keys)
	for i := range c.stored {
		s := &c.stored[i]
		homeOf(s.lane).pending--
		s.item.Destination = s.lane.Name
		q.tail.add(s.item, s.row)
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
			if err := unsealItem(rm.row, it); err != nil {
				panic("boltqueue: a row that was just made cannot be read")
			}
			it.Destination = l.Name
			q.tail.add(it, rm.row)
			q.table.Add(l, it, now)
		}
	}
	if q.awaited {
		q.landed.Broadcast()
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
		q.table.Attach(c.removed[i].item)
	}
}

// number returns a number that nothing has had. The queue is locked.
func (q *Queue) number() uint64 {
	q.count.number++
	return q.count.number
}

// appendMicros appends a time as the payload of an entry begins.
func appendMicros(b []byte, t time.Time) []byte { return binary.AppendVarint(b, t.UnixMicro()) }
