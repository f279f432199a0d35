package natsqueue

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// A partition is a part of the destinations, of which this process is the owner.
// What it knows of it is a fold over the messages of the stream in their order;
// what this process stored itself it learns from the answers, before.
type partition struct {
	n      int
	prefix string // of its subjects
	epoch  uint64 // the sequence of the deed
	ready  chan struct{}
	// context ends when the partition is lost.
	context context.Context
	end     context.CancelFunc

	// The rest is guarded by Queue.mu.
	lost     bool
	draining bool
	seen     uint64                 // up to here the messages were read
	held     map[uint64]*lanes.Item // by sequence
	early    map[uint64]struct{}    // what was learned of before it was seen
	settled  map[uint64]struct{}    // what the records say before it was seen
	shelves  map[string]*shelf      // by subject
	done     int                    // settled, and still on the server
	unproven map[uint64]*shelf      // those of them whose record was not seen yet
	proven   map[uint64]struct{}    // those being settled whose record was seen
	owed     []uint64               // settled by messages alone; the next record is to say so
	records  int                    // stored since the last that says everything
	recorded uint64                 // the sequence of the latest record
	whole    uint64                 // that of the latest that says everything
	erased   uint64                 // the records below are erased
	awaited  uint64                 // a sequence that room.take waits to be seen
	reached  chan struct{}          // closed when it is, or the partition is lost; else nil
}

// reach tells room.take. The queue is locked.
func (p *partition) reach() {
	if p.reached != nil {
		close(p.reached)
		p.reached = nil
	}
}

func newPartition(n int, prefix string, epoch uint64) *partition {
	return &partition{
		n: n, prefix: prefix, epoch: epoch, ready: make(chan struct{}),
		held: make(map[uint64]*lanes.Item), early: make(map[uint64]struct{}),
		settled: make(map[uint64]struct{}), shelves: make(map[string]*shelf),
		unproven: make(map[uint64]*shelf), proven: make(map[uint64]struct{}),
	}
}

// shelf returns the shelf of a subject, nil if it is no subject of deliveries.
func (q *Queue) shelf(p *partition, subject string) *shelf {
	if s := p.shelves[subject]; s != nil {
		return s
	}
	name, err := destinationOf(subject[len(p.prefix):])
	if err != nil {
		return nil
	}
	l := q.table.Lane(name)
	h, _ := l.Home.(*home)
	if h == nil || h.p != p {
		h = &home{p: p}
		l.Home = h
	}
	h.known++
	s := &shelf{subject: subject, p: p, lane: l, done: make(map[uint64]struct{}), first: lanes.Last}
	p.shelves[subject] = s
	return s
}

// itemBytes is about what a delivery in memory costs beside its record.
const itemBytes = 256

// arrive takes a delivery that the stream has: into memory if there is room, and it
// is due soon. The queue is locked.
func (q *Queue) arrive(p *partition, s *shelf, seq uint64, d *webhook.Delivery, size int) {
	now := time.Now()
	o := lanes.Order{At: d.Due.UnixMicro(), Seq: seq}
	cost := int64(size) + itemBytes
	if s.away > 0 || d.Due.Sub(now) > soon || q.cached+cost > q.config.CacheBytes {
		s.leave(o)
		q.table.Refresh(s.lane, now.UnixMicro())
		return
	}
	q.hold(s, seq, d, cost)
}

// hold takes a delivery into memory. The queue is locked.
func (q *Queue) hold(s *shelf, seq uint64, d *webhook.Delivery, cost int64) {
	it := &lanes.Item{Delivery: *d, Home: s, Size: cost, Order: lanes.Order{At: d.Due.UnixMicro(), Seq: seq}}
	it.Destination = s.lane.Name
	s.p.held[seq] = it
	s.add(seq)
	q.cached += cost
	q.table.Add(s.lane, it, time.Now().UnixMicro())
}

// strike notes that a message is settled. The queue is locked.
func (q *Queue) strike(s *shelf, seq uint64) {
	if _, ok := s.done[seq]; !ok {
		s.done[seq] = struct{}{}
		s.p.done++
	}
}

// settle takes an item that is settled out of memory. Until it is seen that it is, in the
// order of the messages, it is not erased: another might own the partition by now.
// The queue is locked.
func (q *Queue) settle(it *lanes.Item, seen bool) {
	s, now := it.Home.(*shelf), time.Now().UnixMicro()
	if it.Free() {
		q.table.Expel(s.lane, func(x *lanes.Item) bool { return x == it }, now)
	} else if !it.Gone() {
		q.table.Remove(it, now)
	}
	if s.p.held[it.Seq] == it {
		delete(s.p.held, it.Seq)
		q.cached -= it.Size
		q.strike(s, it.Seq)
		if _, proven := s.p.proven[it.Seq]; proven {
			delete(s.p.proven, it.Seq)
		} else if !seen {
			s.p.unproven[it.Seq] = s
		}
	}
}

