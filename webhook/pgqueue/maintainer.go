package pgqueue

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hookferry/analytics/webhook/store"
)

// A maintainer takes over from dead nodes, keeps the tables small, and heals claims.
type maintainer struct {
	db        *database
	heartbeat *heartbeat
	memory    *memory
	claimer   *claimer
	steps     *store.Upkeep
}

// ran takes the result of a maintenance step; effect is that of store.Upkeep. While heartbeats
// fail, it ignores errors: claimer.live logs that the database does not work.
func (mt *maintainer) ran(ctx context.Context, step, effect string, err error) {
	mt.db.notice(err)
	switch {
	case ctx.Err() != nil: // which fails every step
	case err == nil:
		mt.steps.Ran(step, effect, nil)
	case !mt.heartbeat.silent():
		mt.steps.Ran(step, effect, lineError{err})
	}
}

// maintain takes over from dead nodes and keeps the tables small, until the Store is closed. Every Poll
// it signals Changed, so that Heads finds chunks that no notification has reported. A step that fails
// is tried again the next time.
func (mt *maintainer) maintain(ctx context.Context) {
	judge := time.NewTicker(mt.db.config.Claim / 8)
	defer judge.Stop()
	poll := time.NewTicker(mt.db.config.Poll)
	defer poll.Stop()
	var searched, kept time.Time
	try := func(name string, step func(context.Context) error) {
		within, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		mt.ran(ctx, name, "tables may grow, and claims may be freed late; look up the error, and end transactions that stay open (pg_stat_activity)", step(within))
	}
	for {
		select {
		case <-judge.C:
			try("take over", mt.takeOver)
			continue
		case <-poll.C:
		case <-ctx.Done():
			return
		}
		mt.memory.mu.Lock()
		looked := mt.memory.looked
		mt.memory.mu.Unlock()
		mt.claimer.doubtAgain()
		mt.claimer.owed.Set()
		// All heads are read again after twenty times as long as that took, but within a minute: the last
		// time it may have been slow because the database hung for a moment.
		if time.Since(searched) >= min(20*looked, time.Minute) {
			searched = time.Now()
			mt.memory.hearAny()
		}
		try("reconcile", mt.claimer.reconcile)
		try("release", func(ctx context.Context) error { return mt.claimer.release(ctx, idleClaim) })
		if time.Since(kept) >= 10*time.Second {
			kept = time.Now()
			try("upkeep", mt.upkeep)
		}
	}
}

// takeOver removes the nodes whose heartbeats have ended, frees their claims, and notifies all other
// nodes. The statement itself decides which nodes are dead, because the database may execute it long
// after it was sent.
//
// An outage of the database makes no node dead. So this node judges others only if its own
// heartbeats have been stored for at least Config.term up to now, and none of them was late.
func (mt *maintainer) takeOver(ctx context.Context) error {
	names, err := collect(ctx, mt.db.pool, pgx.RowTo[string], mt.db.in(takeOverSQL), mt.db.channel, mt.memory.nodeNow(), mt.db.config.term(), mt.db.config.late())
	if err != nil || len(names) == 0 {
		return err
	}
	mt.db.config.Logger.Warn("pgqueue: took over the claims of nodes without heartbeats; the attempts that they had in flight may be repeated", "nodes", names)
	mt.memory.hearAny()
	return nil
}

// In takeOverSQL, $1 is the channel, $2 the id of this node, $3 is Config.term and $4 is Config.late.
const takeOverSQL = `WITH dead AS (
	DELETE FROM S.node WHERE expires < clock_timestamp() AND id <> $2 AND EXISTS (
		SELECT FROM S.node judge WHERE judge.id = $2
		AND judge.steady <= clock_timestamp() - $3::interval
		AND judge.seen > clock_timestamp() - $4::interval)
	RETURNING id, name
), freed AS (
	UPDATE S.chunk c SET node = 0, outbox = false FROM dead WHERE c.node = dead.id AND c.node > 0 RETURNING c.destination
), notified AS (` + notifyFreed + `)
SELECT name FROM dead WHERE (SELECT count(*) FROM notified) >= 0`

// upkeep keeps the tables small, and heals claims. Each step is a transaction of its own.
func (mt *maintainer) upkeep(ctx context.Context) error {
	_, dedup := mt.db.pool.Exec(ctx, mt.db.in("SELECT S.rotate_dedup(clock_timestamp(), $1, $2)"), mt.db.config.DedupMax, mt.db.config.DedupWindow)
	_, chunks := mt.db.pool.Exec(ctx, mt.db.in("SELECT S.rotate_chunks(clock_timestamp())"))
	_, documents := mt.db.pool.Exec(ctx, mt.db.in("SELECT S.forget_documents($1)"), store.RememberRemoved+time.Minute)
	_, owed := mt.db.pool.Exec(ctx, mt.db.in("SELECT S.rotate_owed()"))
	kept := mt.claimer.history.rotate(ctx)
	return errors.Join(dedup, chunks, documents, owed, kept, mt.heal(ctx))
}

// heal frees chunks of nodes that do not exist. This node hears of them, too.
func (mt *maintainer) heal(ctx context.Context) error {
	var freed int64
	b := newBatch()
	b.Queue(mt.db.in(healSQL), mt.db.channel, mt.memory.nodeNow()).Exec(func(tag pgconn.CommandTag) error {
		freed = tag.RowsAffected()
		return nil
	})
	err := mt.db.pool.SendBatch(ctx, b).Close()
	if freed > 0 {
		mt.memory.hearAny()
	}
	return err
}

// healSQL frees chunks that are claimed by nodes which do not exist, and notifies all other nodes. Such
// claims arise if a claim is stored while another node removes the claiming node, and if the answer to
// a claim was lost. The claiming node has not counted them as first claims, so outbox stays as it is.
const healSQL = `WITH RECURSIVE claimer AS (
	(SELECT node FROM S.chunk WHERE node > 0 ORDER BY node LIMIT 1)
	UNION ALL
	SELECT (SELECT node FROM S.chunk WHERE node > 0 AND node > h.node ORDER BY node LIMIT 1) FROM claimer h WHERE h.node IS NOT NULL
), freed AS (
	UPDATE S.chunk SET node = 0 WHERE node > 0 AND node = ANY (ARRAY(
		SELECT node FROM claimer h WHERE node IS NOT NULL AND NOT EXISTS (SELECT FROM S.node n WHERE n.id = h.node)))
	RETURNING destination
)` + notifyFreed
