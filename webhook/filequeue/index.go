package filequeue

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// An index is the part of a store that is in memory. The caller of a method holds mu, unless the
// method's comment says otherwise.
type index struct {
	mu            sync.Mutex
	segs          segments
	lanes         map[string]*lane
	news          map[string]struct{} // the destinations that the next Heads(false) yields
	changed       store.Signal        // has a value if there are news
	claims        map[uint64]*claim   // by id
	lastClaim     uint64              // the latest id; ids are not used again, and 0 is none
	history       history
	historyBytes  int64 // the janitor moves entries with this Size or more to a table
	historyMost   int64 // with this Size or more of entries, no other delivery is kept
	tight         bool  // the disk has no space for a reserve, so the history gives way
	seen          *store.Window
	documents     documents
	number        uint32       // of the latest table
	memtableBytes int64        // a memtable of this size or more is flushed
	losses        int          // lost deliveries, since the folder was created
	tidy          store.Signal // the janitor may have work

	watched map[uint64]bool // the deliveries that Erase looks for, by sequence number; nil otherwise
	moved   []transition    // that remove watched deliveries from the queues that they entered since
}

// A lane has the deliveries of one destination.
type lane struct {
	name           string
	fresh, retries queue
	dead, history  queue
	claimed        int // those in index.claims, and in no queue

	// See order.go for the fields below.
	behind queue
	firsts map[uint64]uint64 // the key of each first delivery that has one, by its sequence number
	keys   map[uint64]int    // how many first deliveries a key has: one or, after damage, more
}

func (l *lane) waiting() int { return l.fresh.len + l.retries.len + l.claimed + l.behind.len }

func (l *lane) queue(k kind) *queue {
	switch k {
	case kindDead:
		return &l.dead
	case kindDelivered:
		return &l.history
	case kindRetry:
		return &l.retries
	case kindBehind:
		return &l.behind
	}
	return &l.fresh
}

// head returns when the first unclaimed fresh delivery and the first unclaimed retry are due.
func (l *lane) head() store.Head {
	return store.Head{Destination: l.name, Fresh: l.fresh.first().dueAt(), Retry: l.retries.first().dueAt()}
}

// A claim is the right to settle a delivery.
type claim struct {
	entry entry
	id    uint64 // the value of Delivery.Claim
	lane  *lane
	retry bool // the delivery came from lane.retries

	settled bool // the commit that ends the claim is in progress
}

// claim claims a delivery of lane l. e is its entry, which is in no queue.
func (x *index) claim(l *lane, e entry, retry bool) *claim {
	x.lastClaim++
	c := &claim{entry: e, id: x.lastClaim, lane: l, retry: retry}
	x.claims[c.id] = c
	l.claimed++
	return c
}

// unclaim ends a claim. The caller adds its entry to a queue or drops it.
func (x *index) unclaim(c *claim) {
	delete(x.claims, c.id)
	c.lane.claimed--
}

// claimed returns the claims by the sequence numbers of their deliveries.
func (x *index) claimed() map[uint64]*claim {
	all := make(map[uint64]*claim, len(x.claims))
	for _, c := range x.claims {
		all[c.entry.seq] = c
	}
	return all
}

// A queueID names a queue of the index.
type queueID struct {
	kind        kind
	destination string
}

// queue returns a queue of the index. If the destination has no lane, it returns a new empty queue
// that is not part of the index.
func (x *index) queue(id queueID) *queue {
	if l := x.lanes[id.destination]; l != nil {
		return l.queue(id.kind)
	}
	return new(queue)
}

// push adds an entry to a queue, and creates a missing lane.
func (x *index) push(id queueID, e entry) {
	x.lane(id.destination).queue(id.kind).push(e)
	if x.watched[e.seq] {
		x.moved = append(x.moved, leaving(id, e.rank()))
	}
	if h := &x.history; id.kind == kindDelivered {
		if h.n, h.bytes = h.n+1, h.bytes+e.bytes(); h.n == 1 || h.bytes >= x.historyBytes {
			x.tidy.Set()
		}
	}
}

// remove removes an entry from a queue, and reports whether there was one.
func (x *index) remove(id queueID, at rank) (e entry, ok bool) {
	if e, ok = x.queue(id).remove(at); ok && id.kind == kindDelivered {
		x.history.n, x.history.bytes = x.history.n-1, x.history.bytes-e.bytes()
	}
	return e, ok
}

// lane returns the lane of a destination. It creates a missing lane.
func (x *index) lane(name string) *lane {
	l := x.lanes[name]
	if l == nil {
		l = &lane{name: strings.Clone(name)}
		x.lanes[l.name] = l
	}
	return l
}

// prune removes the lane of a destination if the lane has no deliveries, and no delivery with a key
// has a transition in progress.
func (x *index) prune(destination string) {
	if l := x.lanes[destination]; l != nil && l.waiting()+l.dead.len+l.history.len+len(l.firsts) == 0 {
		delete(x.lanes, destination)
	}
}

