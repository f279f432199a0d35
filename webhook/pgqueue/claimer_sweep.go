package pgqueue

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/semaphore"

	"github.com/hookferry/analytics/webhook/store"
)

// chunkPage is how many chunks are read at once.
const chunkPage = 16

// sweepUser sweeps every chunk whose bytes contain a user id. Between two pages, this node fetches and
// settles.
func (cl *claimer) sweepUser(ctx context.Context, user string, f func(*store.Delivery) store.Verdict) (changed, claimed int, err error) {
	for after := int64(0); ; {
		// This query may read the whole table. So it is not in the transaction that claims chunks.
		ids, err := collect(ctx, cl.db.pool, pgx.RowTo[int64], cl.db.in(withUserSQL), after, []byte(user), chunkPage)
		if err != nil || len(ids) == 0 {
			return changed, claimed, err
		}
		n, skipped, err := cl.sweep(ctx, ids, f)
		if changed, claimed = changed+n, claimed+skipped; err != nil {
			return changed, claimed, err
		}
		after = ids[len(ids)-1]
	}
}

const withUserSQL = `SELECT id FROM S.chunk WHERE id > $1 AND position($2::bytea IN items) > 0 ORDER BY id LIMIT $3`

// sweep settles the deliveries in some chunks for which f returns Done, which here removes them, or Retry.
// It counts them, and those that are claimed already and for which f does not return 0. It claims the
// chunks that no node has claimed, settles deliveries in chunks of this node, and gives back what it has
// claimed. Meanwhile this node hands out only deliveries that it puts itself.
func (cl *claimer) sweep(ctx context.Context, ids []int64, f func(*store.Delivery) store.Verdict) (changed, claimed int, err error) {
	defer cl.memory.hearAny()
	for _, held := range []*semaphore.Weighted{cl.fetching, cl.settling} {
		if err := held.Acquire(ctx, 1); err != nil {
			return 0, 0, err
		}
		defer held.Release(1)
	}
	for err == nil && len(ids) > 0 {
		var n, skipped int
		n, skipped, ids, err = cl.sweepOnce(ctx, ids, f)
		changed, claimed = changed+n, claimed+skipped
	}
	return changed, claimed, err
}

// sweepOnce does what sweep says. It returns the ids of chunks that were released meanwhile, so that
// they have to be swept again.
func (cl *claimer) sweepOnce(ctx context.Context, ids []int64, f func(*store.Delivery) store.Verdict) (changed, claimed int, again []int64, err error) {
	chunks, err := cl.claim(ctx, func(*pgx.Batch) {}, sweepSQL, ids)
	if err != nil {
		return 0, 0, nil, err
	}
	if changed, again, err = cl.removeBehind(ctx, chunks, f); err != nil {
		return changed, 0, nil, err
	}
	var items []*item
	var ss []store.Settlement
	cl.memory.mu.Lock()
	for _, c := range chunks {
		if c.owner == behind {
			continue
		}
		own, mine := cl.memory.chunks[c.id]
		if mine {
			c = own
		}
		for j := range c.items {
			it := &c.items[j]
			d := it.d
			verdict := f(&d)
			switch {
			case it.state == settled || it.state == damaged || verdict == 0:
			case !mine || it.state != free:
				claimed++
			case verdict != store.Return:
				d.Claim = cl.memory.hand(it)
				items, ss = append(items, it), append(ss, store.Settlement{Verdict: verdict, Delivery: d})
			}
		}
	}
	cl.memory.mu.Unlock()
	n, err := cl.settleAll(ctx, ss, false)
	changed += n
	cl.memory.mu.Lock()
	cl.memory.takeBack(items[n:]...)
	for _, c := range chunks {
		if c.owner == 0 {
			c.used = time.Time{} // so that release gives it back
		}
	}
	cl.memory.mu.Unlock()
	if err == nil {
		err = cl.release(ctx, idleClaim)
	}
	return changed, claimed, again, err
}

// removeBehind removes those of some chunks that are behind another one, and for which f returns Done. It
// returns how many it has removed, and the ids of those that are not behind any more.
func (cl *claimer) removeBehind(ctx context.Context, chunks []*chunk, f func(*store.Delivery) store.Verdict) (n int, released []int64, err error) {
	for _, c := range chunks {
		for i := range c.items {
			if d := c.items[i].d; c.owner == behind && c.items[i].state == free && f(&d) == store.Done {
				released = append(released, c.id)
			}
		}
	}
	if len(released) == 0 {
		return 0, nil, nil
	}
	type row struct {
		ID     int64
		Outbox bool
	}
	removed, err := collect(ctx, cl.db.pool, pgx.RowToStructByPos[row], cl.db.in(removeBehindSQL), released)
	for _, r := range removed {
		released = slices.DeleteFunc(released, func(id int64) bool { return id == r.ID })
		if r.Outbox {
			cl.firstClaims.Add(1)
		}
	}
	return len(removed), released, err
}

const removeBehindSQL = `DELETE FROM S.chunk c USING unnest($1::bigint[]) u (id)
WHERE c.part = (u.id & 3)::smallint AND c.id = u.id AND c.node = -1 RETURNING c.id, c.outbox`

const sweepSQL = `WITH picked AS MATERIALIZED (
	SELECT c.part, c.id, c.node FROM S.chunk c, unnest($2::bigint[]) u (id)
	WHERE c.part = (u.id & 3)::smallint AND c.id = u.id ORDER BY c.id FOR UPDATE OF c
)` + claimPicked
