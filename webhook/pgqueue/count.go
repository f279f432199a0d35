package pgqueue

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

// Count implements webhook.Counter. What other processes have claimed counts as
// leased.
func (q *Queue) Count(ctx context.Context) (webhook.Counts, error) {
	if err := q.enter(ctx); err != nil {
		return webhook.Counts{}, err
	}
	defer q.calls.Done()
	var (
		c      webhook.Counts
		others int
		first  *int64
		b      pgx.Batch
	)
	node := q.nodeNow()
	b.Queue(q.sql.count, node).QueryRow(func(r pgx.Row) error { return r.Scan(&c.Waiting, &others, &first) })
	b.Queue(q.sql.countDead).QueryRow(func(r pgx.Row) error { return r.Scan(&c.Dead) })
	if err := q.pool.SendBatch(ctx, &b).Close(); err != nil {
		return webhook.Counts{}, fmt.Errorf("pgqueue: counting: %w", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now().UnixMicro()
	_, leased := q.table.Len(now)
	c.Leased = others + leased
	if at, ok := q.oldestHeld(now); ok && (first == nil || at < *first) {
		first = &at
	}
	if first != nil {
		c.Oldest = time.UnixMicro(*first).UTC()
	}
	return c, nil
}

func (q *Queue) nodeNow() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.node
}

// oldestHeld returns when the first is due of what is held and not leased. The queue is locked.
func (q *Queue) oldestHeld(now int64) (at int64, ok bool) {
	for _, c := range q.chunks {
		for _, it := range c.items {
			if it != nil && it.Waits() && (!ok || it.At < at) {
				at, ok = it.At, true
			}
		}
	}
	return at, ok
}

// CountByDestination implements webhook.DestinationCounter. What other processes
// have claimed counts as leased.
func (q *Queue) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return func(yield func(webhook.DestinationCounts, error) bool) {
		counts, err := q.countBy(ctx)
		for _, c := range counts {
			if !yield(c, nil) {
				return
			}
		}
		if err != nil {
			yield(webhook.DestinationCounts{}, err)
		}
	}
}

func (q *Queue) countBy(ctx context.Context) ([]webhook.DestinationCounts, error) {
	if err := q.enter(ctx); err != nil {
		return nil, err
	}
	defer q.calls.Done()
	rows, err := q.pool.Query(ctx, q.sql.countBy, q.nodeNow())
	if err != nil {
		return nil, fmt.Errorf("pgqueue: counting: %w", err)
	}
	counts, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (c webhook.DestinationCounts, err error) {
		var (
			name  []byte
			first *int64
		)
		err = r.Scan(&name, &c.Waiting, &c.Leased, &first)
		c.Destination = string(name)
		if first != nil {
			c.Oldest = time.UnixMicro(*first).UTC()
		}
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("pgqueue: counting: %w", err)
	}
	held := make(map[string]*webhook.DestinationCounts, len(counts))
	for i := range counts {
		held[counts[i].Destination] = &counts[i]
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range q.chunks {
		c := held[k.lane.Name]
		if c == nil {
			continue
		}
		for _, it := range k.items {
			switch {
			case it == nil:
			case it.Waits():
				if at := time.UnixMicro(it.At).UTC(); c.Oldest.IsZero() || at.Before(c.Oldest) {
					c.Oldest = at
				}
			default:
				c.Leased++
			}
		}
	}
	return counts, nil
}
