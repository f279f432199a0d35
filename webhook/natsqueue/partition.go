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
	*index
	n      int
	prefix string // of its subjects
	epoch  uint64 // the sequence of the owner's first record
	ready  chan struct{}
	// context ends when the partition is lost.
	context context.Context
	end     context.CancelFunc

	// The rest is guarded by index.mu.
	lost     bool
	draining bool              // it is about to be given to another node
	read     uint64            // up to here the messages were read
	cursor   uint64            // that of the latest record, and later the last put that was looked at
	last     uint64            // the sequence of the owner's latest record
	drops    []ref             // duplicates that no record tells of yet
	blocks   map[uint64]*block // by sequence
	order    []*block          // the same, in the order of their sequences
	bytes    int64             // of the blocks
	alive    int64             // of the entries that wait
	keys     []keyMessage      // in the order of their sequences
}

// A block is a message of the log. It has deliveries, or had them; records have none often.
type block struct {
	seq     uint64
	p       *partition
	size    int64
	judged  bool           // its deliveries are known not to be duplicates
	damaged bool           // the message cannot be read; it is a single entry
	erase   bool           // it has bytes of a user who is erased
	own     bool           // it is a record, so others have ended by what it says
	carried bool           // a later record says that, too
	keys    []storekit.Key // a zero one is not to be remembered
	noDedup []bool         // which of them the dedup window leaves out; nil for none
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
func (p *partition) follow() {
	told := false
	t := &tail{nc: p.nc, js: p.js, stream: p.config.Stream, subject: p.prefix + ">", next: 1, patience: createSoon, take: p.saw,
		refused: func(err error) { // as where an account has too few consumers
			if !told {
				told = true
				p.config.Logger.Error("natsqueue: the server does not let a partition be read, so its deliveries wait", "partition", p.n, "error", err)
			}
		}}
	if err := t.run(p.context); err != nil && p.context.Err() == nil {
		p.config.Logger.Error("natsqueue: a partition is no longer read, so its deliveries wait", "partition", p.n, "error", err)
	}
}

// saw takes the next message of p, and reports whether more are wanted.
func (p *partition) saw(seq uint64, m *nats.Msg) bool {
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
	if err != nil {
		p.config.Logger.Error("natsqueue: a message cannot be read and is set aside; deliveries in it are not attempted",
			"partition", p.n, "sequence", seq, "error", err)
		c = &chunk{revived: true, records: [][]byte{nil}}
	}
	first := uint64(0)
	if seq == p.epoch {
		if first, err = p.first(); err != nil {
			return false
		}
	}
	var ds []*webhook.Delivery
	if c != nil && (kind == kindPut || seq < p.epoch) {
		ds = p.decode(seq, c)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost {
		return false
	}
	switch {
	case kind == kindKey:
		p.sawKeys(seq, m)
	case kind == kindPut, seq < p.epoch:
		if r != nil {
			p.sawRecord(r)
		}
		b := p.arrive(seq, len(m.Data), kind == kindOwn, c, ds)
		b.damaged = err != nil
		if seq > p.epoch {
			dups := p.judge(b, c)
			p.cursor = seq
			p.answer(c, dups)
		} else if !b.judged {
			b.asker = &chunk{node: strings.Clone(c.node), number: c.number}
		}
	case seq == p.epoch:
		p.arrive(seq, len(m.Data), true, c, nil)
		p.loaded(first)
	case r == nil: // the next record of this node finds out whose it is
	case r.node == "": // it was given away
		p.lose()
	case r.node != p.id:
		p.yield()
	}
	if p.lost {
		return false
	}
	p.read = seq
	return true
}

// decode reads the deliveries of a chunk. Those that cannot be read are nil.
func (p *partition) decode(seq uint64, c *chunk) []*webhook.Delivery {
	ds := make([]*webhook.Delivery, len(c.records))
	for i, r := range c.records {
		if r == nil { // of a message that cannot be read
			continue
		}
		d := new(webhook.Delivery)
		if err := d.UnmarshalBinary(r); err != nil || d.Destination == "" {
			p.config.Logger.Error("natsqueue: a delivery cannot be read and is set aside", "partition", p.n, "sequence", seq, "place", i, "error", err)
			continue
		}
		ds[i] = d
	}
	return ds
}

// block adds the block of a message with n deliveries. The store is locked.
func (p *partition) block(seq uint64, size, n int) *block {
	b := &block{seq: seq, p: p, size: int64(size), keys: make([]storekit.Key, n), entries: make([]*entry, n)}
	p.blocks[seq] = b
	p.bytes += b.size
	i := len(p.order)
	for i > 0 && p.order[i-1].seq > seq {
		i--
	}
	p.order = slices.Insert(p.order, i, b)
	return b
}

// leaveToRepeat keeps the entry i of b out of the dedup window. The store is locked.
func (b *block) leaveToRepeat(i int) {
	if b.noDedup == nil {
		b.noDedup = make([]bool, len(b.keys))
	}
	b.noDedup[i] = true
}

// dedupKey is the key of the entry i of b in the dedup window, zero if it is not in there. The
// store is locked.
func (b *block) dedupKey(i int) storekit.Key {
	if b.noDedup != nil && b.noDedup[i] {
		return storekit.Key{}
	}
	return b.keys[i]
}

// set has e be the entry i of b. The store is locked.
func (b *block) set(i int, e *entry) {
	e.block, e.i = b, uint32(i)
	b.entries[i] = e
	b.left++
	b.p.alive += e.bytes()
}

// drop takes e out of b, which is its block. The store is locked.
func (b *block) drop(e *entry) {
	b.entries[e.i] = nil
	b.left--
	b.p.alive -= e.bytes()
}

// arrive takes the deliveries of a message, which are in no queue yet. The store is locked.
func (p *partition) arrive(seq uint64, size int, own bool, c *chunk, ds []*webhook.Delivery) *block {
	b := p.block(seq, size, len(ds))
	b.own, b.judged = own, own || c.revived
	for i, d := range ds {
		e := &entry{damaged: d == nil}
		if d == nil {
			b.set(i, e)
			continue
		}
		b.keys[i] = storekit.KeyOf(d.Destination, d.ID)
		if c.noDedup {
			b.leaveToRepeat(i)
		}
		l := p.lanes[d.Destination]
		if l == nil {
			l = &lane{name: strings.Clone(d.Destination), p: p}
			p.lanes[l.name] = l
		}
		e.lane, e.stored, d.Destination = l, uint32(len(c.records[i])), l.name
		l.waiting++
		p.fill(e, d)
		b.set(i, e)
		p.cache.add(e)
	}
	return b
}

// judge has the deliveries of b wait that were not put before, and returns a bit for each of
// those that were. The store is locked.
func (p *partition) judge(b *block, c *chunk) []byte {
	var mine []*item
	if x := p.parts[c.number]; x != nil && c.node == p.id {
		mine = x.items
	}
	dups := make([]byte, (len(b.entries)+7)/8)
	at := now()
	for i, e := range b.entries {
		if e == nil || e.damaged {
			continue
		}
		if k := b.dedupKey(i); k != (storekit.Key{}) && !p.seen.Add(k, at) && !b.judged {
			p.leaveOut(b, i, dups)
			continue
		}
		ours := i < len(mine) && mine[i].put != nil && mine[i].put.called && !mine[i].put.over
		if ours && mine[i].keep && e.delivery != nil && p.open() && p.lapsed() == nil {
			mine[i].Claim = p.claim(e)
			continue
		}
		e.lane.push(e)
		if !ours {
			p.tell(e.lane.name)
		}
	}
	b.judged = true
	return dups
}

// leaveOut ends the duplicate i of b, and notes it in dups. The store is locked.
func (p *partition) leaveOut(b *block, i int, dups []byte) {
	dups[i/8] |= 1 << (i % 8)
	p.drops = append(p.drops, ref{b.seq, uint32(i)})
	b.keys[i] = storekit.Key{}
	p.remove(b.entries[i])
}

// sawRecord takes a record of an owner before. The store is locked.
func (p *partition) sawRecord(r *record) {
	p.cursor = max(p.cursor, r.cursor)
	end := func(x ref, drop bool) {
		b := p.blocks[x.seq]
		if b == nil || int(x.i) >= len(b.entries) || b.entries[x.i] == nil {
			return
		}
		if drop {
			b.keys[x.i] = storekit.Key{}
		}
		p.remove(b.entries[x.i])
	}
	for _, x := range r.drops {
		end(x, true)
	}
	for _, x := range r.ends {
		end(x, false)
	}
}

// first returns the sequence of the first message of the log, as the leader has it.
func (p *partition) first() (uint64, error) {
	for {
		seq, _, err := p.get(p.context, request{Seq: 1, Next: p.prefix + "log.*"})
		if err == nil || p.context.Err() != nil {
			return seq, err
		}
		if err := sleep(p.context, pause); err != nil {
			return 0, err
		}
	}
}

// loaded begins to hand out what is known of p, of which all messages up to the epoch were
// read. The owner before may have purged some of them since, with the records that say what has
// ended: so all has ended that is before first. The store is locked.
func (p *partition) loaded(first uint64) {
	at := now()
	// First what is not in question: so a put that nobody has looked at yet is no duplicate of
	// itself.
	for _, b := range p.order {
		known := b.judged || b.seq <= p.cursor || b.seq < first
		for i, e := range b.entries {
			if e != nil && b.seq < first {
				p.remove(e)
				e = nil
			}
			if k := b.dedupKey(i); (e == nil || known) && k != (storekit.Key{}) {
				p.seen.Add(k, at)
			}
		}
		b.judged = known
	}
	for _, b := range p.order {
		dups := make([]byte, (len(b.entries)+7)/8)
		for i, e := range b.entries {
			k := b.dedupKey(i)
			switch {
			case e == nil || e.damaged:
			case !b.judged && k != (storekit.Key{}) && !p.seen.Add(k, at):
				p.leaveOut(b, i, dups)
			default:
				e.lane.push(e)
				p.tell(e.lane.name)
			}
		}
		if !b.judged {
			p.answer(b.asker, dups)
		}
		b.judged, b.asker = true, nil
	}
	p.cursor = max(p.cursor, p.read)
	close(p.ready)
}

// claimed reports whether something in p is claimed. The store is locked.
func (p *partition) claimed() bool {
	for _, e := range p.claims {
		if e.block.p == p {
			return true
		}
	}
	return false
}

// tellAll has Heads yield the lanes of p. The store is locked.
func (p *partition) tellAll() {
	for name, l := range p.lanes {
		if l.p == p {
			p.tell(name)
		}
	}
}

// yield loses a partition that another node has taken over. The store is locked.
func (p *partition) yield() {
	if !p.lost {
		p.config.Logger.Warn("natsqueue: another node has taken over a partition; what this one is attempting of it is attempted again", "partition", p.n)
	}
	p.lose()
	p.govern()
}

// lose ends what this node does for a partition. The store is locked.
func (p *partition) lose() {
	if p.lost {
		return
	}
	p.lost = true
	if p.owned[p.n] == p {
		p.owned[p.n] = nil
	}
	for _, b := range p.order {
		for i, e := range b.entries {
			if e == nil {
				continue
			}
			if k := b.dedupKey(i); b.judged && k != (storekit.Key{}) {
				p.seen.Remove(k) // else it is a duplicate of itself if this node owns p again
			}
			p.cache.leave(e)
			delete(p.claims, e.claim)
			if l := e.lane; l != nil && p.lanes[l.name] == l {
				delete(p.lanes, l.name)
				p.tell(l.name)
			}
		}
	}
	p.blocks, p.order, p.keys = nil, nil, nil
	p.end()
	select {
	case <-p.ready:
	default:
		close(p.ready)
	}
}
