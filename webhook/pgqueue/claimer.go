package pgqueue

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"github.com/hookferry/analytics/webhook/store"
)

// A claimer claims chunks, hands out their deliveries, stores the outcomes, and gives the chunks back.
type claimer struct {
	db          *database
	heartbeat   *heartbeat
	memory      *memory
	releasing   atomic.Bool         // this node makes no more claims; see Release
	fetching    *semaphore.Weighted // held by Fetch, and by calls during which no item may be handed out
	settling    *semaphore.Weighted // held by calls that store outcomes
	fetched     atomic.Int64        // when Fetch was last called, in microseconds since 1970
	firstClaims atomic.Int64        // the result of FirstClaims
	history     history
	owed        store.Signal // that the database has keys whose next delivery is to be released

	// claiming keeps reconcile apart from calls that have changed claims in the database but not yet
	// in memory. These calls hold a read lock, reconcile holds the write lock.
	claiming sync.RWMutex
	// doubtsMu guards all below, and may be locked while memory.mu is. doubted is when a call of exchange
	// last failed, zero if no such call can have any effect now. unsure says that claims in memory may differ from those in the database.
	// freeing has the ids of chunks that this node could not give back.
	doubtsMu sync.Mutex
	doubted  time.Time
	unsure   bool
	freeing  map[int64]bool
}

func newClaimer(db *database, h *heartbeat, m *memory) *claimer {
	return &claimer{
		db: db, heartbeat: h, memory: m, freeing: make(map[int64]bool), history: history{db: db}, owed: store.NewSignal(),
		fetching: semaphore.NewWeighted(1), settling: semaphore.NewWeighted(1),
	}
}

// exchange runs fn, which changes claims in the database and in memory. The argument lock is
// claiming or its read lock. exchange acquires a connection before it locks, so that no holder of
// the lock waits for a connection.
func (cl *claimer) exchange(ctx context.Context, lock sync.Locker, fn func(context.Context, *pgxpool.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return cl.db.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		lock.Lock()
		defer lock.Unlock()
		err := fn(ctx, conn)
		if err != nil && !hasCode(err, lockNotAvailable, deadlockDetected) {
			cl.doubt()
		}
		return err
	})
}

// doubt notes that a transaction which failed may have changed claims in the database, namely freed
// the chunks with these ids.
func (cl *claimer) doubt(freeing ...int64) {
	cl.doubtsMu.Lock()
	defer cl.doubtsMu.Unlock()
	cl.doubted, cl.unsure = time.Now(), true
	for _, id := range freeing {
		cl.freeing[id] = true
	}
}

// doubtAgain makes reconcile due again while an earlier transaction that failed may still have an effect.
func (cl *claimer) doubtAgain() {
	cl.doubtsMu.Lock()
	defer cl.doubtsMu.Unlock()
	cl.unsure = !cl.doubted.IsZero()
}

// claim runs a statement that claims chunks, and puts these chunks into memory. The id of this node is
// $1 of the statement. It returns the chunks of the statement, some of which a node may have claimed
// before. It counts the deliveries of PutTx in chunks that were claimed for the first time.
// The function more may add to the batch.
func (cl *claimer) claim(ctx context.Context, more func(*pgx.Batch), sql string, args ...any) (chunks []*chunk, err error) {
	err = cl.exchange(ctx, cl.claiming.RLocker(), func(ctx context.Context, conn *pgxpool.Conn) error {
		node := cl.memory.nodeNow()
		b := newBatch()
		b.Queue(cl.db.in(sql), append([]any{node}, args...)...).Query(into(&chunks, scanChunk))
		more(b)
		if err := conn.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		cl.memory.mu.Lock()
		defer cl.memory.mu.Unlock()
		if cl.memory.node != node {
			return errEnded // other nodes have taken over the claims
		}
		for _, c := range chunks {
			if c.owner == 0 {
				cl.installFirst(c)
			}
		}
		return nil
	})
	return chunks, err
}

// installFirst adds a chunk to memory that no node had claimed before. The caller holds memory.mu.
func (cl *claimer) installFirst(c *chunk) {
	cl.memory.install(c)
	if c.outbox {
		cl.firstClaims.Add(int64(c.waiting))
	}
}

// idleClaim is how long a chunk stays claimed while none of its deliveries is handed out.
const idleClaim = 10 * time.Second

