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
	"golang.org/x/sync/semaphore"
)

// A claimer claims chunks, hands out their deliveries, stores the outcomes, and gives the chunks back.
type claimer struct {
	memory
	releasing   atomic.Bool         // this node makes no more claims; see Release
	fetching    *semaphore.Weighted // held by Fetch, and by calls during which no item may be handed out
	settling    *semaphore.Weighted // held by calls that store outcomes
	fetched     atomic.Int64        // when Fetch was last called, in microseconds since 1970
	firstClaims atomic.Int64        // the result of FirstClaims

	// claiming keeps reconcile apart from calls that have changed claims in the database but not yet
	// in memory. These calls hold a read lock, reconcile holds the write lock.
	claiming sync.RWMutex
	// heartbeat.mu guards all below. doubted is when a call of exchange last failed, zero if no such call
	// can have any effect now. unsure says that claims in memory may differ from those in the database.
	// freeing has the ids of chunks that this node could not give back.
	doubted time.Time
	unsure  bool
	freeing map[int64]bool
}

// exchange runs fn, which changes claims in the database and in memory. The argument lock is
// s.claiming or its read lock. exchange acquires a connection before it locks, so that no holder of
// the lock waits for a connection.
func (s *claimer) exchange(ctx context.Context, lock sync.Locker, fn func(context.Context, *pgxpool.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return s.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		lock.Lock()
		defer lock.Unlock()
		err := fn(ctx, conn)
		if err != nil && !hasCode(err, lockNotAvailable, deadlockDetected) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.doubted, s.unsure = time.Now(), true
		}
		return err
	})
}

// claim runs a statement that claims chunks, and puts these chunks into memory. The id of this node is
// $1 of the statement. It returns the chunks of the statement, some of which a node may have claimed
// before. It counts the deliveries of PutTx in chunks that were claimed for the first time.
// The function more may add to the batch.
func (s *claimer) claim(ctx context.Context, more func(*pgx.Batch), sql string, args ...any) (chunks []*chunk, err error) {
	err = s.exchange(ctx, s.claiming.RLocker(), func(ctx context.Context, conn *pgxpool.Conn) error {
		node := s.nodeNow()
		b := newBatch()
		b.Queue(s.in(sql), append([]any{node}, args...)...).Query(into(&chunks, scanChunk))
		more(b)
		if err := conn.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.node != node {
			return errEnded // other nodes have taken over the claims
		}
		for _, c := range chunks {
			if c.owner == 0 {
				s.install(c)
				if c.outbox {
					s.firstClaims.Add(int64(c.waiting))
				}
			}
		}
		return nil
	})
	return chunks, err
}

// Release implements store.Shared. A chunk with claimed deliveries is given back once they
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
		var chunks []*chunk
		var ids, dues []int64
		var names []string
		s.mu.Lock()
		node := s.node
		for _, c := range s.chunks {
			if c.inHand == 0 && time.Since(c.used) >= idle {
				chunks, ids, dues, names = append(chunks, c), append(ids, c.id), append(dues, c.due()), append(names, c.queue.destination)
			}
		}
		s.forget(chunks...)
		s.mu.Unlock()
		if len(ids) == 0 {
			return nil
		}
		err := s.free(ctx, conn, node, ids, dues)
		s.hear(names...) // a query that ran meanwhile has not seen the chunks as unclaimed
		return err
	})
}

// trim gives back all chunks of which the forwarder has no delivery, if memory is over its bound, and
// after Release. If that fails, a later call does it.
func (s *claimer) trim(ctx context.Context) {
	s.mu.Lock()
	keep := s.bytes <= cacheBytes && !s.releasing.Load()
	s.mu.Unlock()
	if keep {
		return
	}
	if err := s.release(ctx, 0); err != nil {
		s.config.Logger.Debug("pgqueue: could not give chunks back; they stay claimed by this node for now", "error", err)
	}
}

// free makes chunks of this node unclaimed, which memory no longer has. It also sets their due times,
// unless dues is empty. If it fails, reconcile does it later.
func (s *claimer) free(ctx context.Context, conn *pgxpool.Conn, node int64, ids, dues []int64) error {
	b := newBatch()
	b.Queue(s.in(freeSQL), s.channel, node, ids, dues)
	err := conn.SendBatch(ctx, b).Close()
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.doubted, s.unsure = time.Now(), true
		for _, id := range ids {
			s.freeing[id] = true
		}
	}
	return err
}

// reconcile makes the claims in memory equal to those in the database, unless it has done so since a call
// of exchange failed. Before that, no delivery may be handed out or settled, because its outcome may be
// stored. It ends claims that the database does not have any more, and those of deliveries whose outcomes
// are stored. It gives back chunks that are not in memory.
func (s *claimer) reconcile(ctx context.Context) error {
	s.mu.Lock()
	since, unsure := s.doubted, s.unsure
	s.mu.Unlock()
	if !unsure {
		return nil
	}
	return s.exchange(ctx, &s.claiming, func(ctx context.Context, conn *pgxpool.Conn) error {
		type claimed struct {
			ID      int64
			Waiting int
			Outbox  bool
			Done    string
		}
		node := s.nodeNow()
		stored, err := collect(ctx, conn, pgx.RowToStructByPos[claimed], s.in(claimedSQL), node)
		if err != nil {
			return err
		}
		defer s.hearAny()
		var unknown []int64
		s.mu.Lock()
		lost := maps.Clone(s.chunks)
		for _, r := range stored {
			c := s.chunks[r.ID]
			if c == nil {
				unknown = append(unknown, r.ID)
				if r.Outbox && !s.freeing[r.ID] { // the answer to its first claim was lost
					s.firstClaims.Add(int64(r.Waiting))
				}
				continue
			}
			delete(lost, r.ID)
			c.waiting = r.Waiting
			for i := range c.items {
				if isSet(r.Done, i) {
					s.dequeue(&c.items[i])
					s.unhand(&c.items[i], settled)
				}
			}
		}
		s.forget(slices.Collect(maps.Values(lost))...)
		clear(s.freeing)
		// The server may still execute a transaction that this node has given up on. So reconcile is due
		// again at the next poll, until that is impossible.
		if s.unsure = false; s.doubted.Equal(since) && time.Since(since) > 2*writeTimeout {
			s.doubted = time.Time{}
		}
		s.mu.Unlock()
		return s.free(ctx, conn, node, unknown, nil)
	})
}

// claimedSQL waits for transactions that are storing outcomes.
const claimedSQL = `SELECT id, waiting, outbox, coalesce(done::text, '') FROM S.chunk WHERE node <> 0 AND node = $1 FOR UPDATE`

// In freeSQL, $1 is the channel, $2 the id of this node, $3 the chunks and $4 their due times, or an
// empty array.
const freeSQL = `WITH freed AS (
	UPDATE S.chunk c SET node = 0, outbox = false, due = coalesce(u.due, c.due) FROM unnest($3::bigint[], $4::bigint[]) u (id, due)
	WHERE c.part = (u.id & 3)::smallint AND c.id = u.id AND c.node = $2 RETURNING c.destination
)` + notifyFreed
