package natsqueue

import (
	"context"
	"sync/atomic"

	"github.com/hookferry/analytics/webhook/store"
)

// partitions are the partitions that this node owns.
type partitions struct {
	conn    *conn
	life    *lifetime
	index   *index
	lease   *lease
	answers *answers
	look    store.Signal // makes the balancer check the owners of partitions
	leaving atomic.Bool  // this node takes no more partitions

	// Guarded by index.mu.
	owned []*partition // by number; nil for a partition that this node does not own
	seen  *store.Window
}

// mine returns the partitions that this node owns.
func (s *partitions) mine() (all []*partition) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	for _, p := range s.owned {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// lose gives up all partitions of this node in memory.
func (s *partitions) lose() {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	for _, p := range s.owned {
		if p != nil {
			p.lose()
		}
	}
}

// ready returns the partition n if this node owns it and can answer questions about it, otherwise
// nil.
func (s *partitions) ready(n int) *partition {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	if n < 0 || n >= len(s.owned) || s.owned[n] == nil || s.owned[n].state == reading || s.lease.lapsed() != nil {
		return nil
	}
	return s.owned[n]
}

// add adds a partition that this node has taken, and begins to read it. If this node is about to
// leave, add drops p, and other nodes take it once this node is gone.
func (s *partitions) add(p *partition) error {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	if s.life.ctx.Err() != nil || s.leaving.Load() {
		p.end()
		return s.life.ctx.Err()
	}
	s.owned[p.n] = p
	s.life.goroutines.Go((&follower{p: p, subjects: p.prefix + ">", saw: p.saw}).follow)
	return nil
}

// announce makes the balancers of all nodes check the owners of partitions.
func (s *partitions) announce() error { return s.conn.nc.Publish(s.conn.config.ask("look"), nil) }

// new returns the partition n, which this node is about to take.
func (s *partitions) new(n int) *partition {
	p := &partition{conn: s.conn, index: s.index, set: s, n: n, prefix: s.conn.config.prefix(n), ready: make(chan struct{}), listed: make(chan struct{}), lanes: make(map[string]*lane)}
	p.live, p.end = context.WithCancel(s.life.ctx)
	return p
}