// follow reads the messages of p from the first one on, until p is lost.
func (q *Queue) follow(p *partition) {
	t := q.tail(p.prefix+">", 1, func(seq uint64, m *nats.Msg) bool { return q.saw(p, seq, m) })
	told := false
	t.refused = func(err error) { // as where an account has too few consumers
		if !told {
			told = true
			q.config.Logger.Error("natsqueue: the server does not let a partition be read", "partition", p.n, "error", err)
		}
	}
	if err := t.run(p.context); err != nil && p.context.Err() == nil {
		q.config.Logger.Error("natsqueue: a partition is no longer read", "partition", p.n, "error", err)
	}
}

func (q *Queue) tail(subject string, from uint64, take func(uint64, *nats.Msg) bool) *tail {
	return &tail{nc: q.nc, js: q.js, stream: q.config.Stream, subject: subject, next: from, patience: createSoon, take: take, refused: func(error) {}}
}

// saw takes the next message of p, and reports whether more are wanted.
func (q *Queue) saw(p *partition, seq uint64, m *nats.Msg) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p.lost {
		return false
	}
	switch m.Subject[len(p.prefix):] {
	case kindOwner:
		q.sawDeed(p, seq, m.Data)
	case kindDone:
		q.sawRecord(p, seq, m)
	default:
		q.sawDelivery(p, seq, m)
	}
	if p.lost {
		return false
	}
	if p.seen = seq; seq >= p.awaited {
		p.reach()
	}
	if seq == p.epoch {
		clear(p.settled) // of what is no longer there
		close(p.ready)
		q.awake()
	}
	return true
}

func (q *Queue) sawDeed(p *partition, seq uint64, data []byte) {
	if seq <= p.epoch {
		return
	}
	if d, err := parseDeed(data); err == nil && d.Node == "" && p.draining {
		return
	}
	q.yield(p)
	q.govern()
}

func (q *Queue) sawRecord(p *partition, seq uint64, m *nats.Msg) {
	if seq < p.epoch || m.Header.Get(headerEpoch) != fmt.Sprint(p.epoch) {
		return // of those before, which was read, or of one who did not know that he is over
	}
	seqs, err := parseRecord(m.Data)
	if err != nil {
		q.config.Logger.Error("natsqueue: a record cannot be read", "partition", p.n, "sequence", seq, "error", err)
		return
	}
	for _, s := range seqs {
		delete(p.unproven, s)
		if it := p.held[s]; it != nil && it.Settling() {
			p.proven[s] = struct{}{} // the answer is on its way
		} else if it != nil {
			q.settle(it, true) // the answer was lost
		}
	}
}

func (q *Queue) sawDelivery(p *partition, seq uint64, m *nats.Msg) {
	if _, known := p.early[seq]; known {
		delete(p.early, seq)
		return
	}
	s := q.shelf(p, m.Subject)
	if s == nil {
		q.config.Logger.Error("natsqueue: a message has a subject of nobody", "subject", m.Subject, "sequence", seq)
		return
	}
	if _, over := p.settled[seq]; over {
		delete(p.settled, seq)
		q.strike(s, seq)
		return
	}
	o, is, err := originOf(m.Header)
	if err != nil {
		q.config.Logger.Error("natsqueue: a message has an origin that cannot be read", "partition", p.n, "sequence", seq)
	}
	if is {
		if o.epoch < p.epoch && seq > p.epoch {
			q.strike(s, seq) // of one who did not know that he is over
			p.owed = append(p.owed, seq)
			return
		}
		if it := p.held[o.seq]; it != nil && !it.Settling() {
			q.settle(it, true)
			p.owed = append(p.owed, o.seq)
		}
	}
	var d webhook.Delivery
	if err := d.UnmarshalBinary(m.Data); err != nil {
		q.damaged(s, seq, err)
		return
	}
	fresh := seq > p.epoch
	q.arrive(p, s, seq, &d, len(m.Data))
	if fresh {
		q.awake()
	}
}

// damaged keeps a message that cannot be read where it is: a later version may have
// written it. The queue is locked.
func (q *Queue) damaged(s *shelf, seq uint64, err error) {
	q.config.Logger.Error("natsqueue: a delivery cannot be read and is left alone", "partition", s.p.n, "sequence", seq, "error", err)
	if s.damaged == nil {
		s.damaged = make(map[uint64]struct{})
	}
	s.damaged[seq] = struct{}{}
}

// stored tells of a delivery that this process stored. The queue is locked.
func (q *Queue) stored(p *partition, subject string, seq uint64, d *webhook.Delivery, size int) {
	if p.lost || seq <= p.seen {
		return
	}
	if _, known := p.early[seq]; known {
		return
	}
	p.early[seq] = struct{}{}
	q.arrive(p, q.shelf(p, subject), seq, d, size)
}

