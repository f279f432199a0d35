package natsqueue

import (
	"context"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A partition is a part of the destinations, of which this node is the owner. What it knows
// of it is a fold over the messages of the partition in their order, and what it has written
// itself since.
type partition struct {
	n      int
	prefix string // of its subjects
	epoch  uint64 // the sequence of the owner's first record
	ready  chan struct{}
	// context ends when the partition is lost.
	context context.Context
	end     context.CancelFunc

	// The rest is guarded by Store.mu.
	lost     bool
	draining bool              // it is about to be given to another node
	seen     uint64            // up to here the messages were read
	cursor   uint64            // that of the latest record, and later the last put that was looked at
	last     uint64            // the sequence of the owner's latest record
	records  int               // since the one that was whole
	whole    uint64            // the sequence of the latest record that was whole
	drops    []ref             // duplicates that no record tells of yet
	blocks   map[uint64]*block // by sequence
	order    []*block          // by sequence; those that are erased may be among them
	idle     []*block          // of which nothing waits any more
	ends     int               // entries that ended since the last look for sparse blocks
	keys     []keyMessage      // in the order of their sequences
}

// A block is a message that has deliveries, or had them. Records have none often.
type block struct {
	seq     uint64
	p       *partition
	own     bool // a record of the owner
	judged  bool // its deliveries are known not to be duplicates
	erased  bool
	keys    []storekit.Key // a zero one is not to be remembered
	entries []*entry       // nil for what has ended
	left    int            // entries that are not nil
	asker   *chunk         // who waits for an answer, before the partition is read
}

// open reports whether the partition is read, and is to be fetched from.
func (p *partition) open() bool {
	select {
	case <-p.ready:
		return !p.lost && !p.draining
	default:
		return false
	}
}

// follow reads the messages of p from the first one on, until p is lost.
func (s *Store) follow(p *partition) {
	told := false
	t := &tail{nc: s.nc, js: s.js, stream: s.config.Stream, subject: p.prefix + ">", next: 1, patience: createSoon,
		take: func(seq uint64, m *nats.Msg) bool { return s.saw(p, seq, m) },
		refused: func(err error) { // as where an account has too few consumers
			if !told {
				told = true
				s.config.Logger.Error("natsqueue: the server does not let a partition be read, so its deliveries wait", "partition", p.n, "error", err)
			}
		}}
	if err := t.run(p.context); err != nil && p.context.Err() == nil {
		s.config.Logger.Error("natsqueue: a partition is no longer read, so its deliveries wait", "partition", p.n, "error", err)
	}
}

// saw takes the next message of p, and reports whether more are wanted.
func (s *Store) saw(p *partition, seq uint64, m *nats.Msg) bool {
	kind := m.Subject[len(p.prefix):]
	var c *chunk
	var r *record
	var err error
	switch kind {
	case kindPut:
		c, err = parseChunk(m.Data)
	case kindOwn:
		if r, err = parseRecord(m.Data); err == nil {
			c = &r.chunk
		}
	}
	var ds []*webhook.Delivery
	if c != nil && (kind == kindPut || seq < p.epoch) {
		ds = s.decode(p, seq, c)
	}
	var dups []byte
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.lost {
		return false
	}
	switch {
	case err != nil:
		s.config.Logger.Error("natsqueue: a message cannot be read and is left alone; deliveries in it are not attempted",
			"partition", p.n, "sequence", seq, "error", err)
		if kind == kindPut || seq < p.epoch {
			s.spoiled(p, seq, kind == kindOwn)
		}
	case kind == kindPut:
		b := s.arrive(p, seq, false, c, ds)
		if seq > p.epoch {
			dups = s.judge(b, c)
			p.cursor = seq
		} else if !b.judged {
			b.asker = &chunk{node: strings.Clone(c.node), number: c.number}
		}
	case kind == kindKey:
		s.sawKeys(p, seq, m)
	case kind == kindOwn && seq < p.epoch:
		s.sawRecord(p, r)
		s.arrive(p, seq, true, c, ds)
		p.records++
		if r.whole {
			p.records, p.whole = 0, seq
		}
	case kind == kindOwn && seq == p.epoch:
		s.sawRecord(p, r)
		s.arrive(p, seq, true, c, nil)
		s.loaded(p)
	case kind == kindOwn && r.node == "": // it was given away
		s.lose(p)
	case kind == kindOwn && r.node != s.id:
		s.yield(p)
	}
	if p.lost {
		return false
	}
	p.seen = seq
	if dups != nil {
		s.answer(c, dups)
	}
	return true
}

// answer tells who put a chunk what of it is duplicate. The store is locked.
func (s *Store) answer(c *chunk, dups []byte) {
	if c.node == s.id {
		s.answered(c.number, dups)
	} else {
		s.nc.Publish(s.config.ask("put."+c.node), putAnswer(c.number, dups))
	}
}

// decode reads the deliveries of a chunk. Those that cannot be read are nil.
func (s *Store) decode(p *partition, seq uint64, c *chunk) []*webhook.Delivery {
	ds := make([]*webhook.Delivery, len(c.records))
	for i, r := range c.records {
		d := new(webhook.Delivery)
		if err := d.UnmarshalBinary(r); err != nil || d.Destination == "" {
			s.config.Logger.Error("natsqueue: a delivery cannot be read and is left alone", "partition", p.n, "sequence", seq, "place", i, "error", err)
			continue
		}
		ds[i] = d
	}
	return ds
}

// block adds the block of a message with n deliveries. The store is locked.
func (p *partition) block(seq uint64, own bool, n int) *block {
	b := &block{seq: seq, p: p, own: own, keys: make([]storekit.Key, n), entries: make([]*entry, n), left: n}
	p.blocks[seq] = b
	i := len(p.order)
	for i > 0 && p.order[i-1].seq > seq {
		i--
	}
	p.order = slices.Insert(p.order, i, b)
	if n == 0 {
		p.idle = append(p.idle, b)
	}
	return b
}

// arrive takes the deliveries of a message, which are in no queue yet. The store is locked.
func (s *Store) arrive(p *partition, seq uint64, own bool, c *chunk, ds []*webhook.Delivery) *block {
	b := p.block(seq, own, len(ds))
	b.judged = own || c.revived
	for i, d := range ds {
		e := &entry{block: b, i: uint32(i), damaged: d == nil}
		if b.entries[i] = e; d != nil {
			b.keys[i] = storekit.KeyOf(d.Destination, d.ID)
			l := s.lanes[d.Destination]
			if l == nil {
				l = &lane{name: strings.Clone(d.Destination), p: p}
				s.lanes[l.name] = l
			}
			e.lane, d.Destination = l, l.name
			l.waiting++
			s.fill(e, d)
			s.cache.add(e)
		}
	}
	return b
}

// spoiled keeps a message that cannot be read from being erased. The store is locked.
func (s *Store) spoiled(p *partition, seq uint64, own bool) {
	b := p.block(seq, own, 1)
	b.entries[0], b.judged = &entry{block: b, damaged: true}, true
}

// fill has e tell of d. The store is locked.
func (s *Store) fill(e *entry, d *webhook.Delivery) {
	s.serial++
	e.due, e.retry, e.order = d.Due.UnixMicro(), !d.Expires.IsZero(), s.serial
	e.size, e.user, e.delivery = uint32(len(d.Body)), hash(d.User), d
}

// judge has the deliveries of b wait that were not put before, and returns a bit for each of
// those that were. The store is locked.
func (s *Store) judge(b *block, c *chunk) []byte {
	var mine []*item
	if x := s.parts[c.number]; x != nil && c.node == s.id {
		mine = x.items
	}
	dups := make([]byte, (len(b.entries)+7)/8)
	at := now()
	for i, e := range b.entries {
		if e == nil || e.damaged {
			continue
		}
		if !s.seen.Add(b.keys[i], at) && !b.judged {
			s.leaveOut(b, i, dups)
			continue
		}
		ours := i < len(mine) && mine[i].put != nil && mine[i].put.called && !mine[i].put.over
		if ours && mine[i].keep && e.delivery != nil && b.p.open() && s.lapsed() == nil {
			mine[i].Claim = s.claim(e)
			continue
		}
		e.lane.push(e)
		if !ours {
			s.tell(e.lane.name)
		}
	}
	b.judged = true
	return dups
}

// leaveOut ends the duplicate i of b, and notes it in dups. The store is locked.
func (s *Store) leaveOut(b *block, i int, dups []byte) {
	dups[i/8] |= 1 << (i % 8)
	b.p.drops = append(b.p.drops, ref{b.seq, uint32(i)})
	b.keys[i] = storekit.Key{}
	s.remove(b.entries[i])
}

// remove ends e, which does not wait any more. The store is locked.
func (s *Store) remove(e *entry) {
	s.cache.leave(e)
	s.unclaim(e)
	e.gone = true
	if l := e.lane; l != nil {
		if l.waiting--; l.waiting == 0 {
			delete(s.lanes, l.name)
		}
	}
	e.block.drop(e)
}

// drop takes e out of b, which is its block. The store is locked.
func (b *block) drop(e *entry) {
	b.entries[e.i] = nil
	b.p.ends++
	if b.left--; b.left == 0 {
		b.p.idle = append(b.p.idle, b)
	}
}

// claim gives e, which is in no queue, a claim. The store is locked.
func (s *Store) claim(e *entry) uint64 {
	s.serial++
	e.claim = s.serial
	s.claims[e.claim] = e
	e.lane.claimed++
	s.cache.leave(e)
	return e.claim
}

// unclaim ends the claim of e, if it has one. The store is locked.
func (s *Store) unclaim(e *entry) {
	if e.claim != 0 {
		delete(s.claims, e.claim)
		e.claim = 0
		e.lane.claimed--
	}
}

// putBack ends the claim of e, which waits again. The store is locked.
func (s *Store) putBack(e *entry) {
	s.unclaim(e)
	e.lane.push(e)
	if e.delivery != nil {
		s.cache.add(e)
	}
}

// sawRecord takes a record of an owner before. The store is locked.
func (s *Store) sawRecord(p *partition, r *record) {
	p.cursor = max(p.cursor, r.cursor)
	end := func(x ref, drop bool) {
		b := p.blocks[x.seq]
		if b == nil || int(x.i) >= len(b.entries) || b.entries[x.i] == nil || b.entries[x.i].damaged {
			return
		}
		if drop {
			b.keys[x.i] = storekit.Key{}
		}
		s.remove(b.entries[x.i])
	}
	for _, x := range r.drops {
		end(x, true)
	}
	for _, x := range r.ends {
		end(x, false)
	}
}

// loaded begins to hand out what is known of p, of which all messages up to the epoch were
// read. The store is locked.
func (s *Store) loaded(p *partition) {
	at := now()
	each := func(which func(*block) bool, do func(*block, int, *entry)) {
		for _, b := range p.order {
			if !which(b) {
				continue
			}
			for i, e := range b.entries {
				if e == nil || !e.damaged {
					do(b, i, e)
				}
			}
		}
	}
	// First what is not in question: so a put that nobody has looked at yet is no duplicate of
	// itself.
	known := func(b *block) bool { return b.judged || b.seq <= p.cursor }
	each(func(*block) bool { return true }, func(b *block, i int, e *entry) {
		if (e == nil || known(b)) && b.keys[i] != (storekit.Key{}) {
			s.seen.Add(b.keys[i], at)
		}
	})
	for _, b := range p.order {
		if known(b) {
			continue
		}
		dups := make([]byte, (len(b.entries)+7)/8)
		for i, e := range b.entries {
			if e != nil && !e.damaged && !s.seen.Add(b.keys[i], at) {
				s.leaveOut(b, i, dups)
			}
		}
		s.answer(b.asker, dups)
	}
	each(func(*block) bool { return true }, func(b *block, _ int, e *entry) {
		b.judged, b.asker = true, nil
		if e != nil {
			e.lane.push(e)
			s.tell(e.lane.name)
		}
	})
	p.cursor = max(p.cursor, p.seen)
	close(p.ready)
}

// yield loses a partition that another node has taken over. The store is locked.
func (s *Store) yield(p *partition) {
	if !p.lost {
		s.config.Logger.Warn("natsqueue: another node has taken over a partition; what this one is attempting of it is attempted again", "partition", p.n)
	}
	s.lose(p)
	s.govern()
}

// lose ends what this node does for a partition. The store is locked.
func (s *Store) lose(p *partition) {
	if p.lost {
		return
	}
	p.lost = true
	if s.owned[p.n] == p {
		s.owned[p.n] = nil
	}
	for _, b := range p.blocks {
		for i, e := range b.entries {
			if e == nil {
				continue
			}
			s.seen.Remove(b.keys[i]) // else it is a duplicate of itself if this node owns p again
			s.cache.leave(e)
			delete(s.claims, e.claim)
			if l := e.lane; l != nil && s.lanes[l.name] == l {
				delete(s.lanes, l.name)
				s.tell(l.name)
			}
		}
	}
	p.blocks, p.order, p.idle, p.keys = nil, nil, nil, nil
	p.end()
	select {
	case <-p.ready:
	default:
		close(p.ready)
	}
}
