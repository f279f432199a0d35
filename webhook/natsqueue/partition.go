package natsqueue

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook/store"
)

// A state is the state of a partition of this node. The package comment draws the transitions.
type state uint8

const (
	reading  state = iota // this node reads the log up to its own first record
	open                  // Fetch returns its deliveries
	draining              // Fetch returns none, so that the partition can be given to another node
	lost                  // another node owns the partition, or may
)

// A partition is a share of the destinations, owned by this node. Its fields follow from the messages
// of the stream, read in order, and from the records that this node has written since.
type partition struct {
	conn   *conn
	index  *index
	set    *partitions
	n      int
	prefix string          // of its subjects
	epoch  uint64          // the sequence of this node's first record
	ready  chan struct{}   // closed when state is no longer reading
	listed chan struct{}   // closed when the lists of the lanes have the dead letters, too
	live   context.Context // ends when the partition is lost
	end    context.CancelFunc
	// replies are the replies of judge to other nodes. Only the goroutine that reads messages uses
	// them.
	replies []*nats.Msg

	// The rest is guarded by index.mu.
	state   state
	claimed int
	read    uint64 // messages up to this sequence have been read
	cursor  uint64 // puts up to this sequence have been checked for duplicates
	last    uint64 // the sequence of this node's latest record
	dropped []ref  // duplicates that are not in a record yet
	lanes   map[string]*lane
	order   []*block         // by sequence
	keys    []keyMessage     // by sequence
	bytes   int64            // bytes of the blocks
	alive   int64            // bytes of the waiting entries
	busy    map[*letter]bool // see take
	erased  uint64           // messages up to this sequence have bytes of an erased user
}

// A block is a message of the log.
type block struct {
	seq     uint64
	p       *partition
	size    int64
	judged  bool        // its deliveries are known to be no duplicates
	damaged bool        // the message, or a delivery in it, cannot be read
	keys    []store.Key // of the deliveries; zero for one whose key is not in the dedup window
	entries []*entry    // nil for a delivery that has ended or cannot be read
	left    int         // how many entries are not nil
	putBy   string      // the node that put it and waits for the answer; empty once it is answered
	serial  uint64      // of the put, by the count of that node
}

// saw processes the next message of p, and sends the replies of judge. It reports whether p needs more
// messages.
func (p *partition) saw(seq uint64, m *nats.Msg) bool {
	more := p.process(seq, m)
	for _, reply := range p.replies {
		p.conn.nc.PublishMsg(reply)
	}
	p.replies = nil
	return more
}

// process is saw without the replies.
func (p *partition) process(seq uint64, m *nats.Msg) bool {
	kind := m.Subject[len(p.prefix):]
	var r *record
	var err error
	if kind == kindPut || kind == kindOwn {
		if r, err = parseRecord(m.Data); err != nil {
			p.conn.config.Logger.Error("natsqueue: a message cannot be read and is set aside; its deliveries are not attempted",
				"partition", p.n, "sequence", seq, "error", err)
			r = new(record)
		}
	}
	damaged := err != nil
	var first held // of the log
	if seq == p.epoch {
		if first, err = p.get(request{Seq: 1, Next: p.prefix + "log.*"}); err != nil {
			return false
		}
	}
	var ds []*store.Delivery
	if r != nil && (kind == kindPut || seq < p.epoch) {
		for i, b := range r.records {
			ds = append(ds, p.decode(seq, i, b.data))
		}
	}
	p.index.mu.Lock()
	defer p.index.mu.Unlock()
	if p.state == lost {
		return false
	}
	switch {
	case kind == kindKey:
		p.keys = append(p.keys, keyMessage{seq, len(m.Data) / 16})
		// The previous owner may have stored keys after the epoch.
		for k := range slices.Chunk(m.Data[:len(m.Data)/16*16], 16) {
			p.set.seen.Add(store.Key(k), now())
		}
	case kind == kindPut, kind == kindOwn && seq < p.epoch:
		b := p.arrive(seq, len(m.Data), r, ds)
		b.damaged, b.judged = b.damaged || damaged, kind == kindOwn
		if b.judged {
			p.sawRecord(r)
		}
		if seq > p.epoch {
			p.judge(b)
			p.cursor = seq
		}
		p.index.hold(b.entries...)
	case kind == kindOwn && seq == p.epoch:
		p.block(seq, len(m.Data), 0)
		p.loaded(first.Sequence)
	case kind != kindOwn || damaged:
	case r.node == "": // this node gave p away
		p.lose()
	case r.node != p.conn.id:
		p.yield()
	}
	p.read = seq
	return p.state != lost
}

