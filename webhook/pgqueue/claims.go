package pgqueue

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A claimer claims chunks, hands out their deliveries, and gives the chunks back.
type claimer struct {
	memory
	releasing   atomic.Bool  // this node makes no more claims; see Release
	fetching    semaphore    // held by Fetch, and by calls during which no item may be handed out
	fetched     atomic.Int64 // when Fetch was last called, in microseconds since 1970
	firstClaims atomic.Int64 // the result of FirstClaims

	// claiming keeps giveBack from freeing a claim that is in the database but not yet in memory.
	// While there may be such a claim, the function claim holds a read lock. giveBack takes the
	// write lock. Both acquire a connection before they lock claiming, so that no holder of the
	// lock waits for a connection.
	//
	// doubted is when storing a claim last failed, in microseconds since 1970. After such a failure,
	// the database may hold claims that are not in memory. doubted is 0 if there can be none.
	claiming sync.RWMutex
	doubted  atomic.Int64
}

// claim runs fn, which claims chunks in the database and puts them into memory. If fn fails but may
// have claimed chunks, claim sets doubted.
func (s *claimer) claim(ctx context.Context, fn func(context.Context, *pgxpool.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	s.claiming.RLock()
	defer s.claiming.RUnlock()
	if err = fn(ctx, conn); err != nil && !hasCode(err, lockNotAvailable, deadlockDetected) {
		s.doubt()
	}
	return err
}

// adopt puts the chunks of rows into memory, except those that a node had claimed before. It counts
// the deliveries of PutTx as accepted; the chunk is marked as counted when it is given back. The
// argument node is the id by which this node has claimed the chunks. adopt fails if the node has a
// new id by now: then other nodes have taken over its claims.
func (s *claimer) adopt(rows []row, node int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node != node {
		return errEnded
	}
	now := time.Now().Add(s.offset)
	for i := range rows {
		if r := &rows[i]; r.node == 0 {
			if r.outbox {
				s.firstClaims.Add(int64(r.waiting))
			}
			s.install(s.read(r), now)
		}
	}
	return nil
}

func (s *claimer) doubt() { s.doubted.Store(time.Now().UnixMicro()) }

// Release implements webhook.Shared. A chunk with claimed deliveries is given back once they
// are settled.
func (s *claimer) Release(ctx context.Context) error {
	return s.call(ctx, "giving back unclaimed deliveries", func() error {
		s.releasing.Store(true)
		return s.release(ctx, 0)
	})
}

// idleClaim is how long a chunk stays claimed while none of its deliveries is handed out.
const idleClaim = 10 * time.Second

// release gives back the chunks of which the forwarder has no delivery. If the argument idle is not
// 0, chunks that were used within that time stay claimed.
func (s *claimer) release(ctx context.Context, idle time.Duration) error {
	s.mu.Lock()
	now := time.Now().Add(s.offset)
	node := s.node
	var ids, dues []int64
	var names []string
	for _, c := range s.chunks {
		if c.inHand > 0 || c.damaged || idle > 0 && now.Sub(c.used) <= idle {
			continue
		}
		due := c.due()
		ids, dues, names = append(ids, c.id), append(dues, due), append(names, c.queue.destination)
		s.report(c.queue, due, c.waiting)
		s.forget(c)
	}
	s.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	var b pgx.Batch
	b.Queue(byIndex)
	b.Queue(s.in(releaseSQL), s.channel(), node, ids, dues)
	err := s.pool.SendBatch(ctx, &b).Close()
	if err != nil {
		s.doubt()
	}
	s.hear(names...) // a query that ran meanwhile has not seen the chunks as unclaimed
	return err
}

// giveBack gives back the claims of this node that are not in memory. Such claims exist after a
// transaction was committed and its answer was lost.
func (s *claimer) giveBack(ctx context.Context) error {
	since := s.doubted.Load()
	if since == 0 {
		return nil
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	s.claiming.Lock()
	defer s.claiming.Unlock()
	s.mu.Lock()
	node, ids := s.node, slices.AppendSeq([]int64{}, maps.Keys(s.chunks))
	s.mu.Unlock()
	var b pgx.Batch
	b.Queue(byIndex)
	b.Queue(s.in(giveBackSQL), node, ids)
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	// The server may still execute a transaction that this node has given up on. So check again until
	// that is impossible.
	if time.Since(time.UnixMicro(since)) > 2*writeTimeout {
		s.doubted.CompareAndSwap(since, 0)
	}
	return nil
}

const releaseSQL = `WITH freed AS (
	UPDATE S.chunk c SET node = 0, due = u.due, outbox = false FROM unnest($3::bigint[], $4::bigint[]) u (id, due)
	WHERE c.part = (u.id & 3)::smallint AND c.id = u.id AND c.node = $2 RETURNING c.destination
)` + notifyFreed

const giveBackSQL = `UPDATE S.chunk SET node = 0 WHERE node <> 0 AND node = $1 AND id <> ALL ($2::bigint[])`
