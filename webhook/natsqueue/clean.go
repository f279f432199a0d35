package natsqueue

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A cleaner purges what has ended. It has one rule: the log of a partition is purged up to the first
// message in which something waits, and if the log is more than four times what waits and a
// megabyte, what waits in its first messages is moved behind it, in a record. A record is of use
// only to read the messages before it, so those go the same way.
//
// Messages with bytes of a user who is erased are deleted at once.
type cleaner struct {
	*recorder
}

const (
	// cleanEvery is how often the logs are cleaned.
	cleanEvery = time.Second
	// slack is how many bytes of a log may be garbage whatever waits in it.
	slack = 1 << 20
	// movesMost is how many messages of a partition are moved at a time.
	movesMost = 16
)

// A keyMessage is a message of dedup keys.
type keyMessage struct {
	seq uint64
	n   int
}

// run cleans until the Store is closed.
func (s *cleaner) run() {
	tick := time.NewTicker(cleanEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-tick.C:
		case <-s.background.Done():
			return
		}
		err := cmp.Or(s.clean(s.background, false), s.refill(s.background))
		if err != nil && !failing && s.background.Err() == nil {
			s.config.Logger.Warn("natsqueue: what has ended cannot be erased just now, so the stream grows", "error", err)
		}
		failing = err != nil
		s.mu.Lock()
		for number, x := range s.parts {
			if time.Since(x.sent) > 2*callTimeout { // there will be no answer any more
				delete(s.parts, number)
			}
		}
		s.mu.Unlock()
	}
}

// clean cleans the logs of all partitions. Where room is short, it moves as much as it takes.
func (s *cleaner) clean(ctx context.Context, short bool) error {
	for {
		w := &write{done: make(chan struct{})}
		for _, p := range s.mine() {
			moves, err := s.cleanOne(ctx, p, short)
			if err != nil {
				return err
			}
			w.moves = append(w.moves, moves...)
			s.mu.Lock()
			if len(p.drops) > 0 {
				w.owed = append(w.owed, p)
			}
			s.mu.Unlock()
		}
		if len(w.owed)+len(w.moves) > 0 {
			if err := s.write(ctx, w); err != nil {
				return err
			}
		}
		if !short || len(w.moves) == 0 {
			return nil
		}
	}
}