// decode reads the delivery i of the message with the sequence seq. It returns nil if the delivery
// cannot be read. The Seq of a delivery follows from the first message that had it: only when it is
// stored again, its record has the Seq.
func (p *partition) decode(seq uint64, i int, record []byte) *store.Delivery {
	d := new(store.Delivery)
	err := d.UnmarshalBinary(record)
	if err != nil || d.Destination == "" {
		p.conn.config.Logger.Error("natsqueue: a delivery cannot be read and is set aside; it is not attempted", "partition", p.n, "sequence", seq, "place", i, "error", err)
		return nil
	}
	if d.Seq == 0 {
		d.Seq = seq*blockLen + uint64(i)
	}
	return d
}

// search returns the index in p.order of the block with the sequence seq, and whether there is such
// a block. The index is locked.
func (p *partition) search(seq uint64) (int, bool) {
	return slices.BinarySearchFunc(p.order, seq, func(b *block, seq uint64) int { return cmp.Compare(b.seq, seq) })
}

// block adds the block of a message with n deliveries. The index is locked.
func (p *partition) block(seq uint64, size, n int) *block {
	b := &block{seq: seq, p: p, size: int64(size), keys: make([]store.Key, n), entries: make([]*entry, n)}
	p.bytes += b.size
	i, _ := p.search(seq)
	p.order = slices.Insert(p.order, i, b)
	return b
}

// set makes e the entry i of b. The index is locked.
func (b *block) set(i int, e *entry) {
	e.block, e.i = b, uint32(i)
	b.entries[i] = e
	b.left++
	b.p.alive += e.bytes()
	e.lane.bytes += e.bytes()
}

// drop removes e from b, its block. The index is locked.
func (b *block) drop(e *entry) {
	b.entries[e.i] = nil
	b.p.alive -= e.bytes()
	e.lane.bytes -= e.bytes()
	b.left--
}

// arrive adds a block with an entry for each delivery of a message. The entries are in no queue
// yet. The index is locked.
func (p *partition) arrive(seq uint64, size int, r *record, ds []*store.Delivery) *block {
	b := p.block(seq, size, len(ds))
	b.putBy, b.serial = r.node, r.serial
	for i, d := range ds {
		if d == nil {
			b.damaged = true
			continue
		}
		l := p.lane(d.Destination)
		d.Destination = l.name
		l.waiting++
		e := &entry{lane: l, stored: uint32(len(r.records[i].data)), key: store.KeyOf(d.Destination, d.ID)}
		if !r.records[i].noDedup {
			b.keys[i] = e.key
		}
		p.index.describe(e, d)
		b.set(i, e)
		l.join(e, d.Key)
		if p.state != reading {
			l.enter(place{seq: e.seq, entry: e})
		}
	}
	return b
}

// lane returns the lane of a destination. It makes the lane if there is none. The index is locked.
func (p *partition) lane(destination string) *lane {
	l := p.index.lanes[destination]
	if l == nil {
		l = &lane{name: strings.Clone(destination), p: p}
		p.index.lanes[l.name], p.lanes[l.name] = l, l
	}
	return l
}

// judge looks for duplicates among the deliveries of b, and queues the others, or puts them behind
// others with their keys. The node that put the deliveries gets a reply that says so. The index is
// locked.
func (p *partition) judge(b *block) {
	var own []*item // items that calls of this node wait for
	if x := p.set.answers.awaited[b.serial]; x != nil && b.putBy == p.conn.id {
		own = x.items
	}
	verdicts := make([]byte, (len(b.entries)+3)/4) // two bits each
	at := now()
	for i, e := range b.entries {
		if e == nil {
			continue
		}
		if k := b.keys[i]; !b.judged && k != (store.Key{}) && !p.set.seen.Add(k, at) {
			verdicts[i/4] |= isDuplicate << (i % 4 * 2)
			p.dropped = append(p.dropped, ref{b.seq, uint32(i)})
			b.keys[i] = store.Key{}
			p.index.remove(e, false)
			continue
		}
		if e.lane.follow(e); e.behind {
			verdicts[i/4] |= isBehind << (i % 4 * 2)
			continue
		}
		// A caller of Put learns from the result that the delivery waits, so Heads need not yield the
		// lane. A caller of Revive does not learn it.
		known := i < len(own) && own[i].put.once == "" && own[i].put.left > 0
		if known && own[i].keep && p.state == open && p.set.lease.lapsed() == nil {
			own[i].Claim = p.index.claim(e)
			continue
		}
		if !known {
			p.index.tell(e.lane.name)
		}
	}
	switch {
	case b.judged || b.putBy == "":
	case b.putBy == p.conn.id:
		p.set.answers.heard(b.serial, verdicts)
	default:
		p.replies = append(p.replies, &nats.Msg{Subject: p.conn.config.ask("put." + b.putBy), Data: append(binary.AppendUvarint(nil, b.serial), verdicts...)})
	}
	b.judged, b.putBy = true, ""
}

