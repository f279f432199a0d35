package natsqueue

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

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
	conn   *conn
	life   *lifetime
	index  *index
	upkeep *store.Upkeep
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
func (rc *recorder) write(ctx context.Context, ws ...*write) error {
	for _, w := range ws {
		size := 64 * len(w.endings)
		for _, e := range w.endings {
			size += len(e.record)
		}
		rc.writes.Add(w, size)
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
func (rc *recorder) storeWrites(writes []*write) {
	of := make(map[*partition][]*write)
	for _, w := range writes {
		of[w.p] = append(of[w.p], w)
	}
	var wg sync.WaitGroup
	for p, ws := range of {
		wg.Go(func() { rc.record(p, ws) })
	}
	wg.Wait()
}

// record stores writes of one partition in records. It retries until it knows whether the stream
// has them. If another node has written a record, that node owns the partition. If the server refuses
// a record as too large, record makes a smaller one.
func (rc *recorder) record(p *partition, writes []*write) {
	var endings []*ending
	release := false
	for _, w := range writes {
		endings = append(endings, w.endings...)
		release = release || w.release
	}
	var err error
	var d *draft
	var left []*ending // not in d
	room, failed, begun, whole := math.MaxInt, false, false, false
	for !whole {
		if d == nil {
			if d, left = rc.compose(p, endings, release, room); d == nil {
				err = nil // of an earlier draft: the partition is lost
				break
			}
		}
		err = rc.conn.store(rc.life.ctx, &d.parcel)
		if err == nil {
			rc.recorded(p, d)
			d, endings = nil, left
			begun, whole = true, len(endings) == 0
			continue
		}
		if errors.Is(err, errChanged) {
			p.taken()
			err = nil
			break
		}
		if sleep(rc.life.ctx, pause) != nil {
			break
		}
		failed = true
		rc.upkeep.Ran("record", "the outcomes of attempts are not stored, and soon nothing more is attempted; see whether the server is out of reach or refuses messages", err)
		if errors.Is(err, store.ErrTooLarge) {
			d, room = nil, d.size/2
		}
	}
	if failed && err == nil {
		rc.upkeep.Ran("record", "", nil)
	}
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
	size    int       // about how many bytes the endings have
	dropped int
	erased  uint64 // the last message with a delivery that the record erases
	parcel  parcel
}

// compose returns a draft of a record with as many endings as fit into room bytes and into a message,
// at least one, and the endings that are left. With release, the record that leaves no endings gives
// the partition away. If the partition is lost, there is no draft.
func (rc *recorder) compose(p *partition, endings []*ending, release bool, room int) (*draft, []*ending) {
	rc.index.mu.Lock()
	defer rc.index.mu.Unlock()
	if p.state == lost {
		return nil, nil
	}
	d := &draft{record: record{node: rc.conn.id, cursor: p.cursor}}
	r := &d.record
	room = min(room, rc.conn.blockRoom())
	taken := make(map[*entry]bool)
	for ; len(endings) > 0; endings = endings[1:] {
		e := endings[0]
		if e.entry.block.entries[e.entry.i] != e.entry || e.from != nil && (e.from != e.entry.block || taken[e.entry]) {
			continue // it has ended, or it is moved already
		}
		size := len(e.record)
		if e.from != nil { // movable compares the same size
			size = int(e.entry.stored)
		}
		if e.unfit || size > rc.conn.recordRoom() {
			if e.from == nil {
				d.unfit = append(d.unfit, e)
			}
			continue
		}
		if taken[e.entry] || d.size > 0 && d.size+len(e.record) > room || len(d.parcel.messages) == maxBuries || len(d.endings) == blockLen {
			break
		}
		taken[e.entry] = true
		d.size += len(e.record) + 8
		d.endings = append(d.endings, e)
		r.ends = append(r.ends, ref{e.entry.block.seq, e.entry.i})
		if e.erase {
			d.erased = max(d.erased, e.entry.block.seq)
		}
		if e.putsBack() {
			r.records = append(r.records, stored{e.record, e.entry.block.keys[e.entry.i] == (store.Key{})})
		} else if e.letter != nil {
			d.parcel.messages = append(d.parcel.messages, one(e.subject, e.record, headerLetter, e.letter.header(e.entry.seq)).messages...)
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
	r.serial = rc.index.serial.Add(1)
	d.parcel.messages = append(d.parcel.messages, next(p.prefix+kindOwn, p.last, r.append(nil)).messages...)
	d.parcel.vital = true
	return d, endings
}

// recorded updates the index after d was stored.
func (rc *recorder) recorded(p *partition, d *draft) {
	rc.index.mu.Lock()
	defer rc.index.mu.Unlock()
	if p.state == lost {
		return
	}
	p.last = d.parcel.seq
	p.dropped = p.dropped[d.dropped:]
	p.erased = max(p.erased, d.erased)
	b := p.block(d.parcel.seq, len(d.parcel.messages[len(d.parcel.messages)-1].Data), len(d.record.records))
	b.judged = true
	for _, e := range d.unfit {
		rc.stay(e)
	}
	n, letterAt := 0, d.parcel.seq-uint64(len(d.parcel.messages)-1)
	for _, e := range d.endings {
		if e.news {
			rc.index.tell(e.entry.lane.name)
		}
		if e.letter != nil { // its message is in the batch
			e.letter.at = letterAt
			if x := e.entry.lane.at(e.entry.seq); x != nil {
				x.entry, x.letter = nil, e.letter
			}
			letterAt++
		}
		if !e.putsBack() {
			e.released = rc.index.remove(e.entry, e.lapsed)
			continue
		}
		old, at := e.entry.block, e.entry.i
		b.keys[n], old.keys[at] = old.keys[at], store.Key{} // the new block has the key
		old.drop(e.entry)
		e.entry.stored = uint32(len(e.record))
		delete(rc.index.unfit, e.entry)
		b.set(n, e.entry)
		n++
		if e.verdict == store.Retry {
			rc.index.unclaim(e.entry)
			rc.index.describe(e.entry, e.again)
			e.entry.lane.push(e.entry)
		}
	}
	rc.index.hold(b.entries...)
	if d.record.node == "" {
		p.lose()
	}
}

// An ending is an entry with its outcome, which is about to be written into a record.
type ending struct {
	entry    *entry
	verdict  store.Verdict
	again    *store.Delivery // the delivery with what the settlement changes
	record   []byte          // the encoded delivery to put back, or the dead letter
	letter   *letter         // the dead letter, and
	subject  string          // its subject
	from     *block          // for a move: the block that the delivery was in
	released time.Time       // set by recorded: when the delivery is due that was behind this one, or zero
	news     bool            // Heads has to yield the lane, because no caller of Settle knows of the ending
	lapsed   bool            // the verdict is Bury, and the Reason is Lapsed
	erase    bool            // the cleaner has to purge the message
	unfit    bool            // the record is larger than a message may be; see stay
}

// putsBack reports whether the delivery goes on in the record.
func (e *ending) putsBack() bool { return e.verdict == store.Retry || e.verdict == store.Return }

// ending returns the ending of e by a settlement. d is the delivery of e. If the attempts do not
// fit into a message, ending leaves them out. The index is locked.
func (rc *recorder) ending(e *entry, d *store.Delivery, by *store.Settlement) *ending {
	end := &ending{entry: e, verdict: by.Verdict, lapsed: by.Reason.Lapsed()}
	if by.Verdict == store.Done {
		return end
	}
	again := *d
	again.Tries, again.Closed, again.Attempts = by.Delivery.Tries, exactly(by.Delivery.Closed), exactly(by.Delivery.Attempts)
	end.again = &again
	for limit := rc.conn.recordRoom(); ; again.Attempts = nil {
		if by.Verdict == store.Retry {
			again.Due, again.Expires = by.Delivery.Due, by.Delivery.Expires
			end.record, _ = again.AppendBinary(nil) // no error: Settle has checked it
		} else {
			dead := store.Record{Delivery: again, Reason: by.Reason, At: by.At}
			end.subject = rc.conn.config.deadSubject(dead.Destination)
			end.letter = &letter{died: dead.At.UnixMicro(), user: e.user, size: uint32(dead.Size())}
			end.record, _ = dead.AppendBinary(nil)
		}
		if end.unfit = len(end.record) > limit; !end.unfit || again.Attempts == nil {
			return end
		}
	}
}

// buryLater is how long the store waits before it tries again to bury a delivery that does not fit
// into a dead letter.
const buryLater = time.Hour

// stay leaves a delivery where it is in the stream, because the server's max_payload was lowered and
// has no room for it any more. What the settlement changes is in the memory of this node alone, so
// the next owner attempts the delivery again, as if it had not been attempted. A delivery that was to
// be buried waits. The index is locked.
func (rc *recorder) stay(e *ending) {
	if rc.index.unfit[e.entry] == nil {
		rc.conn.config.Logger.Error("natsqueue: a delivery is larger than the server's max_payload, which was lowered; its attempts are not stored, and it cannot become a dead letter; raise max_payload", "destination", e.entry.lane.name, "delivery", e.again.ID, "bytes", len(e.record), "max_payload", rc.conn.nc.MaxPayload())
	}
	if e.verdict == store.Bury {
		e.again.Due = now().Add(buryLater)
	}
	changed := *e.again
	changed.Body = nil
	rc.index.unfit[e.entry] = &changed
	rc.index.unclaim(e.entry)
	rc.index.describe(e.entry, e.again)
	e.entry.lane.push(e.entry)
	rc.index.hold(e.entry)
	rc.index.tell(e.entry.lane.name)
}

// exactly returns a copy without spare capacity, for a slice that is kept for long.
func exactly[T any](all []T) []T { return slices.Clip(slices.Clone(all)) }