// release gives back the chunks of which the forwarder has no delivery, and which were not used for
// the duration idle.
func (cl *claimer) release(ctx context.Context, idle time.Duration) error {
	return cl.exchange(ctx, cl.claiming.RLocker(), func(ctx context.Context, conn *pgxpool.Conn) error {
		var chunks []*chunk
		var ids, dues []int64
		var names []string
		cl.memory.mu.Lock()
		node := cl.memory.node
		for _, c := range cl.memory.chunks {
			if c.inHand == 0 && time.Since(c.used) >= idle {
				chunks, ids, dues, names = append(chunks, c), append(ids, c.id), append(dues, c.nextDue()), append(names, c.queue.destination)
			}
		}
		cl.memory.forget(chunks...)
		cl.memory.mu.Unlock()
		if len(ids) == 0 {
			return nil
		}
		err := cl.free(ctx, conn, node, ids, dues)
		cl.memory.hear(names...) // a query that ran meanwhile has not seen the chunks as unclaimed
		return err
	})
}

// trim gives back all chunks of which the forwarder has no delivery, if memory is over its bound, and
// after Release. If that fails, a later call does it.
func (cl *claimer) trim(ctx context.Context) {
	cl.memory.mu.Lock()
	keep := cl.memory.bytes <= cacheBytes && !cl.releasing.Load()
	cl.memory.mu.Unlock()
	if keep {
		return
	}
	if err := cl.release(ctx, 0); err != nil {
		cl.db.config.Logger.Debug("pgqueue: could not give chunks back; they stay claimed by this node for now", "error", err)
	}
}

// free makes chunks of this node unclaimed, which memory no longer has. It also sets their due times,
// unless dues is empty. If it fails, reconcile does it later.
func (cl *claimer) free(ctx context.Context, conn *pgxpool.Conn, node int64, ids, dues []int64) error {
	b := newBatch()
	b.Queue(cl.db.in(freeSQL), cl.db.channel, node, ids, dues)
	err := conn.SendBatch(ctx, b).Close()
	if err != nil {
		cl.doubt(ids...)
	}
	return err
}

// reconcile makes the claims in memory equal to those in the database, unless it has done so since a call
// of exchange failed. Before that, no delivery may be handed out or settled, because its outcome may be
// stored. It ends claims that the database does not have any more, and those of deliveries whose outcomes
// are stored. It gives back chunks that are not in memory.
func (cl *claimer) reconcile(ctx context.Context) error {
	cl.doubtsMu.Lock()
	since, unsure := cl.doubted, cl.unsure
	cl.doubtsMu.Unlock()
	if !unsure {
		return nil
	}
	return cl.exchange(ctx, &cl.claiming, func(ctx context.Context, conn *pgxpool.Conn) error {
		node := cl.memory.nodeNow()
		stored, err := collect(ctx, conn, pgx.RowToStructByPos[claimed], cl.db.in(claimedSQL), node)
		if err != nil {
			return err
		}
		err = cl.free(ctx, conn, node, cl.compare(stored, since), nil)
		cl.memory.hearAny() // a query that ran meanwhile has not seen the chunks as unclaimed
		cl.owed.Set()       // a settlement whose answer was lost may owe a release
		return err
	})
}

// A claimed is a chunk that the database says is claimed by this node.
type claimed struct {
	ID      int64
	Waiting int
	Outbox  bool
	Done    string
}

// compare changes memory so that it has no claim which the database does not have, and returns the ids
// of the chunks that only the database has. The time since is doubted from before the query.
func (cl *claimer) compare(stored []claimed, since time.Time) (unknown []int64) {
	cl.memory.mu.Lock()
	defer cl.memory.mu.Unlock()
	cl.doubtsMu.Lock()
	defer cl.doubtsMu.Unlock()
	lost := maps.Clone(cl.memory.chunks)
	for _, r := range stored {
		c := cl.memory.chunks[r.ID]
		if c == nil {
			unknown = append(unknown, r.ID)
			if r.Outbox && !cl.freeing[r.ID] { // the answer to its first claim was lost
				cl.firstClaims.Add(int64(r.Waiting))
			}
			continue
		}
		delete(lost, r.ID)
		c.waiting = r.Waiting
		for i := range c.items {
			if isSet(r.Done, i) {
				cl.memory.dequeue(&c.items[i])
				cl.memory.unhand(&c.items[i], settled)
			}
		}
	}
	cl.memory.forget(slices.Collect(maps.Values(lost))...)
	clear(cl.freeing)
	// The server may still execute a transaction that this node has given up on. So reconcile is due
	// again at the next poll, until that is impossible.
	if cl.unsure = false; cl.doubted.Equal(since) && time.Since(since) > 2*writeTimeout {
		cl.doubted = time.Time{}
	}
	return unknown
}

