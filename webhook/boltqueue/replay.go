package boltqueue

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A player gathers what the entries of an epoch come to.
type player struct {
	older   *player // of the epoch before, if the database has neither
	number  uint64  // the latest that was given
	changed delta
	fresh   map[uint64]freshRow // what was put or retried, and was there at the end
	settled map[uint64]bool     // numbers: was in the epoch before, and may be in a block since
	bits    map[uint64]uint64   // what was settled, by block
	gone    map[string]bool     // keys of waiting
	dead    []deadRow
	keys    []seenKeys
	next    *epoch
	lenient bool // some entries are missing
}

type freshRow struct {
	at  int64
	row []byte
}

func newPlayer() *player {
	return &player{
		fresh: make(map[uint64]freshRow), settled: make(map[uint64]bool),
		bits: make(map[uint64]uint64), gone: make(map[string]bool),
	}
}

func (p *player) play(micros int64, o op) error {
	if p.next != nil && !p.lenient {
		return fmt.Errorf("%w: it comes after the last", errRow)
	}
	if o.code != opPut && o.code != opNext {
		if err := p.take(o.place); err != nil {
			return err
		}
	}
	p.number = max(p.number, o.order.Seq)
	switch o.code {
	case opPut:
		var d webhook.Delivery
		if err := unseal(o.row, &d); err != nil {
			return err
		}
		p.changed.waiting++
		at := time.UnixMicro(micros)
		if n := len(p.keys); n == 0 || !p.keys[n-1].at.Equal(at) {
			p.keys = append(p.keys, seenKeys{at: at})
		}
		last := &p.keys[len(p.keys)-1]
		last.keys = append(last.keys, storekit.KeyOf(d.Destination, d.ID))
		p.fresh[o.order.Seq] = freshRow{o.order.At, o.row}
	case opRetry:
		p.fresh[o.order.Seq] = freshRow{o.order.At, o.row}
	case opBury:
		p.changed.waiting--
		p.changed.dead++
		p.dead = append(p.dead, deadRow{o.order, o.row})
	case opDone:
		p.changed.waiting--
	case opNext:
		p.next = &o.next
	}
	return nil
}

// take takes a row away from where it was.
func (p *player) take(at place) error {
	number := at.order.Seq
	switch at.kind {
	case inJournal:
		if _, ok := p.fresh[number]; ok {
			delete(p.fresh, number)
			return nil
		}
		if p.older != nil {
			if _, ok := p.older.fresh[number]; !ok {
				return notThere(number)
			}
		}
		p.settled[number] = true
	case inBlock:
		p.bits[at.block] |= 1 << at.index
	default:
		p.gone[string(waitingKey(nil, at.segment, at.lane, at.order))] = true
	}
	return nil
}

func notThere(number uint64) error {
	return fmt.Errorf("%w: delivery %d was not there", errRow, number)
}

func noBlock(number uint64) error {
	return fmt.Errorf("%w: block %d was not there", errRow, number)
}

// takesFromBlock reports whether an entry of a block was settled.
func (p *player) takesFromBlock(block uint64, i int, number uint64) bool {
	return p.bits[block]&(1<<i) != 0 || p.settled[number]
}

// A replay puts into memory what the journal says, beside what the database has. It
// writes nothing, and so takes no room.
type replay struct {
	q       *Queue
	players []*player
	tails   []*tail // of the players
	inBlock map[uint64]bool
	homes   map[uint32]*home
}

// newReplay makes the tails of a chain.
func (q *Queue) newReplay(c chain) *replay {
	r := &replay{q: q, players: c.players, inBlock: make(map[uint64]bool), homes: make(map[uint32]*home)}
	for range c.players {
		r.tails = append(r.tails, &tail{})
	}
	if n := len(r.tails); n > 0 {
		q.tail = r.tails[n-1]
	}
	if len(r.tails) == 2 {
		q.sealed = r.tails[0]
	}
	for i, p := range c.players {
		t := r.tails[i]
		t.keys, t.skip = p.keys, p.gone
		for _, d := range p.dead {
			t.bury(d.order, bytes.Clone(d.row)) // not all of the file
		}
		t.changed = p.changed
		q.count.add(t.changed)
		q.count.number = max(q.count.number, p.number)
	}
	return r
}

// settle takes out of a block what was settled, and notes in the tails what each epoch
// has.
func (r *replay) settle(b *block, numbers []uint64) {
	for i, p := range r.players {
		was := b.left
		for j, number := range numbers {
			if p.takesFromBlock(b.number, j, number) {
				b.left &^= 1 << j
			}
		}
		if _, ok := p.bits[b.number]; ok || b.left != was {
			r.inBlock[b.number] = true
			r.tails[i].settle(b)
		}
		for _, number := range numbers {
			delete(p.settled, number) // was found
		}
	}
}

// finish adds what is in the journal alone, once the table has the rest.
func (r *replay) finish(now int64) error {
	q := r.q
	for i, p := range r.players {
		t := r.tails[i]
		for block := range p.bits {
			if !r.inBlock[block] {
				return noBlock(block)
			}
		}
		for key := range p.gone {
			g := gone{}
			g.segment, g.lane, g.order = readWaitingKey([]byte(key))
			if g.home = r.homes[g.lane]; g.home == nil {
				return fmt.Errorf("%w: lane %d has no name", errRow, g.lane)
			}
			t.leave(g)
		}
		var later map[uint64]bool
		if i+1 < len(r.players) {
			later = r.players[i+1].settled
		}
		for _, number := range slices.Sorted(maps.Keys(p.fresh)) {
			f := p.fresh[number]
			it := &lanes.Item{Order: lanes.Order{At: f.at, Seq: number}}
			row := bytes.Clone(f.row) // not all of the file
			if err := unsealItem(row, it); err != nil {
				return err
			}
			t.add(it, row)
			if !later[number] { // or it is gone, and a row of the database for a while
				l := q.table.Lane(it.Destination)
				it.Destination = l.Name
				q.table.Add(l, it, now)
			}
			delete(later, number)
		}
	}
	for _, p := range r.players {
		for number := range p.settled {
			return notThere(number)
		}
	}
	return nil
}
