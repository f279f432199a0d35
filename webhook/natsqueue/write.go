package natsqueue

import (
	"context"
	"errors"
	"sync"

	"github.com/hookferry/analytics/webhook/store"
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
	writes *store.Batcher[write]
}

// A write collects changes of a partition for its next record. An empty write becomes a record,
// too, which proves that this node still owns the partition.
type write struct {
	p       *partition
	endings []*ending
	release bool // the partition is given away
	done    chan struct{}

	// Set before done is closed. If the partition is lost, err is nil, and begun and whole say whether
	// the stream has some, or all, of the endings of this write and of those that share its records.
	err          error
	begun, whole bool
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

// write queues writes and waits until they are recorded.
func (s *recorder) write(ctx context.Context, ws ...*write) error {
	for _, w := range ws {
		size := 64 * len(w.endings)
		for _, e := range w.endings {
			size += len(e.record)
		}
		s.writes.Add(w, size)
	}
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
// has them. If another node has written a record, that node owns the partition.
func (s *recorder) record(p *partition, writes []*write) {
	var endings []*ending
	release := false
	for _, w := range writes {
		endings = append(endings, w.endings...)
		release = release || w.release
	}
	var err error
	begun, whole := false, false
	s.mu.Lock()
	for more := true; more && err == nil && p.state != lost; more = len(endings) > 0 {
		var d *draft
		d, endings = s.compose(p, endings, release)
		s.mu.Unlock()
		for {
			err = s.store(s.background, &d.parcel)
			if err == nil || errors.Is(err, errChanged) || sleep(s.background, pause) != nil {
				break
			}
		}
		s.mu.Lock()
		switch {
		case err == nil:
			s.recorded(p, d)
			begun, whole = true, len(endings) == 0
		case errors.Is(err, errChanged):
			p.yield()
			err = nil
		}
	}
	s.mu.Unlock()
	for _, w := range writes {
		w.err, w.begun, w.whole = err, begun, whole
		close(w.done)
	}
}

// A draft is the next record of a partition. Its parcel has the record, and before it the dead
// letters.
type draft struct {
	record  record
	endings []*ending
	unfit   []*ending // not in the record; see stay
	dropped int
	erased  uint64 // the last message with a delivery that the record erases
	parcel
}

// compose returns a draft of a record with as many endings as fit, and the endings that are left.
// With release, the record that leaves none gives the partition away. The store is locked.
func (s *recorder) compose(p *partition, endings []*ending, release bool) (*draft, []*ending) {
	d := &draft{record: record{node: s.id, cursor: p.cursor}}
	r := &d.record
	size := 0
	taken := make(map[*entry]bool)
	for ; len(endings) > 0; endings = endings[1:] {
		e := endings[0]
		if e.block.entries[e.i] != e.entry || e.from != nil && (e.from != e.block || taken[e.entry]) {
			continue // it has ended, or it is moved already
		}
		if e.unfit {
			d.unfit = append(d.unfit, e)
			continue
		}
		if taken[e.entry] || size > 0 && size+len(e.record) > s.blockRoom() || len(d.messages) == maxBuries || len(d.endings) == blockLen {
			break
		}
		taken[e.entry] = true
		size += len(e.record) + 8
		d.endings = append(d.endings, e)
		r.ends = append(r.ends, ref{e.block.seq, e.i})
		if e.erase {
			d.erased = max(d.erased, e.block.seq)
		}
		if e.putsBack() {
			r.records = append(r.records, stored{e.record, e.block.keys[e.i] == (store.Key{})})
		} else if e.subject != "" {
			d.messages = append(d.messages, one(e.subject, e.record).messages...)
		}
	}
	if d.dropped = min(len(p.dropped), maxDropped); d.dropped < len(p.dropped) {
		r.cursor = min(r.cursor, p.dropped[d.dropped].seq-1)
	}
	r.ends = append(r.ends, p.dropped[:d.dropped]...)
	if d.erased > 0 { // the next owner has to know it, too
		r.ends = append(r.ends, ref{d.erased, erasedUpTo})
	}
	if release && len(endings) == 0 {
		r.node = ""
	}
	s.serial++
	r.serial = s.serial
	d.messages = append(d.messages, next(p.prefix+kindOwn, p.last, r.append(nil)).messages...)
	d.vital = true
	return d, endings
}

// recorded updates the index after d was stored. The store is locked.
func (s *recorder) recorded(p *partition, d *draft) {
	if p.state == lost {
		return
	}
	p.last = d.seq
	p.dropped = p.dropped[d.dropped:]
	p.erased = max(p.erased, d.erased)
	b := p.block(d.seq, len(d.messages[len(d.messages)-1].Data), len(d.record.records))
	b.judged = true
	for _, e := range d.unfit {
		s.stay(e)
	}
	n := 0
	for _, e := range d.endings {
		if e.news {
			s.tell(e.lane.name)
		}
		if !e.putsBack() {
			s.remove(e.entry)
			continue
		}
		old, at := e.block, e.i
		b.keys[n], old.keys[at] = old.keys[at], store.Key{} // the new block has the key
		old.drop(e.entry)
		e.stored = uint32(len(e.record))
		delete(s.unfit, e.entry)
		b.set(n, e.entry)
		n++
		if e.verdict == store.Retry {
			s.unclaim(e.entry)
			s.describe(e.entry, e.again)
			e.lane.push(e.entry)
		}
	}
	s.hold(b.entries...)
	if d.record.node == "" {
		p.lose()
	}
}
