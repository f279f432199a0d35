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
func (ps *partitions) mine() (all []*partition) {
	ps.index.mu.Lock()
	defer ps.index.mu.Unlock()
	for _, p := range ps.owned {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// lose gives up all partitions of this node in memory.
func (ps *partitions) lose() {
	ps.index.mu.Lock()
	defer ps.index.mu.Unlock()
	for _, p := range ps.owned {
		if p != nil {
			p.lose()
		}
	}
}

// ready returns the partition n if this node owns it and can answer questions about it, otherwise
// nil.
func (ps *partitions) ready(n int) *partition {
	ps.index.mu.Lock()
	defer ps.index.mu.Unlock()
	if n < 0 || n >= len(ps.owned) || ps.owned[n] == nil || ps.owned[n].state == reading || ps.lease.lapsed() != nil {
		return nil
	}
	return ps.owned[n]
}

// add adds a partition that this node has taken, and begins to read it. If this node is about to
// leave, add drops p. Then the balancer disowns it at the next check, or other nodes take it once this
// node is gone.
func (ps *partitions) add(p *partition) error {
	ps.index.mu.Lock()
	defer ps.index.mu.Unlock()
	if ps.life.ctx.Err() != nil || ps.leaving.Load() {
		p.end()
		return ps.life.ctx.Err()
	}
	ps.owned[p.n] = p
	ps.life.goroutines.Go((&follower{p: p, subjects: p.prefix + ">", saw: p.saw}).follow)
	return nil
}

// announce makes the balancers of all nodes check the owners of partitions.
func (ps *partitions) announce() error { return ps.conn.nc.Publish(ps.conn.config.ask("look"), nil) }

// new returns the partition n, which this node is about to take.
func (ps *partitions) new(n int) *partition {
	p := &partition{conn: ps.conn, index: ps.index, set: ps, n: n, prefix: ps.conn.config.prefix(n), ready: make(chan struct{}), listed: make(chan struct{}), lanes: make(map[string]*lane), busy: make(map[*letter]bool)}
	p.live, p.end = context.WithCancel(ps.life.ctx)
	return p
}
