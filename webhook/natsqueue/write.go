package natsqueue

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

const (
	// maxBuries is the maximum number of dead letters that are stored together with a record.
	maxBuries = 500
	// maxDropped is the most duplicates that a record lists.
	maxDropped = 256
)

// A recorder writes the records of the partitions of this node. Other parts queue writes, and the
// recorder combines all queued writes of a partition in one record.
type recorder struct {
	*index
	writes *storekit.Batcher[write]
}

func newRecorder(x *index) *recorder {
	s := &recorder{index: x}
	s.writes = storekit.NewBatcher(1, maxGroup, s.storeWrites)
	return s
}

// A write collects changes of a partition for its next record. An empty write becomes a record,
// too, which proves that this node still owns the partition.
type write struct {
	p       *partition
	endings []*ending
	moves   []content // blocks whose entries are moved to the record, so that they can be purged
	release bool      // the partition is given away
	done    chan struct{}
	err     error // set before done is closed
}

func newWrite(p *partition) *write { return &write{p: p, done: make(chan struct{})} }

// writesOf returns a write for each partition. If release is set, each write gives its partition
// away.
func writesOf(partitions []*partition, release bool) (ws []*write) {
	for _, p := range partitions {
		w := newWrite(p)
		w.release = release
		ws = append(ws, w)
	}
	return ws
}

// hand queues writes.
func (s *recorder) hand(ws ...*write) {
	for _, w := range ws {
		size := 64 * len(w.endings)
		for _, e := range w.endings {
			size += len(e.record)
		}
		s.writes.Add(w, size)
	}
}

// write queues writes and waits until they are recorded.
func (s *recorder) write(ctx context.Context, ws ...*write) error {
	s.hand(ws...)
	return await(ctx, ws)
}

