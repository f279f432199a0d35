package natsqueue

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"
)

// rule checks the owners of all partitions after each signal on look, until the Store is closed.
func (s *node) rule() {
	for {
		select {
		case <-s.look:
		case <-s.background.Done():
			return
		}
		if err := s.oversee(s.background); err != nil && s.background.Err() == nil {
			s.config.Logger.Debug("natsqueue: could not find out which node owns which partition; this node tries again at its next heartbeat", "error", err)
		}
	}
}

// A holding is the content of a partition's last record, which names the owner.
type holding struct {
	seq  uint64 // 0 if there is no record
	node string // the owner, "" for none
}

// oversee takes each partition that this node should own and that has no live owner. It gives away
// each partition that another node should own. The function rightful decides who should own which.
func (s *node) oversee(ctx context.Context) error {
	s.ruling.Lock()
	defer s.ruling.Unlock()
	// A leader that is out of reach does not answer, so bound the wait. The next check asks another
	// server.
	looking, cancel := context.WithTimeout(ctx, max(time.Second, s.config.Claim/3))
	defer cancel()
	holdings, newest, err := s.holdings(looking)
	if err != nil {
		return err
	}
	// The heartbeats have to be as new as the records: a node that was silent for too long stores a
	// heartbeat, and then a record, before it goes on.
	peers, dead, err := s.peers(looking, newest)
	if err != nil {
		return err
	}
	var wanted []int
	var idle []*partition // partitions to give away
	s.mu.Lock()
	for n, h := range holdings {
		p := s.owned[n]
		mine := rightful(peers, n) == s.id
		switch {
		case p != nil && !mine:
			if p.state == open {
				p.state = draining
			}
			if p.claimed == 0 { // otherwise unclaim signals look
				idle = append(idle, p)
			}
		case p != nil && p.state == draining:
			p.state = open
			for name, l := range s.lanes {
				if l.p == p {
					s.tell(name)
				}
			}
		case p == nil && mine && !s.leaving && (h.node == "" || h.node == s.id || !slices.ContainsFunc(peers, func(x peer) bool { return x.id == h.node })):
			wanted = append(wanted, n)
		}
	}
	s.mu.Unlock()
	if len(idle) > 0 {
		if err := s.write(looking, writesOf(idle, true)...); err != nil {
			return err
		}
		s.nc.Publish(s.config.ask("look"), nil)
	}
	errs := make([]error, len(wanted))
	var wg sync.WaitGroup
	for i, n := range wanted {
		wg.Go(func() { errs[i] = s.take(ctx, n, holdings[n]) })
	}
	wg.Wait()
	// A node that crashes again and again must not leave more heartbeats than peers can read.
	for _, n := range dead {
		errs = append(errs, s.purge(looking, s.config.heartbeat(n.id), n.seq+1))
	}
	return cmp.Or(errs...)
}

// rightful returns the node that should own the partition n, by rendezvous hashing. Each node is
// equally likely, and most partitions stay where they are when nodes come and go.
func rightful(peers []peer, n int) string {
	weight := func(id string) uint64 {
		h := sha256.Sum256([]byte(id + " " + strconv.Itoa(n)))
		return binary.BigEndian.Uint64(h[:])
	}
	first, most := "", uint64(0)
	for _, x := range peers {
		if w := weight(x.id); !x.Leaving && (first == "" || w > most || w == most && x.id > first) {
			first, most = x.id, w
		}
	}
	return first
}

// holdings returns the owners of all partitions, as their last records name them, and the sequence
// of the newest record. The answer may be a little out of date. That is safe: if the last record of
// a partition has changed since, take does nothing.
func (s *node) holdings(ctx context.Context) (all []holding, newest uint64, err error) {
	page, err := s.lasts(ctx, 0, s.config.Stream+".*."+kindOwn)
	if err != nil {
		return nil, 0, err
	}
	all = make([]holding, s.config.Partitions)
	for _, m := range page {
		var n int
		if _, err := fmt.Sscanf(m.Subject[len(s.config.Stream):], ".%d.", &n); err != nil || n < 0 || n >= len(all) {
			continue // a message of another program
		}
		all[n].seq, newest = m.Sequence, max(newest, m.Sequence)
		if r, err := parseRecord(m.Data); err == nil { // an unreadable record names no owner, so any node may take n
			all[n].node = r.node
		}
	}
	return all, newest, nil
}

// take makes this node the owner of the partition n. It does nothing if the last record of n is no
// longer the one in h.
func (s *node) take(ctx context.Context, n int, h holding) error {
	s.mu.Lock()
	s.serial++
	r := record{node: s.id, serial: s.serial}
	s.mu.Unlock()
	p := newPartition(s.index, n)
	c := next(p.prefix+kindOwn, h.seq, r.append(nil))
	c.vital = true
	if err := s.store(ctx, c); err != nil {
		p.end()
		if errors.Is(err, errChanged) { // another node was first
			return nil
		}
		return err
	}
	if h.node != "" {
		s.config.Logger.Warn("natsqueue: took over a partition; attempts that its last owner was making may be repeated", "partition", n, "from", h.node)
	}
	p.epoch, p.last = c.seq, c.seq
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.background.Err() != nil || s.leaving { // others take it once this node is gone
		p.end()
		return s.background.Err()
	}
	s.owned[n] = p
	s.goroutines.Go(p.follow)
	return nil
}

// leave makes this node take no more partitions.
func (s *node) leave() {
	s.mu.Lock()
	s.leaving = true
	s.mu.Unlock()
}

// Release implements store.Shared. A partition with claimed deliveries is given away once these
// are settled.
func (s *node) Release(ctx context.Context) error {
	_, err := call(ctx, s.conn, "giving partitions away", func() (_ struct{}, err error) {
		s.leave()
		if err = s.beat(ctx); err == nil {
			err = s.oversee(ctx)
		}
		if err == nil {
			err = s.nc.Publish(s.config.ask("look"), nil)
		}
		return struct{}{}, err
	})
	return err
}
