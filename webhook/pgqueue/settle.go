package pgqueue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
)

// A settle is a call of Settle that waits for its transaction.
type settle struct {
	ends []ending
	err  error
	done chan struct{}
}

// An ending is the end of the lease of an item.
type ending struct {
	item    *lanes.Item
	chunk   *chunk
	verdict webhook.Verdict
	// again is what a Retry puts back.
	again *webhook.Delivery
	// record is that of again, or of the dead letter.
	record []byte
	reason webhook.Reason
	died   int64
}

// Settle implements webhook.Queue.
func (q *Queue) Settle(ctx context.Context, ss ...webhook.Settlement) error {
	if err := q.calls.Enter(ctx); err != nil {
		return err
	}
	defer q.calls.Leave()
	ends, size, err := endings(ss)
	if err != nil {
		return err
	}
	s := &settle{done: make(chan struct{})}
	q.mu.Lock()
	now := q.now()
	for i := range ss {
		it := q.table.Leased(ss[i].Delivery.Claim)
		if it == nil {
			continue
		}
		c := it.Home.(*chunk)
		c.used = now
		if it.Settling() {
			continue
		}
		q.table.Detach(it, now.UnixMicro())
		e := ends[i]
		e.item, e.chunk = it, c
		s.ends = append(s.ends, e)
	}
	q.mu.Unlock()
	if len(s.ends) == 0 {
		return nil
	}
	q.settles.Add(s, size)
	<-s.done
	return s.err
}

// endings checks and encodes ss.
func endings(ss []webhook.Settlement) (ends []ending, size int, err error) {
	ends = make([]ending, len(ss))
	for i := range ss {
		s := &ss[i]
		e := &ends[i]
		e.verdict = s.Verdict
		switch s.Verdict {
		case webhook.Done:
			size += 64
			continue
		case webhook.Retry:
			e.again = &s.Delivery
			e.record, err = s.Delivery.AppendBinary(nil)
		case webhook.Bury:
			d := webhook.DeadLetter{Delivery: s.Delivery, Reason: s.Reason, Died: s.At}
			e.reason, e.died = s.Reason, s.At.UnixMicro()
			e.record, err = d.AppendBinary(nil)
		default:
			err = fmt.Errorf("verdict %d", s.Verdict)
		}
		if err != nil {
			return nil, 0, fmt.Errorf("pgqueue: settlement %d: %w", i, err)
		}
		size += len(e.record)
	}
	return ends, size, nil
}

// A progress is what a transaction changes in a chunk.
type progress struct {
	chunk *chunk
	set   []int // the deliveries that are done
	lost  bool  // the chunk is no longer this node's
}

// settled stores settles in one transaction. It is called by one goroutine, which
// alone changes what chunks have done.
func (q *Queue) settled(settles []*settle) {
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	node := q.dropLost(settles)
	if err := q.settleAll(ctx, node, settles); err != nil {
		q.mu.Lock()
		for _, s := range settles {
			s.err = fmt.Errorf("pgqueue: settling: %w", oneLine(err))
			for i := range s.ends {
				e := &s.ends[i]
				q.unsure[e.chunk] = true
				if e.chunk.node != q.node {
					q.removeItem(e.chunk, e.item, q.now().UnixMicro())
				} else {
					q.table.Attach(e.item)
				}
			}
		}
		q.mu.Unlock()
	}
	for _, s := range settles {
		close(s.done)
	}
	if q.releasing.Load() {
		if err := q.release(ctx); err != nil {
			q.config.Logger.Debug("pgqueue: others have to wait for the end of this process", "error", err)
		}
	}
}

// dropLost takes the endings out of settles whose chunks were claimed by a node
// that this process no longer is, and returns the one it is.
func (q *Queue) dropLost(settles []*settle) (node int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now().UnixMicro()
	for _, s := range settles {
		s.ends = slices.DeleteFunc(s.ends, func(e ending) bool {
			lost := e.chunk.node != q.node
			if lost {
				q.removeItem(e.chunk, e.item, now)
			}
			return lost
		})
	}
	return q.node
}

