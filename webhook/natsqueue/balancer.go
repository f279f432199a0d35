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

// A balancer divides the partitions among the nodes: it takes partitions for this node, and gives them
// away.
type balancer struct {
	conn       *conn
	life       *lifetime
	index      *index
	node       *node
	partitions *partitions
	recorder   *recorder
	ruling     sync.Mutex // held while the owners of partitions are checked
}

// rule checks the owners of all partitions after each signal on look, until the Store is closed.
func (bl *balancer) rule() {
	for {
		select {
		case <-bl.partitions.look:
		case <-bl.life.ctx.Done():
			return
		}
		if err := bl.oversee(bl.life.ctx); err != nil && bl.life.ctx.Err() == nil {
			bl.conn.config.Logger.Debug("natsqueue: could not find out which node owns which partition; this node tries again at its next heartbeat", "error", err)
		}
	}
}

// A holding is the content of a partition's last record, which names the owner.
type holding struct {
	seq  uint64 // 0 if there is no record
	node string // the owner, "" for none
}

// oversee takes each partition that this node should own and that no live node serves. It gives away
// each partition that another node should own. The function rightful decides who should own which.
func (bl *balancer) oversee(ctx context.Context) error {
	bl.ruling.Lock()
	defer bl.ruling.Unlock()
	// A leader that is out of reach does not answer, so bound the wait. The next check asks another
	// server.
	looking, cancel := context.WithTimeout(ctx, max(time.Second, bl.conn.config.Claim/3))
	defer cancel()
	holdings, newest, err := bl.holdings(looking)
	if err != nil {
		return err
	}
	// The heartbeats have to be as new as the records: a node that was silent for too long stores a
	// heartbeat, and then a record, before it goes on.
	peers, dead, err := bl.node.peers(looking, newest)
	if err != nil {
		return err
	}
	wanted, idle, unserved := bl.divide(holdings, peers)
	errs := []error{bl.disown(looking, unserved, holdings)}
	if len(idle) > 0 {
		if err := bl.recorder.write(looking, writesOf(idle, true)...); err != nil {
			return err
		}
		bl.partitions.announce()
	}
	took := make([]error, len(wanted))
	var wg sync.WaitGroup
	for i, n := range wanted {
		wg.Go(func() { took[i] = bl.take(ctx, n, holdings[n]) })
	}
	wg.Wait()
	errs = append(errs, took...)
	// A node that crashes again and again must not leave more heartbeats than peers can read.
	for _, n := range dead {
		errs = append(errs, bl.conn.purge(looking, bl.conn.config.heartbeat(n.id), n.seq+1))
	}
	return cmp.Or(errs...)
}

// divide returns the numbers of the partitions that this node is to take, and the idle partitions that
// it is to give away. It drains those that are not idle yet. It also returns the numbers of the
// partitions that this node is to give away, and that it owns by their records alone: it does not serve
// them. No answer to their first record has reached it, or it began to leave before the answer came.
func (bl *balancer) divide(holdings []holding, peers []peer) (wanted []int, idle []*partition, unserved []int) {
	bl.index.mu.Lock()
	defer bl.index.mu.Unlock()
	for n, h := range holdings {
		p := bl.partitions.owned[n]
		mine := rightful(peers, n) == bl.conn.id
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
			for name, l := range bl.index.lanes {
				if l.p == p {
					bl.index.tell(name)
				}
			}
		case p == nil && mine && !bl.partitions.leaving.Load() && (h.node == "" || h.node == bl.conn.id || !slices.ContainsFunc(peers, func(x peer) bool { return x.id == h.node })):
			wanted = append(wanted, n)
		case p == nil && !mine && h.node == bl.conn.id: // no other node takes it, because this one is alive
			unserved = append(unserved, n)
		}
	}
	return wanted, idle, unserved
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
func (bl *balancer) holdings(ctx context.Context) (all []holding, newest uint64, err error) {
	page, err := bl.conn.lasts(ctx, 0, bl.conn.config.Stream+".*."+kindOwn)
	if err != nil {
		return nil, 0, err
	}
	all = make([]holding, bl.conn.config.Partitions)
	for _, m := range page {
		var n int
		if _, err := fmt.Sscanf(m.Subject[len(bl.conn.config.Stream):], ".%d.", &n); err != nil || n < 0 || n >= len(all) {
			continue // a message of another program
		}
		all[n].seq, newest = m.Sequence, max(newest, m.Sequence)
		if r, err := parseRecord(m.Data); err == nil { // an unreadable record names no owner, so any node may take n
			all[n].node = r.node
		}
	}
	return all, newest, nil
}

// naming returns a record that makes node the owner of the partition n. If node is "", it gives n away.
// The server refuses it if the last record of n is no longer the one in h.
func (bl *balancer) naming(node string, n int, h holding) *parcel {
	r := record{node: node, serial: bl.index.serial.Add(1)}
	c := next(bl.conn.config.prefix(n)+kindOwn, h.seq, r.append(nil))
	c.vital = true
	return c
}

// take makes this node the owner of the partition n. It does nothing if the last record of n is no
// longer the one in h.
func (bl *balancer) take(ctx context.Context, n int, h holding) error {
	p := bl.partitions.new(n)
	c := bl.naming(bl.conn.id, n, h)
	if err := bl.conn.store(ctx, c); err != nil {
		p.end()
		if errors.Is(err, errChanged) { // another node was first
			return nil
		}
		return err // the record may be stored: then the next check takes n again, or disowns it
	}
	if h.node != "" && h.node != bl.conn.id {
		bl.conn.config.Logger.Warn("natsqueue: took over a partition; attempts that its last owner was making may be repeated", "partition", n, "from", h.node)
	}
	p.epoch, p.last = c.seq, c.seq
	return bl.partitions.add(p)
}

// disown gives away partitions that this node does not serve. It leaves out those whose last records
// are no longer the ones in holdings. The caller has locked ruling, so this node takes none of them
// meanwhile.
func (bl *balancer) disown(ctx context.Context, unserved []int, holdings []holding) error {
	var parcels []*parcel
	for _, n := range unserved {
		parcels = append(parcels, bl.naming("", n, holdings[n]))
	}
	bl.conn.store(ctx, parcels...) // sets the error of each parcel
	var failed error
	given := false
	for _, c := range parcels {
		given = given || c.err == nil
		if !errors.Is(c.err, errChanged) {
			failed = cmp.Or(failed, c.err)
		}
	}
	if given {
		bl.partitions.announce()
	}
	return failed
}
