package boltqueue

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hookferry/analytics/internal/seen"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// replay has the database hold what the journal of its epoch says, after an end
// without a Close.
func replay(tx *bolt.Tx, path string, cacheBytes int64, now time.Time) error {
	meta := tx.Bucket(bucketMeta)
	var e epoch
	switch v := meta.Get(rowJournal); len(v) {
	case 0:
		return nil // it was closed
	case len(e):
		copy(e[:], v)
	default:
		return fmt.Errorf("%w: an epoch of %d bytes", errRow, len(v))
	}
	p := player{tx: tx, fresh: make(map[uint64]freshRow), bits: make(map[uint64]uint64)}
	if err := p.count.read(meta.Get(rowState)); err != nil {
		return err
	}
	if err := readJournal(path, e, func(b []byte) error { return ops(b, p.play) }); err != nil {
		return err
	}
	return p.write(cacheBytes, now)
}

// A player gathers what the entries of a journal come to.
type player struct {
	tx    *bolt.Tx
	count counts
	fresh map[uint64]freshRow // what was put or retried, and is still there
	bits  map[uint64]uint64   // what was settled, by block
	keys  []seenKeys
}

type freshRow struct {
	at  int64
	row []byte
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
		return p.tx.Bucket(bucketDead).Put(orderKey(nil, o.order), o.row)
	case opDone:
		p.count.waiting--
	}
	return nil
}

// take takes a row away from where it was.
func (p *player) take(at place) error {
	switch at.kind {
	case inJournal:
		if _, ok := p.fresh[at.order.Seq]; !ok {
			return fmt.Errorf("%w: delivery %d was not there", errRow, at.order.Seq)
		}
		delete(p.fresh, at.order.Seq)
	case inBlock:
		p.bits[at.block] |= 1 << at.index
	default:
		return p.tx.Bucket(bucketWaiting).Delete(waitingKey(nil, at.lane, at.order))
	}
	return nil
}

// write writes what is not written yet.
func (p *player) write(cacheBytes int64, now time.Time) error {
	if err := p.settleBlocks(); err != nil {
		return err
	}
	if err := p.putFresh(cacheBytes, now); err != nil {
		return err
	}
	seenRows := p.tx.Bucket(bucketSeen)
	for _, s := range p.keys {
		p.count.number++
		if err := seenRows.Put(numberKey(p.count.number), seenRow(s.at.UnixMicro(), s.keys)); err != nil {
			return err
		}
	}
	return p.tx.Bucket(bucketMeta).Put(rowState, p.count.row())
}

func (p *player) settleBlocks() error {
	blocks, left := p.tx.Bucket(bucketBlocks), p.tx.Bucket(bucketLeft)
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
// for it, and all else into waiting.
func (p *player) putFresh(cacheBytes int64, now time.Time) error {
	numbers := make([]uint64, 0, len(p.fresh))
	for n := range p.fresh {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	waiting, names := p.tx.Bucket(bucketWaiting), p.tx.Bucket(bucketLanes)
	w := blockWriter{bucket: p.tx.Bucket(bucketBlocks)}
	room := cacheBytes / 4
	for _, n := range numbers {
		f := p.fresh[n]
		if f.at <= now.UnixMicro() && sizeOf(f.row) <= room {
			room -= sizeOf(f.row)
			if _, _, err := w.add(n, f.row); err != nil {
				return err
			}
			continue
		}
		var d webhook.Delivery
		if err := unseal(f.row, &d); err != nil {
			return err
		}
		lane := names.Get([]byte(d.Destination))
		if len(lane) != 4 {
			p.count.lane++
			lane = binary.BigEndian.AppendUint32(nil, p.count.lane)
			if err := names.Put([]byte(d.Destination), lane); err != nil {
				return err
			}
		}
		key := waitingKey(nil, binary.BigEndian.Uint32(lane), lanes.Order{At: f.at, Seq: n})
		if err := waiting.Put(key, f.row); err != nil {
			return err
		}
	}
	return w.end()
}