func (q *Queue) settleAll(ctx context.Context, node int64, batch []*settle) error {
	conn, err := q.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // which closes one that is within a transaction
	if err := q.verify(ctx, conn, node); err != nil {
		return err
	}
	var (
		changed []*progress
		of      = make(map[*chunk]*progress)
		again   []*ending
		dead    []*ending
	)
	for _, s := range batch {
		for i := range s.ends {
			e := &s.ends[i]
			if e.chunk.over || isSet(e.chunk.done, e.item.Index) {
				continue // it is stored, or lost
			}
			p := of[e.chunk]
			if p == nil {
				p = &progress{chunk: e.chunk}
				of[e.chunk] = p
				changed = append(changed, p)
			}
			p.set = append(p.set, e.item.Index)
			switch e.verdict {
			case webhook.Retry:
				again = append(again, e)
			case webhook.Bury:
				dead = append(dead, e)
			}
		}
	}
	var b pgx.Batch
	more := len(again)+len(dead) > 0
	if more {
		b.Queue("BEGIN")
	}
	kept := make(map[int64]bool, len(changed))
	if len(changed) > 0 {
		b.Queue(byIndex)
		q.queueProgress(&b, node, changed, kept)
		if err := conn.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
	}
	for _, p := range changed {
		if p.lost = !kept[p.chunk.key.id]; p.lost {
			q.doubts()
		}
	}
	if more {
		b = pgx.Batch{}
		now := time.Now()
		w := drafter{now: now}
		slices.SortStableFunc(again, func(x, y *ending) int { return cmp.Compare(x.again.Due.UnixMicro(), y.again.Due.UnixMicro()) })
		for _, e := range again {
			if !of[e.chunk].lost {
				w.add(e.chunk.lane.Name, e.again.Due, e.record)
			}
		}
		q.queueDead(&b, slices.DeleteFunc(dead, func(e *ending) bool { return of[e.chunk].lost }))
		if err := q.commit(ctx, conn, &b, w.drafts, now); err != nil {
			return err
		}
	}

	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now().UnixMicro()
	for _, s := range batch {
		for i := range s.ends {
			q.removeItem(s.ends[i].chunk, s.ends[i].item, now)
		}
	}
	for _, p := range changed {
		p.chunk.held -= len(p.set)
		p.chunk.done = withSet(p.chunk.done, p.chunk.n, p.set)
		if p.lost || p.chunk.held == 0 {
			q.forget(p.chunk, now)
		}
	}
	return nil
}

// verify finds out what was stored of the progress of the chunks that are unsure.
// If their transaction is still at work, it waits for that.
func (q *Queue) verify(ctx context.Context, conn *pgxpool.Conn, node int64) error {
	if len(q.unsure) == 0 {
		return nil
	}
	var shelves []int16
	var ids []int64
	for c := range q.unsure {
		shelves, ids = append(shelves, c.key.shelf), append(ids, c.key.id)
	}
	rows, err := conn.Query(ctx, q.sql.verify, node, shelves, ids)
	if err != nil {
		return err
	}
	type state struct {
		held int16
		done []byte
	}
	states := make(map[int64]state)
	var (
		id int64
		s  state
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &s.held, &s.done}, func() error {
		states[id] = state{s.held, slices.Clone(s.done)}
		return nil
	}); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for c := range q.unsure {
		if s, ok := states[c.key.id]; ok && c.node == node {
			c.held, c.done = int(s.held), s.done
			continue
		}
		c.over = true
		q.forget(c, q.now().UnixMicro())
	}
	clear(q.unsure)
	return nil
}

// queueProgress queues the statements that store progress, and notes the ids of
// the chunks that were still this node's.
func (q *Queue) queueProgress(b *pgx.Batch, node int64, changed []*progress, kept map[int64]bool) {
	note := func(rows pgx.Rows) error {
		for rows.Next() {
			var id int64
			if err := rows.Scan(&id); err != nil {
				return err
			}
			kept[id] = true
		}
		return rows.Err()
	}
	var (
		fullShelves, shelves []int16
		fullIDs, ids         []int64
		before, held         []int16
		done                 [][]byte
	)
	for _, p := range changed {
		c := p.chunk
		if left := c.held - len(p.set); left == 0 {
			fullShelves, fullIDs = append(fullShelves, c.key.shelf), append(fullIDs, c.key.id)
		} else {
			shelves, ids = append(shelves, c.key.shelf), append(ids, c.key.id)
			before = append(before, int16(c.held))
			held, done = append(held, int16(left)), append(done, withSet(c.done, c.n, p.set))
		}
	}
	if len(fullIDs) > 0 {
		b.Queue(q.sql.finish, node, fullShelves, fullIDs).Query(note)
	}
	if len(ids) > 0 {
		b.Queue(q.sql.advance, node, shelves, ids, before, held, done).Query(note)
	}
}

// queueDead queues the statement that stores dead letters.
func (q *Queue) queueDead(b *pgx.Batch, dead []*ending) {
	if len(dead) == 0 {
		return
	}
	var (
		died                           = make([]int64, len(dead))
		names, types, reasons, records = make([][]byte, len(dead)), make([][]byte, len(dead)), make([][]byte, len(dead)), make([][]byte, len(dead))
	)
	for i, e := range dead {
		died[i], reasons[i], records[i] = e.died, []byte(e.reason), e.record
		names[i], types[i] = []byte(e.item.Lane().Name), []byte(e.item.Type)
	}
	b.Queue(q.sql.bury, died, names, types, reasons, records)
}

// removeItem takes an item out of memory. The queue is locked.
func (q *Queue) removeItem(c *chunk, it *lanes.Item, now int64) {
	q.table.Remove(it, now)
	c.items[it.Index] = nil
	c.size -= it.Size
	q.cached -= it.Size
}

// forget takes a chunk, which may be lost, out of memory, but for items that are
// being settled. The queue is locked.
func (q *Queue) forget(c *chunk, now int64) {
	q.table.Expel(c.lane, func(it *lanes.Item) bool { return it.Home == c }, now)
	for i, it := range c.items {
		if it == nil || it.Settling() {
			continue
		}
		if !it.Gone() {
			q.table.Remove(it, now)
		}
		c.items[i] = nil
		c.size -= it.Size
		q.cached -= it.Size
	}
	if q.chunks[c.key] == c { // not claimed again meanwhile
		delete(q.chunks, c.key)
	}
}
