package pgqueue

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// claim runs fn, which claims chunks in the database and puts them into memory. If fn fails, claim
// sets doubted.
func (s *Store) claim(ctx context.Context, fn func(context.Context, *pgxpool.Conn) error) error {
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

func (s *Store) doubt() { s.doubted.Store(time.Now().UnixMicro()) }

// Release implements webhook.Shared. A chunk with claimed deliveries is given back once they
// are settled.
func (s *Store) Release(ctx context.Context) error {
	return s.call(ctx, "giving back unclaimed deliveries", func() error {
		s.releasing.Store(true)
		return s.release(ctx, 0)
	})
}

// idleClaim is how long a chunk stays claimed while none of its deliveries is handed out.
const idleClaim = 10 * time.Second

// release gives back the chunks of which the forwarder has no delivery, and whose last use is
// longer ago than idle. If idle is 0, the last use does not matter.
func (s *Store) release(ctx context.Context, idle time.Duration) error {
	s.mu.Lock()
	now := time.Now().Add(s.offset)
	var back []*chunk
	for _, c := range s.chunks {
		if c.inHand == 0 && !c.damaged && (idle == 0 || now.Sub(c.used) > idle) {
			back = append(back, c)
		}
	}
	if len(back) == 0 {
		s.mu.Unlock()
		return nil
	}
	var b pgx.Batch
	s.queueRelease(&b, back)
	var names []string
	for _, c := range back {
		s.report(c.queue, c.due(), c.waiting)
		s.forget(c)
		names = append(names, c.queue.destination)
	}
	s.mu.Unlock()
	err := s.pool.SendBatch(ctx, &b).Close()
	if err != nil {
		s.doubt()
	}
	s.heard(names...) // a query that ran meanwhile has not seen the chunks as unclaimed
	return err
}

// queueRelease queues the statement that gives chunks back and notifies the other nodes. s.mu is
// held.
func (s *Store) queueRelease(b *pgx.Batch, chunks []*chunk) {
	n := len(chunks)
	ids, dues := make([]int64, n), make([]int64, n)
	for i, c := range chunks {
		ids[i], dues[i] = c.id, c.due()
	}
	b.Queue(byIndex)
	b.Queue(s.in(releaseSQL), s.channel(), strconv.FormatInt(s.node, 10), s.node, ids, dues)
}

// giveBack gives back the claims of this node that are not in memory. Such claims exist after a
// transaction was committed and its answer was lost.
func (s *Store) giveBack(ctx context.Context) error {
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
	UPDATE S.chunk c SET node = 0, due = u.due FROM unnest($4::bigint[], $5::bigint[]) u (id, due)
	WHERE c.part = (u.id & 3)::smallint AND c.id = u.id AND c.node = $3 RETURNING c.destination
)` + notifyFreed

const giveBackSQL = `UPDATE S.chunk SET node = 0 WHERE node <> 0 AND node = $1 AND id <> ALL ($2::bigint[])`
