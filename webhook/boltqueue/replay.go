package boltqueue

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/internal/seen"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// replay has the database hold what the journal of its epoch says, after an end
// without a Close, and returns the epoch.
func replay(tx *bolt.Tx, path string, cacheBytes int64, now time.Time) (epoch, error) {
	p := newPlayer()
	if err := p.count.read(tx.Bucket(bucketMeta).Get(rowState)); err != nil {
		return epoch{}, err
	}
	e, n, err := p.read(tx, path)
	if err != nil || n == 0 {
		return e, err
	}
	return e, p.write(tx, cacheBytes, now)
}

// A player gathers what the entries of a journal come to.
type player struct {
	count   counts
	fresh   map[uint64]freshRow // what was put or retried, and is still there
	bits    map[uint64]uint64   // what was settled, by block
	gone    map[string]bool     // keys of waiting
	dead    []deadRow
	keys    []seenKeys
	lenient bool // some entries are missing
}

type freshRow struct {
	at  int64
	row []byte
}

func newPlayer() *player {
	return &player{fresh: make(map[uint64]freshRow), bits: make(map[uint64]uint64), gone: make(map[string]bool)}
}

// read plays the journal of the database, and returns how many entries it has.
func (p *player) read(tx *bolt.Tx, path string) (e epoch, n int, err error) {
	e, closed, err := readEpoch(tx.Bucket(bucketMeta).Get(rowJournal))
	if err != nil {
		return e, 0, err
	}
	if closed {
		// What may be there is what the Close could not remove.
		b := make([]byte, journalStep)
		if f, err := os.Open(path); err == nil {
			k, _ := io.ReadFull(f, b)
			f.Close()
			return e, 0, e.precedes(path, b[:k])
		}
		return e, 0, nil
	}
	err = readJournal(path, e, func(b []byte) error {
		n++
		return ops(b, p.play)
	})
	return e, n, err
}

func (p *player) play(micros int64, o op) error {
	if o.code != opPut {
		if err := p.take(o.place); err != nil {
			return err
		}
	}
	p.count.number = max(p.count.number, o.order.Seq)
	switch o.code {
	case opPut:
		var d webhook.Delivery
		if err := unseal(o.row, &d); err != nil {
			return err
		}
		p.count.waiting++
		at := time.UnixMicro(micros)
		if n := len(p.keys); n == 0 || !p.keys[n-1].at.Equal(at) {
			p.keys = append(p.keys, seenKeys{at: at})
		}
		last := &p.keys[len(p.keys)-1]
		last.keys = append(last.keys, seen.KeyOf(d.Destination, d.ID))
		p.fresh[o.order.Seq] = freshRow{o.order.At, o.row}
	case opRetry:
		p.fresh[o.order.Seq] = freshRow{o.order.At, o.row}
	case opBury:
		p.count.waiting--
		p.count.dead++
		p.dead = append(p.dead, deadRow{o.order, o.row})
	case opDone:
		p.count.waiting--
	}
	return nil
}

// take takes a row away from where it was.
func (p *player) take(at place) error {
	switch at.kind {
	case inJournal:
		if _, ok := p.fresh[at.order.Seq]; !ok && !p.lenient {
			return fmt.Errorf("%w: delivery %d was not there", errRow, at.order.Seq)
		}
		delete(p.fresh, at.order.Seq)
	case inBlock:
		p.bits[at.block] |= 1 << at.index
	default:
		p.gone[string(waitingKey(nil, at.segment, at.lane, at.order))] = true
	}
	return nil
}

// write writes it all to the database.
func (p *player) write(tx *bolt.Tx, cacheBytes int64, now time.Time) error {
	keys := make([][]byte, 0, len(p.gone))
	for k := range p.gone {
		keys = append(keys, []byte(k))
	}
	changes, err := deleteWaiting(tx, keys, nil)
	if err != nil {
		return err
	}
	for _, d := range p.dead {
		if err := tx.Bucket(bucketDead).Put(orderKey(nil, d.order), d.row); err != nil {
			return err
		}
	}
	if err := p.settleBlocks(tx); err != nil {
		return err
	}
	if changes, err = p.putFresh(tx, cacheBytes, now, changes); err != nil {
		return err
	}
	if err := writeDirectories(tx, changes); err != nil {
		return err
	}
	seenRows := tx.Bucket(bucketSeen)
	for _, s := range p.keys {
		p.count.number++
		if err := seenRows.Put(numberKey(p.count.number), seenRow(s.at.UnixMicro(), s.keys)); err != nil {
			return err
		}
	}
	return tx.Bucket(bucketMeta).Put(rowState, p.count.row())
}

func (p *player) settleBlocks(tx *bolt.Tx) error {
	blocks, left := tx.Bucket(bucketBlocks), tx.Bucket(bucketLeft)
	for number, bits := range p.bits {
		key := numberKey(number)
		v := blocks.Get(key)
		if v == nil {
			return fmt.Errorf("%w: block %d was not there", errRow, number)
		}
		all := uint64(0)
		if err := entries(v, func(i int, _ uint64, _ []byte) error {
			all |= 1 << i
			return nil
		}); err != nil {
			return err
		}
		if m := left.Get(key); len(m) == 8 {
			all &= binary.BigEndian.Uint64(m)
		}
		var err error
		if all &^= bits; all != 0 {
			err = left.Put(key, binary.BigEndian.AppendUint64(nil, all))
		} else if err = left.Delete(key); err == nil {
			err = blocks.Delete(key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// putFresh puts what is due into blocks, as long as there is plenty of memory
// for it, and all else into a segment of waiting. It appends what that changes.
func (p *player) putFresh(tx *bolt.Tx, cacheBytes int64, now time.Time, changes []change) ([]change, error) {
	names := tx.Bucket(bucketLanes)
	w := blockWriter{bucket: tx.Bucket(bucketBlocks)}
	held, err := inBlocks(tx)
	if err != nil {
		return nil, err
	}
	segment, err := nextSegment(tx)
	if err != nil {
		return nil, err
	}
	room := cacheBytes/4 - held
	var rows []row
	for _, n := range slices.Sorted(maps.Keys(p.fresh)) {
		f := p.fresh[n]
		if f.at <= now.UnixMicro() && sizeOf(f.row) <= room {
			room -= sizeOf(f.row)
			if _, _, err := w.add(n, f.row); err != nil {
				return nil, err
			}
			continue
		}
		var d webhook.Delivery
		if err := unseal(f.row, &d); err != nil {
			return nil, err
		}
		lane := names.Get([]byte(d.Destination))
		if len(lane) != 4 {
			p.count.lane++
			lane = binary.BigEndian.AppendUint32(nil, p.count.lane)
			if err := names.Put([]byte(d.Destination), lane); err != nil {
				return nil, err
			}
		}
		number, order := binary.BigEndian.Uint32(lane), lanes.Order{At: f.at, Seq: n}
		changes = append(changes, change{segment, part{number, 1, order}})
		rows = append(rows, row{waitingKey(nil, segment, number, order), f.row})
	}
	if err := putWaiting(tx, rows); err != nil {
		return nil, err
	}
	return changes, w.end()
}