// claimedSQL waits for transactions that are storing outcomes.
const claimedSQL = `SELECT id, waiting, outbox, coalesce(done::text, '') FROM S.chunk WHERE node > 0 AND node = $1 FOR UPDATE`

// In freeSQL, $1 is the channel, $2 the id of this node, $3 the chunks and $4 their due times, or an
// empty array.
const freeSQL = `WITH freed AS (
	UPDATE S.chunk c SET node = 0, outbox = false, due = coalesce(u.due, c.due) FROM unnest($3::bigint[], $4::bigint[]) u (id, due)
	WHERE c.part = (u.id & 3)::smallint AND c.id = u.id AND c.node = $2 RETURNING c.destination
)` + notifyFreed

// notifyFreed notifies other nodes of the destinations of chunks that a statement has freed. It follows
// a CTE named freed. The channel is $1 and the id of the sender $2. A notification is that id, a space,
// and the destination in hexadecimal digits. PostgreSQL sends equal ones of a transaction only once.
const notifyFreed = ` SELECT pg_notify($1, $2::bigint::text || ' ' || encode(destination, 'hex')) FROM freed`

// live sends heartbeats until the Store is closed.
func (cl *claimer) live(ctx context.Context) {
	tick := time.NewTicker(cl.db.config.pulse())
	defer tick.Stop()
	silent := false
	for {
		select {
		case <-tick.C:
		case <-cl.heartbeat.presented:
		case <-ctx.Done():
			return
		}
		beating, cancel := context.WithTimeout(ctx, cl.db.config.Claim/4)
		err := cl.heartbeat.beat(beating, cl.memory.nodeNow())
		if errors.Is(err, errEnded) {
			cl.db.config.Logger.Warn("pgqueue: this node was silent for too long; other nodes have taken over its claims and may repeat its attempts")
			err = cl.db.notice(cl.enroll(beating))
		}
		cancel()
		switch {
		case err != nil && ctx.Err() == nil && !silent:
			silent = true
			cl.db.config.Logger.Warn("pgqueue: no heartbeat was stored; if that goes on, other nodes take over and deliveries in flight may be repeated", "error", lineError{err})
		case err == nil && silent:
			silent = false
			cl.db.config.Logger.Info("pgqueue: heartbeats are stored again")
			cl.memory.hearAny()
		}
	}
}

// enroll makes this process a new node, whose claims are valid from then on. In memory, the claims of
// its old node end in the same step, so that memory has no chunk that another node may claim.
func (cl *claimer) enroll(ctx context.Context) error {
	ids, err := collect(ctx, cl.db.pool, pgx.RowTo[int64], cl.db.in(`INSERT INTO S.node (id, name, expires)
VALUES (nextval('S.ids'), $1, clock_timestamp() + $2::interval) RETURNING id`), cl.db.config.Node, cl.db.config.term())
	if err != nil {
		return err
	}
	cl.memory.mu.Lock()
	cl.memory.forget(slices.Collect(maps.Values(cl.memory.chunks))...)
	cl.memory.node = ids[0]
	cl.memory.mu.Unlock()
	cl.memory.hearAny()
	return cl.heartbeat.beat(ctx, ids[0])
}

// resign gives back all claims and removes this node from the table of nodes.
func (cl *claimer) resign(ctx context.Context) error {
	cl.memory.mu.Lock()
	for _, it := range cl.memory.claims {
		cl.memory.unhand(it, free)
	}
	cl.memory.mu.Unlock()
	if err := cl.release(ctx, 0); err != nil {
		return err
	}
	b := newBatch()
	b.Queue(cl.db.in(`DELETE FROM S.node WHERE id = $1`), cl.memory.nodeNow())
	b.Queue(cl.db.in(healSQL), cl.db.channel, cl.memory.nodeNow()) // damaged chunks, and those of claims whose answers were lost
	return cl.db.pool.SendBatch(ctx, b).Close()
}