// visit calls f for each entry in a queue. The caller does not hold mu: visit locks mu while it
// reads up to 4,096 entries, and unlocks it while it calls f with them. So visit may miss an entry
// that changes its queue in the meantime, or call f twice for it.
func (x *index) visit(f func(id queueID, e entry)) {
	const some = 4096
	x.mu.Lock()
	defer x.mu.Unlock()
	var all []queueID
	for name := range x.lanes {
		for _, k := range kinds {
			all = append(all, queueID{k, name})
		}
	}
	for _, id := range all {
		for last, more := firstRank, true; more; {
			entries := x.queue(id).after(last, some)
			more = len(entries) == some
			x.mu.Unlock()
			for _, e := range entries {
				last = e.rank()
				f(id, e)
			}
			x.mu.Lock()
		}
	}
}

// waiting returns how many deliveries wait, claimed ones included.
func (x *index) waiting() (n int) {
	for _, l := range x.lanes {
		n += l.waiting()
	}
	return n
}

// count adds the bytes of an entry's records to the needed bytes of their segments. If by is -1, it
// subtracts them.
func (x *index) count(e *entry, by int64) {
	add := func(seg uint32, bytes int64) {
		g := x.segs[seg]
		if g.live += by * bytes; g.sealed && g.live == 0 {
			x.tidy.Set()
		}
	}
	add(e.put.seg, recordSize(int(e.length)))
	if e.units > 0 {
		add(e.state.seg, 8*int64(e.units))
	}
}

// announce makes the next Heads(false) yield a destination. It is for changes that the scheduler
// did not make itself.
func (x *index) announce(destination string) {
	x.news[destination] = struct{}{}
	x.changed.Set()
}

// remembered returns records of kindKeys with those of the keys that the dedup window still has.
// last is the time of the latest put. The caller does not hold mu.
func (x *index) remembered(keys []byte, last int64) (rs []record) {
	for chunk := range slices.Chunk(keys, 16*maxKeys) {
		x.mu.Lock()
		var known []byte
		for key := range slices.Chunk(chunk, 16) {
			if x.seen.Has([16]byte(key)) {
				known = append(known, key...)
			}
		}
		x.mu.Unlock()
		if len(known) > 0 {
			rs = append(rs, keysRecord(known, last))
		}
	}
	return rs
}

// moves returns a move for each entry that has a record in the segment g, in the order of their
// sequence numbers.
func (x *index) moves(g *segment) (moves []move) {
	add := func(m move) {
		if m.entry.put.seg == g.id.number || m.entry.units > 0 && m.entry.state.seg == g.id.number {
			moves = append(moves, m)
		}
	}
	x.mu.Lock()
	needed := g.live > 0
	for _, r := range x.documents.memtable {
		if r.entry.put.seg == g.id.number {
			moves = append(moves, move{entry: r.entry, from: queueID{kindDocument, r.row.path}, copy: documentRecord(&r.row)})
		}
	}
	for _, c := range x.claims {
		add(move{entry: c.entry, from: queueID{waitingKind(c.retry), c.lane.name}})
	}
	x.mu.Unlock()
	if needed {
		x.visit(func(id queueID, e entry) { add(move{entry: e, from: id}) })
	}
	slices.SortStableFunc(moves, func(a, b move) int { return cmp.Compare(a.entry.seq, b.entry.seq) })
	return moves
}

// locate returns the entry of a move in the index, or nil if the entry has changed. The argument
// claimed has the result of index.claimed.
func (x *index) locate(m *move, claimed map[uint64]*claim) (e *entry) {
	if c := claimed[m.entry.seq]; c != nil {
		e = &c.entry
	} else if m.from.kind == kindDocument {
		if i, found := x.documents.find(m.from.destination); found {
			e = &x.documents.memtable[i].entry
		}
	} else {
		e = x.queue(m.from).at(m.entry.rank())
	}
	if e == nil || *e != m.entry {
		return nil
	}
	return e
}

// pick claims and pins due deliveries for wants. Their bodies have at most maxBytes in all, unless the
// first one alone has more.
func (x *index) pick(wants []store.Want, maxBytes int64, now time.Time) (claims []*claim, pins []pinned) {
	var bytes int64
	for i := range wants {
		w := &wants[i]
		l := x.lanes[w.Destination]
		if l == nil {
			continue
		}
		q := l.queue(waitingKind(w.Retries))
		e := q.first()
		for n := 0; n < w.Max && e != nil && e.due <= now.UnixMicro(); n++ {
			if bytes += e.bytes(); bytes > maxBytes && len(claims) > 0 {
				maxBytes = 0 // nothing fits any more
				break
			}
			taken, _ := q.remove(e.rank())
			pins = append(pins, x.segs.pin(taken, len(claims)))
			claims = append(claims, x.claim(l, taken, w.Retries))
			e = q.first()
		}
	}
	return claims, pins
}

// postpone ends the claim of a delivery that the disk could not read. In the index, but not on the
// disk, it becomes due at until, so that the other deliveries of its queue come first.
func (x *index) postpone(c *claim, until time.Time) {
	x.unclaim(c)
	c.entry.due = until.UnixMicro()
	x.push(queueID{waitingKind(c.retry), c.lane.name}, c.entry)
	x.announce(c.lane.name)
}