// cleanOne purges the log of a partition, and returns what is to be moved.
func (s *cleaner) cleanOne(ctx context.Context, p *partition, short bool) ([]move, error) {
	s.mu.Lock()
	if !p.open() {
		s.mu.Unlock()
		return nil, nil
	}
	// The last record proves whose the partition is, and what is not read yet may wait.
	below := min(p.last, p.read+1)
	n := 0
	for n < len(p.order) && p.order[n].left == 0 && p.order[n].seq < below {
		n++
	}
	over, rest, bytes := slices.Clone(p.order[:n]), p.order[n:], p.bytes
	for _, b := range over {
		bytes -= b.size
	}
	if len(rest) > 0 {
		below = min(below, rest[0].seq)
	}
	bound := 4*p.alive + slack
	if short {
		bound = p.alive + p.alive/4
	}
	var erased, carry, first []*block
	for _, b := range rest {
		switch {
		case b.left > 0 || !b.erase:
		case b.own && !b.carried:
			carry = append(carry, b)
		default:
			erased = append(erased, b)
		}
		if bytes > bound && len(first) < movesMost && b.left > 0 && b.judged && b.seq < min(p.last, p.read+1) {
			first = append(first, b)
		}
	}
	over = append(over, erased...)
	s.mu.Unlock()
	if err := s.keep(ctx, p, over); err != nil {
		return nil, err
	}
	s.mu.Lock()
	lost := p.lost
	s.mu.Unlock()
	if lost {
		return nil, nil
	}
	if n > 0 {
		if err := s.purge(ctx, p.prefix+"log.*", below); err != nil {
			return nil, err
		}
	}
	for _, b := range erased {
		if _, err := s.delete(ctx, b.seq); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	for _, b := range over {
		if p.blocks[b.seq] == b {
			delete(p.blocks, b.seq)
			p.bytes -= b.size
		}
	}
	if len(over) > 0 {
		p.order = slices.DeleteFunc(p.order, func(b *block) bool { return p.blocks[b.seq] != b })
	}
	s.mu.Unlock()
	moves, err := s.movesOf(ctx, first)
	for _, b := range carry[:min(len(carry), movesMost)] {
		m, cerr := s.carry(ctx, b)
		if cerr != nil {
			return moves, cerr
		}
		moves = append(moves, m)
	}
	return moves, err
}

// carry returns the move of a record that is to be deleted before the messages that it tells of.
func (s *cleaner) carry(ctx context.Context, b *block) (m move, err error) {
	m.block = b
	pages, err := s.read(ctx, request{Seq: b.seq, Batch: 1})
	if err != nil {
		return m, err
	}
	if len(pages[0]) == 0 || pages[0][0].seq != b.seq {
		return m, nil // the replica does not have it yet
	}
	r, err := parseRecord(pages[0][0].data)
	if err != nil {
		return m, nil // it says nothing
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := func(x ref) bool { return b.p.blocks[x.seq] == nil }
	m.drops, m.ends = slices.DeleteFunc(r.drops, gone), slices.DeleteFunc(r.ends, gone)
	b.carried = len(m.drops)+len(m.ends) == 0 && b.seq < b.p.last
	return m, nil
}

// keep stores the dedup keys of blocks that are to be purged, and purges the oldest of those before
// where there are too many. The server forgets those that are too old.
func (s *cleaner) keep(ctx context.Context, p *partition, blocks []*block) error {
	var keys []byte
	s.mu.Lock()
	for _, b := range blocks {
		for i := range b.keys {
			if k := b.dedupKey(i); k != (storekit.Key{}) {
				keys = append(keys, k[:]...)
			}
		}
	}
	n, all := 0, 0
	for _, k := range p.keys {
		all += k.n
	}
	below := uint64(0)
	for ; all > s.config.DedupMax; n++ {
		all -= p.keys[n].n
		below = p.keys[n].seq + 1
	}
	s.mu.Unlock()
	for some := range slices.Chunk(keys, blockBytes/16*16) {
		c := one(p.prefix+kindKey, some)
		c.vital = true
		c.messages[0].Header = nats.Header{headerTTL: {strconv.Itoa(int(s.config.DedupWindow/time.Second)) + "s"}}
		if err := s.store(ctx, c); err != nil {
			return err
		}
	}
	if n == 0 {
		return nil
	}
	if err := s.purge(ctx, p.prefix+kindKey, below); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.keys = slices.DeleteFunc(p.keys, func(k keyMessage) bool { return k.seq < below })
	return nil
}

// sawKeys takes a message of dedup keys. The store is locked.
func (p *partition) sawKeys(seq uint64, m *nats.Msg) {
	n := len(m.Data) / 16
	p.keys = append(p.keys, keyMessage{seq, n})
	for i := range n { // behind the epoch too: the owner before may have stored some late
		p.seen.Add(storekit.Key(m.Data[16*i:16*i+16]), now())
	}
}

// movesOf reads messages of which the rest is to be moved.
func (s *cleaner) movesOf(ctx context.Context, blocks []*block) (moves []move, _ error) {
	if len(blocks) == 0 {
		return nil, nil
	}
	chunks, err := s.chunks(ctx, blocks)
	if err != nil {
		return nil, err
	}
	for i, b := range blocks {
		moves = append(moves, move{block: b, records: chunks[i].records})
	}
	return moves, nil
}

// changeOwned changes what q selects of the next messages of a partition that this node owns. It
// claims what it changes meanwhile, and returns where the messages behind begin, 0 after the last.
func (s *cleaner) changeOwned(ctx context.Context, p *partition, q question) (changed, claimed int, next uint64, err error) {
	filter := webhook.WaitingFilter{Destination: string(q.Name), ID: string(q.After), User: string(q.User), Event: string(q.Event)}
	var blocks []*block
	s.mu.Lock()
	l := s.lanes[filter.Destination]
	for _, b := range p.order {
		if b.seq < q.From || l == nil || !slices.ContainsFunc(b.entries, func(e *entry) bool { return e != nil && e.lane == l }) {
			continue
		}
		if len(blocks) == loadBlocks {
			next = b.seq
			break
		}
		blocks = append(blocks, b)
	}
	s.mu.Unlock()
	moves, err := s.movesOf(ctx, blocks)
	if err != nil {
		return 0, 0, 0, err
	}
	w := &write{done: make(chan struct{})}
	taken := make(map[*entry]bool)
	s.mu.Lock()
	for _, m := range moves {
		for i, e := range m.entries {
			var d webhook.Delivery
			if e == nil || e.gone || e.lane != l || d.UnmarshalBinary(m.records[i]) != nil || !filter.Match(&d) {
				continue
			}
			by := webhook.Settlement{Verdict: webhook.Done, Delivery: d}
			if q.Change == webhook.DueNow {
				by.Verdict = webhook.Retry
				if !by.Delivery.Hasten(now()) && e.claim == 0 {
					continue
				}
			}
			if e.claim != 0 {
				claimed++
				continue
			}
			s.claim(e)
			taken[e], e.delivery, e.write = true, &d, w
			w.endings = append(w.endings, s.ending(e, &by))
		}
	}
	if len(taken) > 0 {
		l.leave(taken)
	}
	s.mu.Unlock()
	if len(w.endings) == 0 {
		return 0, claimed, next, nil
	}
	if err := s.write(ctx, w); err != nil {
		s.goroutines.Go(func() { // it may be recorded yet
			<-w.done
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, e := range w.endings {
				if !e.gone && e.claim != 0 {
					s.putBack(e.entry)
				}
			}
			s.tell(filter.Destination)
		})
		return 0, claimed, 0, err
	}
	s.mu.Lock()
	s.tell(filter.Destination)
	s.mu.Unlock()
	return len(w.endings), claimed, next, nil
}

// eraseOwned erases the deliveries of a user in a partition that this node owns.
func (s *cleaner) eraseOwned(ctx context.Context, p *partition, user string) (erased, claimed int, err error) {
	w := &write{done: make(chan struct{})}
	s.mu.Lock()
	var blocks []*block
	for _, b := range p.order {
		if slices.ContainsFunc(b.entries, func(e *entry) bool { return e != nil && !e.damaged && e.user == hash(user) }) {
			blocks = append(blocks, b)
		}
	}
	s.mu.Unlock()
	for some := range slices.Chunk(blocks, loadBlocks) {
		moves, err := s.movesOf(ctx, some)
		if err != nil {
			return 0, 0, err
		}
		s.mu.Lock()
		for _, m := range moves {
			found := false
			for i, e := range m.entries {
				if e == nil || e.damaged || e.user != hash(user) {
					continue
				}
				var d webhook.Delivery
				if d.UnmarshalBinary(m.records[i]) != nil || d.User != user {
					continue
				}
				if e.claim != 0 {
					claimed++
					continue
				}
				found = true
				w.endings = append(w.endings, &ending{entry: e, verdict: webhook.Done, erase: true})
			}
			if found {
				w.moves = append(w.moves, m)
			}
		}
		s.mu.Unlock()
	}
	if len(w.endings) == 0 {
		return 0, claimed, nil
	}
	if err := s.write(ctx, w); err != nil {
		return 0, 0, err
	}
	for _, e := range w.endings {
		if e.erased {
			erased++
		} else {
			claimed++
		}
	}
	return erased, claimed, nil
}