// yield loses a partition that another process has taken over. The queue is locked.
func (q *Queue) yield(p *partition) {
	if !p.lost {
		q.config.Logger.Warn("natsqueue: another process has taken over a partition", "partition", p.n)
	}
	q.lose(p)
}

// lose ends what this process does for a partition. The queue is locked.
func (q *Queue) lose(p *partition) {
	if p.lost {
		return
	}
	p.lost = true
	if q.owned[p.n] == p {
		q.owned[p.n] = nil
	}
	now := time.Now().UnixMicro()
	for _, s := range p.shelves {
		if h, _ := s.lane.Home.(*home); h == nil || h.p != p {
			continue
		}
		s.lane.Home = nil
		s.lane.Beyond = lanes.Last
		q.table.Expel(s.lane, func(it *lanes.Item) bool { return it.Home.(*shelf).p == p }, now)
	}
	for _, it := range p.held {
		if !it.Gone() && !it.Settling() {
			q.table.Remove(it, now)
		}
		q.cached -= it.Size
	}
	p.held, p.shelves, p.early, p.settled, p.unproven, p.proven = nil, nil, nil, nil, nil, nil
	p.end()
	p.reach()
	select {
	case <-p.ready:
	default:
		close(p.ready)
	}
}

// leases returns how many deliveries of p are leased. The queue is locked.
func (p *partition) leases() int {
	n := 0
	for _, it := range p.held {
		if !it.Waits() && !it.Gone() {
			n++
		}
	}
	return n
}

// unerased returns the sequences that are settled and still on the server, those
// that only messages tell of, and those that were not seen yet, as of a partition that is
// given away before it was read. The queue is locked.
func (p *partition) unerased() []uint64 {
	seqs := slices.Clone(p.owed)
	for seq := range p.settled {
		seqs = append(seqs, seq)
	}
	for _, s := range p.shelves {
		for seq := range s.done {
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	return slices.Compact(seqs)
}

// An account is what the records of a partition say.
type account struct {
	settled  map[uint64]struct{}
	deeds    []uint64
	recorded uint64 // the sequence of the last record
}

// over reports whether what was stored at seq in an epoch came too late.
func (a *account) over(epoch, seq uint64) bool {
	for _, e := range a.deeds {
		if e > epoch && e < seq {
			return true
		}
	}
	return false
}

// audit reads the records of a partition, up to its deed at the sequence until, and
// of the deliveries those after the last record, which it need not know. What cannot be read
// is told and left out: rather is something delivered again than nothing.
func (q *Queue) audit(ctx context.Context, prefix string, until uint64) (*account, error) {
	a := &account{settled: make(map[uint64]struct{})}
	err := q.readUntil(ctx, prefix+"*", 1, until, func(m *stored) {
		if err := a.read(m, m.subject[len(prefix):] == kindOwner); err != nil {
			q.config.Logger.Error("natsqueue: a record cannot be read", "subject", m.subject, "sequence", m.seq, "error", err)
		}
	})
	if err != nil {
		return nil, err
	}
	err = q.readUntil(ctx, prefix+">", a.recorded+1, until, func(m *stored) {
		o, is, _ := originOf(m.header) // sawDelivery tells of an error
		if is && !a.over(o.epoch, m.seq) {
			a.settled[o.seq] = struct{}{}
		} else if is {
			a.settled[m.seq] = struct{}{}
		}
	})
	return a, err
}

// read takes a record, or the one in a deed.
func (a *account) read(m *stored, isDeed bool) error {
	record := m.data
	if isDeed {
		a.deeds = append(a.deeds, m.seq)
		d, err := parseDeed(m.data)
		if err != nil || len(d.Settled) == 0 {
			return err
		}
		record = d.Settled
	} else {
		epoch, err := strconv.ParseUint(m.header.Get(headerEpoch), 10, 64)
		if err != nil {
			return err
		}
		if a.over(epoch, m.seq) {
			return nil
		}
	}
	seqs, err := parseRecord(record)
	if err != nil {
		return err
	}
	for _, seq := range seqs {
		a.settled[seq] = struct{}{}
	}
	if !isDeed {
		a.recorded = m.seq
	}
	return nil
}

// auditBatch is how many messages readUntil reads at a time, at most.
const auditBatch = 1024

// readUntil calls fn with the messages under the subjects from a sequence on, before
// one which is there. It does without a consumer, which might be put on a server that
// is out of reach.
func (q *Queue) readUntil(ctx context.Context, subjects string, from, until uint64, fn func(*stored)) error {
	for {
		pages, err := q.reader.read(ctx, q.config.Stream, request{Batch: auditBatch, MaxBytes: fetchBytes, Seq: from, Next: subjects})
		if err != nil {
			return err
		}
		for i := range pages[0] {
			m := &pages[0][i]
			if m.seq >= until {
				return nil
			}
			fn(m)
			from = m.seq + 1
		}
		if len(pages[0]) > 0 {
			continue
		}
		timer := time.NewTimer(behind) // the replica does not have it yet
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}