// await waits until each of ws is recorded or its partition is lost, or until ctx ends.
func await(ctx context.Context, ws []*write) error {
	for _, w := range ws {
		select {
		case <-w.done:
			if w.err != nil {
				return w.err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// storeWrites records writes. One goroutine calls it.
func (s *recorder) storeWrites(writes []*write) {
	of := make(map[*partition][]*write)
	for _, w := range writes {
		of[w.p] = append(of[w.p], w)
	}
	var wg sync.WaitGroup
	for p, ws := range of {
		wg.Go(func() { s.record(p, ws) })
	}
	wg.Wait()
}

// record stores writes of one partition in records. It retries until it knows whether the stream
// has them.
func (s *recorder) record(p *partition, writes []*write) {
	all := write{p: p}
	for _, w := range writes {
		all.endings, all.moves = append(all.endings, w.endings...), append(all.moves, w.moves...)
		all.release = all.release || w.release
	}
	var err error
	s.mu.Lock()
	for more := true; more && err == nil && p.state != lost; {
		d := s.compose(&all)
		more = len(all.endings)+len(all.moves) > 0
		if d.record.node = s.id; all.release && !more {
			d.record.node = ""
		}
		s.finish(d)
		s.mu.Unlock()
		err = s.storeDraft(d)
		s.mu.Lock()
	}
	for _, w := range writes {
		for _, e := range w.endings {
			if e.write == w {
				e.write = nil
			}
		}
		w.err = err
		close(w.done)
	}
	s.mu.Unlock()
}

// A draft is the next record of a partition.
type draft struct {
	p       *partition
	record  record
	endings []*ending
	moved   []*entry
	dropped int
	aside   []*nats.Msg // dead letters and damaged deliveries, stored in one batch with the record
	parcel
}

// compose takes as much from w as fits into one record, and returns a draft of the record. The rest
// stays in w. The store is locked.
func (s *recorder) compose(w *write) *draft {
	d := &draft{p: w.p}
	size := 0
	room := func(n int) bool {
		if size > 0 && size+n > blockBytes || len(d.aside) >= maxBuries || len(d.endings) >= blockLen {
			return false
		}
		size += n + 8
		return true
	}
	begin := func(e *entry, record []byte) {
		if e.block.keys[e.i] == (storekit.Key{}) {
			d.record.noDedup = append(d.record.noDedup, uint32(len(d.moved)))
		}
		d.moved = append(d.moved, e)
		d.record.records = append(d.record.records, record)
	}
	taken := make(map[*entry]bool)
	for ; len(w.endings) > 0; w.endings = w.endings[1:] {
		e := w.endings[0]
		if e.block.entries[e.i] != e.entry || e.free && (e.claim != 0 || e.gone) {
			continue // the entry has ended, or was claimed in the meantime
		}
		if !room(len(e.record)) {
			return d
		}
		e.gone = e.gone || e.free // from here on it cannot be claimed
		d.endings = append(d.endings, e)
		d.record.ends = append(d.record.ends, ref{e.block.seq, e.i})
		taken[e.entry] = true
		switch e.verdict {
		case webhook.Retry:
			begin(e.entry, e.record)
		case webhook.Bury:
			d.aside = append(d.aside, one(e.subject, e.record).messages...)
		}
	}
	for ; len(w.moves) > 0; w.moves = w.moves[1:] {
		m := w.moves[0]
		total := 0
		for i, e := range m.entries {
			if e != nil {
				total += len(m.records[i])
			}
		}
		if !room(total) {
			return d
		}
		for i, e := range m.entries {
			if e == nil || taken[e] { // taken also if the cleaner and a Put asked for the same move
				continue
			}
			taken[e] = true
			d.record.ends = append(d.record.ends, ref{m.seq, uint32(i)})
			if e.damaged {
				d.endings = append(d.endings, &ending{entry: e})
				d.aside = append(d.aside, one(d.p.prefix+kindDamaged, m.records[i]).messages...)
			} else {
				begin(e, m.records[i])
			}
		}
	}
	return d
}

// finish completes the record of d. The store is locked.
func (s *recorder) finish(d *draft) {
	p, r := d.p, &d.record
	s.serial++
	r.serial, r.cursor = s.serial, p.cursor
	if d.dropped = min(len(p.dropped), maxDropped); d.dropped < len(p.dropped) {
		r.cursor = min(r.cursor, p.dropped[d.dropped].seq-1)
	}
	r.ends = append(r.ends, p.dropped[:d.dropped]...)
	d.messages = append(d.aside, one(p.prefix+kindOwn, r.append(nil), headerExpected, decimal(p.last)).messages...)
	d.vital = true
}

// storeDraft stores a record. It retries until it knows whether the record is stored.
func (s *recorder) storeDraft(d *draft) error {
	for {
		err := s.store(s.background, &d.parcel)
		if err == nil {
			s.recorded(d, d.seq)
			return nil
		}
		if !errors.Is(err, errNoAnswer) && s.doubted(d) {
			return nil
		}
		if sleep(s.background, pause) != nil {
			return err
		}
	}
}

// doubted finds out why the server refused a record. It returns false if the caller has to send the
// record again. It returns true if the record is stored and only an earlier answer was lost, or if
// another node has written a record and so owns the partition.
func (s *recorder) doubted(d *draft) bool {
	seq, data, err := s.last(s.background, d.p.prefix+kindOwn)
	if err != nil {
		return false
	}
	if bytes.Equal(data, d.messages[len(d.messages)-1].Data) { // no two records are the same
		s.recorded(d, seq)
		return true
	}
	if seq == d.p.last {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d.p.yield()
	return true
}

// recorded updates the index after d was stored with the sequence seq.
func (s *recorder) recorded(d *draft, seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := d.p
	if p.state == lost {
		return
	}
	p.last = seq
	p.dropped = p.dropped[d.dropped:]
	b := p.block(seq, len(d.messages[len(d.messages)-1].Data), len(d.moved))
	b.judged = true
	for i, e := range d.moved {
		old, at := e.block, e.i
		b.keys[i], old.keys[at] = old.keys[at], storekit.Key{} // the new block has the key
		old.drop(e)
		e.stored = uint32(len(d.record.records[i]))
		b.set(i, e)
	}
	for _, e := range d.endings {
		e.done, e.entry.write = true, nil
		switch {
		case e.verdict != webhook.Retry:
			s.remove(e.entry)
		case e.free: // a queue may still have the old entry
			again := *e.entry
			again.gone = false
			b.entries[e.i] = &again
			s.describe(&again, e.again)
			again.lane.push(&again)
			s.tell(again.lane.name)
		default:
			s.describe(e.entry, e.again)
			s.unclaim(e.entry)
			e.lane.push(e.entry)
		}
	}
	s.cache.add(b)
	if d.record.node == "" {
		p.lose()
	}
}
