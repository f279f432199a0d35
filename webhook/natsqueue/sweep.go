package natsqueue

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

const (
	// sweepEvery is how often what has ended is erased, at most.
	sweepEvery = 250 * time.Millisecond
	// deletions is how many messages of a partition are erased one by one at a time.
	deletions = 256
	// sparse is how much of a message waits at least, as a part: of less, the rest is moved.
	sparse = 8
	// movesMost is how many messages of a partition are moved at a time.
	movesMost = 16
)

// A keyMessage is a message of dedup keys.
type keyMessage struct {
	seq uint64
	at  time.Time
	n   int
}

// sweep erases what has ended from the server, until the Store is closed.
func (s *Store) sweep() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-tick.C:
		case <-s.background.Done():
			return
		}
		err := s.erase(s.background)
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

// erase erases what has ended of all partitions.
func (s *Store) erase(ctx context.Context) error {
	s.mu.Lock()
	var all []*partition
	w := &write{done: make(chan struct{})}
	for _, p := range s.owned {
		if p == nil || !p.open() {
			continue
		}
		all = append(all, p)
		if len(p.drops) > 0 || p.records >= recordsKept {
			w.owed = append(w.owed, p)
		}
	}
	s.mu.Unlock()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed error
	for some := range slices.Chunk(all, 16) {
		for _, p := range some {
			wg.Go(func() {
				moves, err := s.eraseOf(ctx, p)
				mu.Lock()
				defer mu.Unlock()
				if w.moves = append(w.moves, moves...); err != nil {
					failed = err
				}
			})
		}
		wg.Wait()
	}
	if len(w.owed)+len(w.moves) > 0 {
		if err := s.write(ctx, w); err != nil {
			return err
		}
	}
	return failed
}

// eraseOf erases what has ended of a partition, after its dedup keys are stored apart. It returns
// messages of which little waits.
func (s *Store) eraseOf(ctx context.Context, p *partition) ([]move, error) {
	s.mu.Lock()
	var over, rest, few []*block
	var keys []byte
	for _, b := range p.idle {
		// A record is needed until a later one says the same.
		if b.own && b.seq >= p.whole {
			rest = append(rest, b)
			continue
		}
		over = append(over, b)
		for i := range b.keys {
			if b.keys[i] != (storekit.Key{}) {
				keys = append(keys, b.keys[i][:]...)
			}
		}
	}
	scan := p.ends > len(p.order)/4
	if scan {
		p.ends = 0
	}
	for _, b := range p.order {
		if !scan || len(few) == movesMost {
			break
		}
		if b.left > 0 && b.left*sparse <= len(b.entries) && b.judged && b.seq < p.last {
			few = append(few, b)
		}
	}
	p.idle = rest
	s.mu.Unlock()
	putBack := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !p.lost {
			p.idle = append(p.idle, over...)
		}
	}
	for some := range slices.Chunk(keys, blockBytes/16*16) {
		c := one(p.prefix+kindKey, some)
		if err := s.store(ctx, c); err != nil {
			putBack()
			return nil, err
		}
	}
	if err := s.expireKeys(ctx, p); err != nil {
		putBack()
		return nil, err
	}
	if err := s.eraseBlocks(ctx, p, over); err != nil {
		putBack()
		return nil, err
	}
	return s.movesOf(ctx, few)
}

// eraseBlocks erases messages: those before everything that is still needed together, the
// others one by one.
func (s *Store) eraseBlocks(ctx context.Context, p *partition, over []*block) error {
	if len(over) == 0 {
		return nil
	}
	s.mu.Lock()
	for _, b := range over {
		b.erased = true
	}
	n := 0
	for n < len(p.order) && p.order[n].erased {
		n++
	}
	below := min(p.last, p.seen+1)
	if n < len(p.order) {
		below = min(below, p.order[n].seq)
	}
	s.mu.Unlock()
	if slices.ContainsFunc(over, func(b *block) bool { return b.seq < below }) {
		if err := s.purge(ctx, p.prefix+"log.*", below); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	errs := make(chan error, 1)
	for some := range slices.Chunk(slices.DeleteFunc(slices.Clone(over), func(b *block) bool { return b.seq < below }), deletions) {
		for _, b := range some {
			wg.Go(func() {
				if _, err := s.delete(ctx, b.seq); err != nil {
					select {
					case errs <- err:
					default:
					}
				}
			})
		}
		wg.Wait()
	}
	select {
	case err := <-errs:
		return err
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range over {
		delete(p.blocks, b.seq)
	}
	left := func(b *block) bool { return p.blocks[b.seq] != b }
	for len(p.order) > 0 && left(p.order[0]) {
		p.order = p.order[1:]
	}
	if len(p.order) > 2*len(p.blocks)+64 {
		p.order = slices.DeleteFunc(p.order, left)
	}
	return nil
}

// sawKeys takes a message of dedup keys. The store is locked.
func (s *Store) sawKeys(p *partition, seq uint64, m *nats.Msg) {
	n, at := len(m.Data)/16, time.Now()
	if meta, err := m.Metadata(); err == nil {
		at = meta.Timestamp
	}
	p.keys = append(p.keys, keyMessage{seq, at, n})
	if seq < p.epoch {
		for i := range n {
			s.seen.Add(storekit.Key(m.Data[16*i:16*i+16]), now())
		}
	}
}

// expireKeys erases dedup keys that are too old, or too many.
func (s *Store) expireKeys(ctx context.Context, p *partition) error {
	s.mu.Lock()
	n, left := 0, 0
	for i := range p.keys {
		left += p.keys[i].n
	}
	for n < len(p.keys) && (left > s.config.DedupMax || time.Since(p.keys[n].at) > s.config.DedupWindow) {
		left -= p.keys[n].n
		n++
	}
	below := uint64(0)
	if n > 0 {
		below = p.keys[n-1].seq + 1
	}
	s.mu.Unlock()
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

// movesOf reads messages of which the rest is to be moved.
func (s *Store) movesOf(ctx context.Context, blocks []*block) ([]move, error) {
	if len(blocks) == 0 {
		return nil, nil
	}
	chunks, err := s.chunks(ctx, blocks)
	if err != nil {
		return nil, err
	}
	var moves []move
	for i, b := range blocks {
		moves = append(moves, move{b, chunks[i].records})
	}
	return moves, nil
}

// eraseOwned erases the deliveries of a user in a partition that this node owns.
func (s *Store) eraseOwned(ctx context.Context, p *partition, user string) (erased, claimed int, err error) {
	w := &write{done: make(chan struct{})}
	s.mu.Lock()
	var blocks []*block
	for _, b := range p.order {
		if slices.ContainsFunc(b.entries, func(e *entry) bool { return e != nil && !e.damaged && e.user == hash(user) }) {
			blocks = append(blocks, b)
		}
	}
	s.mu.Unlock()
	var all []*ending
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
				if found = true; e.claim != 0 {
					claimed++
					continue
				}
				all = append(all, &ending{entry: e, verdict: webhook.Done, erase: true})
			}
			if found {
				w.moves = append(w.moves, m)
			}
		}
		s.mu.Unlock()
	}
	w.endings = all
	if len(all) == 0 {
		return 0, claimed, nil
	}
	if err := s.write(ctx, w); err != nil {
		return 0, 0, err
	}
	for _, e := range all {
		if e.erased {
			erased++
		} else {
			claimed++
		}
	}
	return erased, claimed, nil
}
