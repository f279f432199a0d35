package pgqueue

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A claimer claims chunks, and gives them back.
type claimer struct {
	*memory
	// claims is held for reading from before a claim is stored until it is in
	// memory, by who has a connection already. doubt is when storing one
	// failed last, in microseconds, so that there may be claims in the
	// database that are not in memory; 0 if there are none.
	claims    sync.RWMutex
	doubt     atomic.Int64
	releasing atomic.Bool  // nothing more is fetched here; see Release
	fetching  turn         // of Fetch, and what is to see no new claims
	fetched   atomic.Int64 // when Fetch was called last, in microseconds
	// firstClaims counts deliveries of transactions; see FirstClaims.
	firstClaims atomic.Int64
}

// claiming runs fn, which claims chunks and puts them into memory.
func (s *claimer) claiming(ctx context.Context, fn func(context.Context, *pgxpool.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	s.claims.RLock()
	defer s.claims.RUnlock()
	if err := fn(ctx, conn); err != nil {
		s.doubt.Store(time.Now().UnixMicro())
		return err
	}
	return nil
}

// queueRelease queues the statement that gives chunks back. The store is locked.
func (s *claimer) queueRelease(b *pgx.Batch, node int64, chunks []*chunk) {
	if len(chunks) == 0 {
		return
	}
	shelves, ids, dues := make([]int16, len(chunks)), make([]int64, len(chunks)), make([]int64, len(chunks))
	for i, c := range chunks {
		shelves[i], ids[i], dues[i] = c.key.shelf, c.key.id, c.due()
	}
	b.Queue(s.in(releaseSQL), node, shelves, ids, dues)
}

// Release implements webhook.Shared. A chunk of which something is claimed is given back
// once that is settled.
func (s *claimer) Release(ctx context.Context) error {
	return s.call(ctx, "giving back what is not claimed", func() error {
		s.releasing.Store(true)
		return s.release(ctx, 0)
	})
}

// idleClaim is how long a chunk of which nothing is handed out stays claimed.
const idleClaim = 10 * time.Second

// release gives back the chunks of which nothing is in hand, and was not for so long.
func (s *claimer) release(ctx context.Context, idle time.Duration) error {
	s.mu.Lock()
	node, now := s.node, time.Now().Add(s.offset)
	var back []*chunk
	for _, c := range s.chunks {
		if c.inHand == 0 && !c.broken && (idle == 0 || now.Sub(c.used) > idle) {
			back = append(back, c)
		}
	}
	if len(back) == 0 {
		s.mu.Unlock()
		return nil
	}
	var b pgx.Batch
	s.queueRelease(&b, node, back)
	if idle == 0 {
		b.Queue(notify, s.channel(), payload(node, noNames))
	}
	names := make(map[string]bool)
	for _, c := range back {
		s.report(c.line, c.due(), c.held)
		s.forget(c)
		names[c.line.destination] = true
	}
	s.mu.Unlock()
	err := s.pool.SendBatch(ctx, &b).Close()
	if err != nil {
		s.doubt.Store(time.Now().UnixMicro())
	}
	s.heard(maps.Keys(names)) // a look meanwhile has not found them
	return err
}

// giveBack gives back what is claimed in this node's name and not in its memory:
// by transactions that were committed though that was never learned.
func (s *claimer) giveBack(ctx context.Context) error {
	since := s.doubt.Load()
	if since == 0 {
		return nil
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	s.claims.Lock()
	defer s.claims.Unlock()
	s.mu.Lock()
	node := s.node
	shelves, ids := make([]int16, 0, len(s.chunks)), make([]int64, 0, len(s.chunks))
	for key := range s.chunks {
		shelves, ids = append(shelves, key.shelf), append(ids, key.id)
	}
	s.mu.Unlock()
	var b pgx.Batch
	b.Queue(byIndex)
	b.Queue(s.in(giveBackSQL), node, shelves, ids)
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	// The server may still be at work on what was given up here.
	if time.Since(time.UnixMicro(since)) > 2*writeTimeout {
		s.doubt.CompareAndSwap(since, 0)
	}
	return nil
}

const releaseSQL = `UPDATE S.chunk c SET node = 0, due = u.due
FROM unnest($2::smallint[], $3::bigint[], $4::bigint[]) u (shelf, id, due)
WHERE c.shelf = u.shelf AND c.id = u.id AND c.node = $1`

const giveBackSQL = `UPDATE S.chunk c SET node = 0 WHERE node <> 0 AND node = $1 AND NOT EXISTS (
	SELECT FROM unnest($2::smallint[], $3::bigint[]) u (shelf, id) WHERE u.shelf = c.shelf AND u.id = c.id)`