// sawRecord processes a record of an earlier owner. The index is locked.
func (p *partition) sawRecord(r *record) {
	p.cursor = max(p.cursor, r.cursor)
	for _, x := range r.ends {
		if x.i == erasedUpTo {
			p.erased = max(p.erased, x.seq)
		} else if at, ok := p.search(x.seq); ok {
			if b := p.order[at]; int(x.i) < len(b.entries) && b.entries[x.i] != nil {
				p.index.remove(b.entries[x.i], false)
			}
		}
	}
}

// get returns a message as the leader has it. An error means that p is lost.
func (p *partition) get(r request) (held, error) {
	for {
		m, err := p.conn.get(p.live, r)
		if err == nil || sleep(p.live, pause) != nil {
			return m, err
		}
	}
}

// loaded opens p after all messages up to p.epoch, the first record of this node, have been read.
// During the reading, the previous owner may have purged messages, together with the records that
// ended their deliveries. first is the sequence of the first message that is left, so every
// delivery before it has ended. The index is locked.
func (p *partition) loaded(first uint64) {
	at := now()
	// Earlier owners have judged some of the deliveries, that is, looked for duplicates of them. Their
	// keys have to be in the dedup window before this node judges the others. judge adds the key of
	// each of the others itself, and takes a delivery whose key it finds for a duplicate.
	for _, b := range p.order {
		if b.seq < first {
			for _, e := range b.entries {
				if e != nil {
					p.index.remove(e, false)
				}
			}
		}
		b.judged = b.judged || b.seq <= p.cursor
		for i, k := range b.keys {
			if (b.judged || b.entries[i] == nil) && k != (store.Key{}) {
				p.set.seen.Add(k, at)
			}
		}
	}
	for _, b := range p.order {
		for _, e := range b.entries {
			if e != nil {
				e.lane.list = append(e.lane.list, place{seq: e.seq, entry: e})
			}
		}
	}
	for _, l := range p.lanes {
		l.sort()
	}
	for _, b := range p.order {
		p.judge(b)
	}
	p.set.life.goroutines.Go(p.readLetters)
	p.cursor = max(p.cursor, p.read)
	p.state = open
	close(p.ready)
}

// yield gives up p in memory, because another node has taken it over. The index is locked.
func (p *partition) yield() {
	if p.state != lost {
		p.conn.config.Logger.Warn("natsqueue: another node has taken over a partition; it may repeat the attempts that this node is making", "partition", p.n)
	}
	p.lose()
	p.set.look.Set()
}

// isLost reports whether p is lost.
func (p *partition) isLost() bool {
	p.index.mu.Lock()
	defer p.index.mu.Unlock()
	return p.state == lost
}

// taken is yield for a caller that has not locked the index.
func (p *partition) taken() {
	p.index.mu.Lock()
	defer p.index.mu.Unlock()
	p.yield()
}

// lose ends the work of this node for p. The index is locked.
func (p *partition) lose() {
	if p.state == lost {
		return
	}
	if p.state == reading {
		close(p.ready)
	}
	p.state = lost
	if p.set.owned[p.n] == p {
		p.set.owned[p.n] = nil
	}
	for _, b := range p.order {
		for i, e := range b.entries {
			if e == nil {
				continue
			}
			if k := b.keys[i]; b.judged && k != (store.Key{}) {
				// If this node owns p again, it reads this delivery again. It must not find the key then.
				p.set.seen.Remove(k)
			}
			delete(p.index.claims, e.claim)
			delete(p.index.unfit, e)
			p.index.uncount(e)
		}
	}
	for name := range p.lanes {
		delete(p.index.lanes, name)
		p.index.tell(name)
	}
	p.lanes, p.order, p.keys = nil, nil, nil
	p.end()
}

// purgeable returns the sequence below which messages may be purged. The last record names the
// owner, and unread messages may have waiting deliveries. The index is locked.
func (p *partition) purgeable() uint64 {
	if p.state != open {
		return 0
	}
	return min(p.last, p.read+1)
}
