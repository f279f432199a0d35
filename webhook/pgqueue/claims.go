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

	// claiming keeps reconcile apart from calls that have changed claims in the database but not yet
	// in memory. These calls hold a read lock, reconcile holds the write lock.
	claiming sync.RWMutex
	// doubted is when a call of exchange last failed. The claims in memory may then differ from those
	// in the database. It is zero if they cannot. heartbeat.mu guards it.
	doubted time.Time
}

// exchange runs fn, which changes claims in the database and in memory. The argument lock is
// s.claiming or its read lock. exchange acquires a connection before it locks, so that no holder of
// the lock waits for a connection.
func (s *claimer) exchange(ctx context.Context, lock sync.Locker, fn func(context.Context, *pgxpool.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	lock.Lock()
	defer lock.Unlock()
	if err = fn(ctx, conn); err != nil && !hasCode(err, lockNotAvailable, deadlockDetected) {
		s.doubt()
	}
	return err
}

func (s *claimer) doubt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubted = time.Now()
}

// adopt puts the chunks of rows into memory, except those that a node had claimed before. It counts
// the deliveries of PutTx in chunks that were claimed for the first time. The argument node is the
// id by which this node has claimed the chunks. adopt fails if the node has a new id by now: then
// other nodes have taken over its claims.
func (s *claimer) adopt(rows []row, node int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node != node {
		return errEnded
	}
	for i := range rows {
		if r := &rows[i]; r.node == 0 {
			if r.outbox {
				s.firstClaims.Add(int64(r.waiting))
			}
			s.install(s.read(r))
		}
	}
	return nil
}

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

// release gives back the chunks of which the forwarder has no delivery, and which were not used for
// the duration idle.
func (s *claimer) release(ctx context.Context, idle time.Duration) error {
	return s.exchange(ctx, s.claiming.RLocker(), func(ctx context.Context, conn *pgxpool.Conn) error {
		var ids, dues []int64
		var names []string
		s.mu.Lock()
		node := s.node
		for _, c := range s.chunks {
			if c.inHand > 0 || time.Since(c.used) < idle {
				continue
			}
			ids, dues, names = append(ids, c.id), append(dues, c.due()), append(names, c.queue.destination)
			s.forget(c)
		}
		s.mu.Unlock()
		if len(ids) == 0 {
			return nil
		}
		var b pgx.Batch
		b.Queue(byIndex)
		b.Queue(s.in(releaseSQL), s.channel(), node, ids, dues)
		err := conn.SendBatch(ctx, &b).Close()
		s.hear(names...) // a query that ran meanwhile has not seen the chunks as unclaimed
		return err
	})
}

// reconcile makes the claims in memory equal to those in the database, if there is doubt about that.
// It ends claims that the database does not have any more, and those of deliveries whose outcomes
// are stored. It gives back chunks that are not in memory.
func (s *claimer) reconcile(ctx context.Context) error {
	s.mu.Lock()
	since := s.doubted
	s.mu.Unlock()
	if since.IsZero() {
		return nil
	}
	return s.exchange(ctx, &s.claiming, func(ctx context.Context, conn *pgxpool.Conn) error {
		s.mu.Lock()
		node, ids := s.node, slices.AppendSeq([]int64{}, maps.Keys(s.chunks))
		s.mu.Unlock()
		stored := make(map[int64]row)
		var b pgx.Batch
		b.Queue(byIndex)
		b.Queue(s.in(claimedSQL), node).Query(func(rows pgx.Rows) error {
			var r row
			_, err := pgx.ForEachRow(rows, []any{&r.id, &r.waiting, &r.done}, func() error {
				stored[r.id] = r
				return nil
			})
			return err
		})
		b.Queue(s.in(giveBackSQL), s.channel(), node, ids)
		if err := conn.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
		s.hearAny()
		s.mu.Lock()
		defer s.mu.Unlock()
		for id, c := range s.chunks {
			if r, mine := stored[id]; mine {
				s.correct(c, &r)
			} else {
				s.forget(c)
			}
		}
		// The server may still execute a transaction that this node has given up on. So the next poll
		// calls reconcile again, until that is impossible.
		if s.doubted.Equal(since) && time.Since(since) > 2*writeTimeout {
			s.doubted = time.Time{}
		}
		return nil
	})
}

const releaseSQL = `WITH freed AS (
	UPDATE S.chunk c SET node = 0, due = u.due FROM unnest($3::bigint[], $4::bigint[]) u (id, due)
	WHERE c.part = (u.id & 3)::smallint AND c.id = u.id AND c.node = $2 RETURNING c.destination
)` + notifyFreed

// claimedSQL waits for transactions that are storing outcomes.
const claimedSQL = `SELECT id, waiting, coalesce(done::text, '') FROM S.chunk WHERE node <> 0 AND node = $1 FOR UPDATE`

const giveBackSQL = `WITH freed AS (
	UPDATE S.chunk SET node = 0 WHERE node <> 0 AND node = $2 AND id <> ALL ($3::bigint[]) RETURNING destination
)` + notifyFreed
