package natsqueue

import (
	"context"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

const (
	// buriesMost is how many dead letters a record has beside it at most.
	buriesMost = 500
	// dropsMost is how many duplicates a record tells of at most.
	dropsMost = 256
)

// A recorder writes the records of the partitions that this node owns.
type recorder struct {
	*index
	writes *storekit.Batcher[write]
}

// A write is something that owners are to record: settlements, erasures, or that a
// partition is given away.
type write struct {
	endings []*ending
	moves   []move
	owed    []*partition // a record is wanted even if there is nothing else to say
	release []*partition
	done    chan struct{} // closed when all of it is recorded, or cannot be any more
	err     error         // of a release
}

// An ending is what becomes of an entry.
type ending struct {
	*entry
	verdict webhook.Verdict
	again   *webhook.Delivery // that a Retry puts back
	record  []byte            // of again, or of the dead letter
	subject string            // of the dead letter
	erase   bool              // it is not claimed, and stays if it is by now
	erased  bool
}

// A move takes all that waits of a block to another message, and what is damaged aside, so that the
// block can be purged. What a record says has ended, drops and ends, goes with it.
type move struct {
	*block
	records     [][]byte
	drops, ends []ref
}

// Settle implements webhook.Store. What is not recorded within 4.5 s is an error; it may be recorded
// later, which the next call for the same claims waits for.
func (s *Store) Settle(ctx context.Context, ss []webhook.Settlement) (int, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	n := len(ss)
	var refused error
	for i := range ss {
		if refused = check(&ss[i]); refused != nil {
			n, refused = i, fmt.Errorf("natsqueue: settlement %d: %w", i, refused)
			break
		}
	}
	w := &write{done: make(chan struct{})}
	waits := map[*write]bool{}
	s.mu.Lock()
	if err := s.lapsed(); err != nil { // others may have what is claimed
		s.mu.Unlock()
		return 0, fmt.Errorf("natsqueue: settling: %w", err)
	}
	for i := range ss[:n] {
		by := &ss[i]
		e := s.claims[by.Delivery.Claim]
		switch {
		case e == nil:
		case e.write != nil:
			waits[e.write] = true
		case by.Verdict == webhook.Return:
			s.putBack(e)
		default:
			e.write = w
			w.endings = append(w.endings, s.ending(e, by))
		}
	}
	s.mu.Unlock()
	delete(waits, w)
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout+resend/2, errNoAnswer)
	defer cancel()
	if len(w.endings) > 0 {
		if err := s.write(ctx, w); err != nil {
			return 0, fmt.Errorf("natsqueue: settling: %w", err)
		}
	}
	for w := range waits {
		if err := w.wait(ctx); err != nil {
			return 0, fmt.Errorf("natsqueue: settling: %w", err)
		}
	}
	return n, refused
}

func check(s *webhook.Settlement) error {
	switch s.Verdict {
	case webhook.Retry, webhook.Bury:
		return s.Delivery.Check()
	case webhook.Done, webhook.Return:
		return nil
	}
	return fmt.Errorf("verdict %d", s.Verdict)
}

// ending returns what by makes of e. The store is locked.
func (s *recorder) ending(e *entry, by *webhook.Settlement) *ending {
	end := &ending{entry: e, verdict: by.Verdict}
	if by.Verdict == webhook.Done {
		return end
	}
	d := *e.delivery
	d.Tries, d.Closed, d.Attempts = by.Delivery.Tries, exactly(by.Delivery.Closed), exactly(by.Delivery.Attempts)
	for limit := int(s.nc.MaxPayload()) - headerRoom/2; ; d.Attempts = nil {
		if by.Verdict == webhook.Retry {
			d.Due, d.Expires = by.Delivery.Due, by.Delivery.Expires
			end.again = &d
			end.record, _ = d.AppendBinary(nil) // it was checked
		} else {
			dead := webhook.DeadLetter{Delivery: d, Reason: by.Reason, Died: by.At}
			end.subject = s.config.deadSubject(&dead)
			end.record, _ = dead.AppendBinary(nil)
		}
		if len(end.record) <= limit || d.Attempts == nil {
			return end
		}
	}
}

