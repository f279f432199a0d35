package natsqueue

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// maxBatch is how many bytes of settlements are stored at a time, about.
const maxBatch = 4 << 20

// A settle is a call of Settle that waits until it is stored.
type settle struct {
	ends []ending
	err  error
	done chan struct{}
}

// An ending is the end of the lease of an item.
type ending struct {
	item *lanes.Item
	// message is what a Retry puts back, or the dead letter; nil for a Done.
	message *message
	// again is what a Retry puts back.
	again *webhook.Delivery
	// died is when a dead letter died, as its header has it.
	died string
}

// Settle implements webhook.Queue.
func (q *Queue) Settle(ctx context.Context, ss ...webhook.Settlement) error {
	if err := q.calls.Enter(ctx); err != nil {
		return err
	}
	defer q.calls.Leave()
	ends, size, err := q.endings(ss)
	if err != nil {
		return err
	}
	s := &settle{done: make(chan struct{})}
	q.mu.Lock()
	now := time.Now()
	if now.After(q.until) {
		err := q.unheard() // others may have what is leased
		q.mu.Unlock()
		return fmt.Errorf("natsqueue: settling: %w", err)
	}
	for i := range ss {
		it := q.table.Leased(ss[i].Delivery.Claim)
		if it == nil {
			continue
		}
		if it.Settling() {
			continue
		}
		q.table.Detach(it, now.UnixMicro())
		e := ends[i]
		e.item = it
		q.address(&e, ss[i].Verdict, now)
		s.ends = append(s.ends, e)
	}
	q.mu.Unlock()
	if len(s.ends) == 0 {
		return nil
	}
	q.settles.Add(s, size)
	<-s.done
	return s.err
}

// endings checks and encodes ss. Attempts for which there is no room are left out: a message
// that the server refuses would keep those that are stored with it from being settled.
func (q *Queue) endings(ss []webhook.Settlement) (ends []ending, size int, err error) {
	ends = make([]ending, len(ss))
	limit := int(q.nc.MaxPayload()) - headerRoom
	for i := range ss {
		s := &ss[i]
		var record []byte
		switch s.Verdict {
		case webhook.Done:
			size += 64
			continue
		case webhook.Retry:
			ends[i].again = &s.Delivery
			if record, err = s.Delivery.AppendBinary(nil); len(record) > limit {
				d := s.Delivery
				d.Attempts = nil
				record, err = d.AppendBinary(nil)
			}
		case webhook.Bury:
			d := webhook.DeadLetter{Delivery: s.Delivery, Reason: s.Reason, Died: s.At}
			if record, err = d.AppendBinary(nil); len(record) > limit {
				d.Attempts = nil
				record, err = d.AppendBinary(nil)
			}
			ends[i].message = &message{subject: q.deadSubject(&d)}
			ends[i].died = strconv.FormatInt(s.At.UnixMicro(), 10)
		default:
			err = fmt.Errorf("verdict %d", s.Verdict)
		}
		if err != nil {
			return nil, 0, fmt.Errorf("natsqueue: settlement %d: %w", i, err)
		}
		if ends[i].message == nil {
			ends[i].message = new(message)
		}
		ends[i].message.data = record
		size += len(record)
	}
	return ends, size, nil
}

// address completes the message of an ending. The ids have the first settlement of a
// delivery in an epoch be the only one. The queue is locked.
func (q *Queue) address(e *ending, verdict webhook.Verdict, now time.Time) {
	s := e.item.Home.(*shelf)
	from := origin{s.p.epoch, e.item.Seq}
	switch verdict {
	case webhook.Retry:
		e.message.subject = q.subjects.delivery(s.p.n, token(s.lane.Name), e.again.Due, now)
		e.message.header = nats.Header{headerID: {"again " + from.String()}, headerFrom: {from.String()}}
	case webhook.Bury:
		// Whoever buries it, it is one dead letter.
		e.message.header = nats.Header{headerID: {"dead " + decimal(e.item.Seq)}, headerDied: {e.died}}
	}
}

// A ledger is what a record is to say of a partition.
type ledger struct {
	p    *partition
	seqs []uint64
	owed int // how many of them are p's
	all  bool
	message
}

// settled stores settles: first what is put back, and the dead letters, then records
// of everything that is settled. It is called by one goroutine.
func (q *Queue) settled(settles []*settle) {
	err := q.settleAll(settles)
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range settles {
		for i := range s.ends {
			it := s.ends[i].item
			p := it.Home.(*shelf).p
			if _, proven := p.proven[it.Seq]; err != nil && !p.lost && !proven {
				q.table.Attach(it)
			} else {
				q.settle(it, false)
			}
		}
		if err != nil {
			s.err = fmt.Errorf("natsqueue: settling: %w", err)
		}
		close(s.done)
	}
}

