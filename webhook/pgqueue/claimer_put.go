package pgqueue

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// store stores puts in one transaction.
func (cl *claimer) store(puts []*put) {
	var all []*entry
	for _, p := range puts {
		all = append(all, p.entries...)
	}
	err := cl.exchange(context.Background(), cl.claiming.RLocker(), func(ctx context.Context, conn *pgxpool.Conn) error {
		drafts := draftsOf(all)
		node := cl.claimDrafts(drafts)
		var b pgx.Batch
		b.Queue(setLockWait, lockWait)
		r := cl.db.queuePut(&b, drafts, &node)
		err := conn.SendBatch(ctx, &b).Close()
		cl.memory.mu.Lock()
		defer cl.memory.mu.Unlock()
		if err != nil {
			if !hasCode(err, lockNotAvailable, deadlockDetected) { // after these nothing is stored
				cl.memory.report(drafts...)
			}
			return err
		}
		cl.stored(drafts, node, r)
		return nil
	})
	for _, p := range puts {
		p.err = err
		close(p.done)
	}
	cl.trim(context.Background())
}

// shortBacklog is the age of an unclaimed backlog behind which this node still claims deliveries
// with a Key. Each has a row of its own, and to claim it later costs as much as to put it. So a
// short backlog, which is fetched first, must not be a reason to claim all later deliveries in this
// way.
const shortBacklog = time.Second

// claimDrafts sets the field mine of the drafts that this node claims: those that are due soon and fit
// into cacheBytes, if the database has no earlier unclaimed chunk of their queue; see also shortBacklog. It returns the id of
// this node.
func (cl *claimer) claimDrafts(drafts []*draft) int64 {
	cl.memory.mu.Lock()
	defer cl.memory.mu.Unlock()
	if cl.releasing.Load() || cl.heartbeat.expired() != nil {
		return cl.memory.node // and no draft is mine
	}
	room := cacheBytes - cl.memory.bytes
	now := time.Now()
	soon := cl.heartbeat.now().Add(time.Second).UnixMicro()
	// Otherwise this node only puts.
	delivers := now.UnixMicro()-cl.fetched.Load() < (2*time.Second).Microseconds() || slices.ContainsFunc(drafts, (*draft).keep)
	for _, d := range drafts {
		size := int64(len(d.data) + len(d.entries)*itemBytes)
		q := cl.memory.queues[d.queue]
		earlier := d.due
		if d.order.Valid {
			earlier -= shortBacklog.Microseconds()
		}
		if d.mine = delivers && d.due <= soon && size <= room && (q == nil || q.beyond > earlier); d.mine {
			room -= size
		}
	}
	return cl.memory.node
}

// stored adds the stored drafts to memory, and gives the callers their claims. The caller holds cl.memory.mu.
func (cl *claimer) stored(drafts []*draft, node int64, r *putResult) {
	r.mark(drafts)
	alive := cl.heartbeat.expired() == nil // otherwise the database has answered late, and other nodes may claim
	for i, d := range drafts {
		done := make([]byte, len(d.entries))
		waiting := 0
		for j, e := range d.entries {
			if e.known {
				done[j] = '1'
			} else {
				waiting++
			}
		}
		switch {
		case waiting == 0: // the database has no such chunk
		case d.entries[0].behind:
		case d.mine && node == cl.memory.node:
			c := &chunk{id: r.chunks[i], first: r.chunks[i] / 4 * chunkItems, queue: d.queue, order: d.order, waiting: waiting}
			c.decode(d.data, string(done))
			for j, e := range d.entries {
				if e.keep && !e.known && alive {
					e.claim = cl.memory.hand(&c.items[j])
				}
			}
			cl.memory.install(c)
		default:
			cl.memory.report(d)
		}
	}
}