func exactly[T any](all []T) []T {
	if len(all) == 0 {
		return nil
	}
	return slices.Clip(slices.Clone(all))
}

// write hands over w, and waits until it is recorded.
func (s *recorder) write(ctx context.Context, w *write) error {
	size := 64 * len(w.endings)
	for _, e := range w.endings {
		size += len(e.record)
	}
	s.writes.Add(w, size)
	return w.wait(ctx)
}

func (w *write) wait(ctx context.Context) error {
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A draft is the next record of a partition, and what it says.
type draft struct {
	p       *partition
	record  record
	endings []*ending
	moved   []*entry
	damaged []*entry
	carried []*block
	drops   int
	release bool
	buries  []*nats.Msg
	parcel
}

// storeWrites records writes. It is called by one goroutine, and tries until it is known what is
// recorded.
func (s *recorder) storeWrites(writes []*write) {
	endings := make(map[*partition][]*ending)
	moves := make(map[*partition][]move)
	wanted := make(map[*partition]struct{})
	release := make(map[*partition]bool)
	for _, w := range writes {
		for _, e := range w.endings {
			p := e.block.p
			endings[p], wanted[p] = append(endings[p], e), struct{}{}
		}
		for _, m := range w.moves {
			moves[m.p], wanted[m.p] = append(moves[m.p], m), struct{}{}
		}
		for _, p := range w.owed {
			wanted[p] = struct{}{}
		}
		for _, p := range w.release {
			wanted[p], release[p] = struct{}{}, true
		}
	}
	var err error
	for len(wanted) > 0 && err == nil {
		var drafts []*draft
		s.mu.Lock()
		for p := range wanted {
			if p.lost {
				delete(wanted, p)
				continue
			}
			d := &draft{p: p}
			endings[p], moves[p] = s.compose(d, endings[p], moves[p])
			if len(endings[p])+len(moves[p]) == 0 {
				delete(wanted, p)
				d.release = release[p]
			}
			s.finish(d)
			drafts = append(drafts, d)
		}
		s.mu.Unlock()
		err = s.storeDrafts(drafts)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range writes {
		for _, e := range w.endings {
			if e.write == w {
				e.write = nil
			}
		}
		for _, p := range w.release {
			if !p.lost && w.err == nil {
				w.err = err
			}
		}
		if len(w.release) == 0 {
			w.err = err
		}
		close(w.done)
	}
}

// compose has d say what there is room for, and returns the rest. The store is locked.
func (s *recorder) compose(d *draft, endings []*ending, moves []move) ([]*ending, []move) {
	size := 0
	room := func(n int) bool {
		if size > 0 && size+n > blockBytes {
			return false
		}
		size += n + 8
		return true
	}
	taken := make(map[*entry]bool)
	begin := func(e *entry, record []byte) {
		d.moved = append(d.moved, e)
		d.record.records = append(d.record.records, record)
	}
	for len(endings) > 0 {
		e := endings[0]
		if e.block.entries[e.i] != e.entry || e.erase && e.claim != 0 {
			endings = endings[1:]
			continue
		}
		if !room(len(e.record)) || len(d.endings) == blockLen || len(d.buries) == buriesMost {
			return endings, moves
		}
		endings = endings[1:]
		if e.erase {
			e.gone = true // nobody claims it from now on
		}
		d.endings = append(d.endings, e)
		d.record.ends = append(d.record.ends, ref{e.block.seq, e.i})
		taken[e.entry] = true
		switch e.verdict {
		case webhook.Retry:
			begin(e.entry, e.record)
		case webhook.Bury:
			d.buries = append(d.buries, &nats.Msg{Subject: e.subject, Data: e.record})
		}
	}
	for ; len(moves) > 0; moves = moves[1:] {
		m := moves[0]
		total := 8 * (len(m.drops) + len(m.ends))
		for i, e := range m.entries {
			if e != nil {
				total += len(m.records[i])
			}
		}
		if !room(total) || len(d.buries) == buriesMost {
			return nil, moves
		}
		if len(m.drops)+len(m.ends) > 0 {
			d.carried = append(d.carried, m.block)
			d.record.drops, d.record.ends = append(d.record.drops, m.drops...), append(d.record.ends, m.ends...)
		}
		for i, e := range m.entries {
			if e == nil || taken[e] {
				continue
			}
			d.record.ends = append(d.record.ends, ref{m.seq, uint32(i)})
			if e.damaged {
				d.damaged = append(d.damaged, e)
				d.buries = append(d.buries, &nats.Msg{Subject: d.p.prefix + kindDamaged, Data: m.records[i]})
			} else {
				begin(e, m.records[i])
			}
		}
	}
	return nil, nil
}

// finish completes the record of d. The store is locked.
func (s *recorder) finish(d *draft) {
	p, r := d.p, &d.record
	s.serial++
	r.serial, r.node, r.cursor = s.serial, s.id, p.cursor
	if d.release {
		r.node = ""
	}
	if d.drops = min(len(p.drops), dropsMost); d.drops < len(p.drops) {
		r.cursor = min(r.cursor, p.drops[d.drops].seq-1)
	}
	r.drops = append(r.drops, p.drops[:d.drops]...)
	m := expect(p.prefix+kindOwn, p.last, r.append(nil), false)
	d.messages, d.vital = append(d.buries, m), true
}

// storeDrafts stores records until it is known what became of each.
func (s *recorder) storeDrafts(drafts []*draft) error {
	for len(drafts) > 0 {
		parcels := make([]*parcel, len(drafts))
		for i, d := range drafts {
			parcels[i] = &d.parcel
		}
		err := s.send(s.background, parcels...)
		var left []*draft
		for _, d := range drafts {
			switch {
			case !d.answered:
				left = append(left, d)
			case d.err == nil:
				s.recorded(d, d.seq)
			default:
				if !s.doubted(d) {
					d.parcel = parcel{messages: d.messages, vital: true}
					left = append(left, d)
				}
			}
		}
		if drafts = left; len(drafts) == 0 {
			return nil
		}
		if err == nil {
			err = sleep(s.background, pause)
		}
		if s.background.Err() != nil {
			return err
		}
	}
	return nil
}

// doubted finds out whether d was stored after all, by a message whose answer was lost, or whether
// another node owns the partition. It reports false if neither is so: then d is to be sent again.
func (s *recorder) doubted(d *draft) bool {
	seq, data, err := s.last(s.background, d.p.prefix+kindOwn)
	if err != nil {
		return false
	}
	if r, err := parseRecord(data); err == nil && r.serial == d.record.serial && (r.node == s.id || d.release && r.node == "") && seq > d.p.last {
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

// recorded takes into memory what d says, which is stored.
func (s *recorder) recorded(d *draft, seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := d.p
	if p.lost {
		return
	}
	p.last = seq
	p.drops = p.drops[d.drops:]
	b := p.block(seq, len(d.messages[len(d.messages)-1].Data), len(d.moved))
	b.own, b.judged = true, true
	for _, m := range d.carried {
		m.carried = true
	}
	for i, e := range d.moved {
		old, at := e.block, e.i
		if old.noDedup != nil && old.noDedup[at] {
			b.leaveToRepeat(i)
		}
		b.keys[i], old.keys[at] = old.keys[at], storekit.Key{} // the new block has it
		old.drop(e)
		e.stored = uint32(len(d.record.records[i]))
		b.set(i, e)
	}
	for _, e := range d.damaged {
		s.remove(e)
	}
	for _, e := range d.endings {
		e.entry.write = nil
		if e.verdict != webhook.Retry {
			if e.erase {
				e.erased, e.block.erase = true, true
			}
			s.remove(e.entry)
			continue
		}
		s.fill(e.entry, e.again)
		s.putBack(e.entry)
	}
	if d.release {
		p.lose()
	}
}