// claimed returns a context that ends when what is owned no longer is: a dead letter, which names
// no epoch, is not to be stored after that.
func (q *Queue) claimed() (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancel(q.background)
	ended := make(chan struct{})
	left := func() time.Duration {
		q.mu.Lock()
		defer q.mu.Unlock()
		return time.Until(q.until)
	}
	go func() { // end waits for it
		defer close(ended)
		defer cancel()
		for d := left(); d > 0; d = left() {
			timer := time.NewTimer(d)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
		}
	}()
	return ctx, func() {
		cancel()
		<-ended
	}
}

func (q *Queue) settleAll(settles []*settle) error {
	var messages []*message
	var again []*ending
	for _, s := range settles {
		for i := range s.ends {
			e := &s.ends[i]
			if e.message != nil {
				messages = append(messages, e.message)
			}
			if e.again != nil {
				again = append(again, e)
			}
		}
	}
	if len(messages) > 0 {
		ctx, end := q.claimed()
		err := q.publisher.store(ctx, messages...)
		end()
		if err != nil {
			return err
		}
	}
	return q.record(q.ledgers(settles, again))
}

// ledgers collects what is to be recorded of settles, and takes into memory what they put
// back.
func (q *Queue) ledgers(settles []*settle, again []*ending) []*ledger {
	q.mu.Lock()
	defer q.mu.Unlock()
	of := make(map[*partition]*ledger)
	var all []*ledger
	open := func(p *partition) *ledger {
		l := of[p]
		if l == nil {
			l = &ledger{p: p, seqs: slices.Clone(p.owed), owed: len(p.owed)}
			of[p] = l
			all = append(all, l)
		}
		return l
	}
	for _, e := range again {
		p := e.item.Home.(*shelf).p
		if e.message.duplicate || p.lost {
			continue // it was stored before, and is seen
		}
		d := e.item.Delivery
		lanes.Update(&d, e.again)
		q.stored(p, e.message.subject, e.message.seq, &d, len(e.message.data))
	}
	for _, s := range settles {
		for i := range s.ends {
			p := s.ends[i].item.Home.(*shelf).p
			if !p.lost {
				l := open(p)
				l.seqs = append(l.seqs, s.ends[i].item.Seq)
			}
		}
	}
	for _, p := range q.owned {
		if p == nil {
			continue
		}
		// From time to time a record says everything, so that those before need not
		// be kept, nor much be read by who takes over.
		if len(p.owed) > 0 {
			open(p)
		}
		if p.seen >= p.epoch && (p.records >= recordsKept || p.seen > p.recorded+seenKept) {
			l := open(p)
			if seqs := p.unerased(); len(seqs) <= wholeMost {
				l.all = true
				l.seqs = append(l.seqs, seqs...)
			} else {
				p.records = 0 // it is tried again later
			}
		}
	}
	return all
}

const (
	// recordsKept is how many records a partition has before one says everything.
	recordsKept = 128
	// seenKept is how many sequences a partition sees before its next record.
	seenKept = 100_000
	// wholeMost is how much everything is at most, of one to three bytes each: a message of the server
	// has room for it. It is more where the server does not erase.
	wholeMost = 100_000
)

// record stores ledgers.
func (q *Queue) record(all []*ledger) error {
	messages := make([]*message, 0, len(all))
	for _, l := range all {
		slices.Sort(l.seqs)
		l.seqs = slices.Compact(l.seqs)
		l.subject = l.p.prefix + kindDone
		l.header = nats.Header{headerEpoch: {decimal(l.p.epoch)}, headerID: {nuid.Next()}}
		l.data = appendRecord(nil, l.seqs)
		messages = append(messages, &l.message)
	}
	if err := q.publisher.store(q.background, messages...); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range all {
		p := l.p
		p.owed = p.owed[l.owed:]
		p.recorded = l.seq
		p.records++
		if l.all {
			p.records, p.whole = 0, l.seq
		}
	}
	return nil
}

// recordOwed stores what is to be recorded though nothing is settled.
func (q *Queue) recordOwed(ctx context.Context) {
	s := &settle{done: make(chan struct{})}
	q.settles.Add(s, 0)
	select {
	case <-s.done:
	case <-ctx.Done():
	}
}
