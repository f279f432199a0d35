package pgqueue

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// Counting reads a row for each chunk. From manyChunks on an answer is given again
// for countRest times as long as it took, so that counts, however many are asked for by
// a process, take a small part of the database's time.
const (
	manyChunks = 100_000
	countRest  = 20
)

// A memo is the answer to a question of the database, as long as it is given.
type memo[T any] struct {
	turn  chan struct{} // has a value while somebody has the rest
	value T
	until time.Time
}

func newMemo[T any]() memo[T] { return memo[T]{turn: make(chan struct{}, 1)} }

// get returns the answer, which ask looks for if need be, and counts the chunks of.
// One asks at a time; the others wait for the answer, until ctx ends.
func (m *memo[T]) get(ctx context.Context, ask func() (value T, chunks int, err error)) (value T, err error) {
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return value, ctx.Err()
	}
	defer func() { <-m.turn }()
	begin := time.Now()
	if begin.Before(m.until) {
		return m.value, nil
	}
	value, chunks, err := ask()
	if err == nil && chunks >= manyChunks {
		now := time.Now()
		m.value, m.until = value, now.Add(countRest*now.Sub(begin))
	}
	return value, err
}

// counted is what the database says for Count.
type counted struct {
	waiting, others, dead int
	first                 *int64
}

// Count implements webhook.Counter. What other processes have claimed counts as
// leased. With a backlog of more than 100,000 rows the answer may be older by twenty
// times what it takes.
func (q *Queue) Count(ctx context.Context) (webhook.Counts, error) {
	if err := q.calls.Enter(ctx); err != nil {
		return webhook.Counts{}, err
	}
	defer q.calls.Leave()
	n, err := q.counted.get(ctx, func() (n counted, chunks int, err error) {
		var b pgx.Batch
		b.Queue(q.sql.count, q.nodeNow()).QueryRow(func(r pgx.Row) error { return r.Scan(&n.waiting, &n.others, &n.first, &chunks) })
		b.Queue(q.sql.countDead).QueryRow(func(r pgx.Row) error { return r.Scan(&n.dead) })
		err = q.pool.SendBatch(ctx, &b).Close()
		return n, chunks, err
	})
	if err != nil {
		return webhook.Counts{}, fmt.Errorf("pgqueue: counting: %w", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now().UnixMicro()
	_, leased := q.table.Len(now)
	c := webhook.Counts{Waiting: n.waiting, Claimed: n.others + leased, Dead: n.dead}
	if at, ok := q.oldestHeld(now); ok && (n.first == nil || at < *n.first) {
		n.first = &at
	}
	if n.first != nil {
		c.Oldest = time.UnixMicro(*n.first).UTC()
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
// have claimed counts as leased. Its answer may be as old as that of Count.
func (q *Queue) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return storekit.Page(func() ([]webhook.DestinationCounts, error) { return q.countBy(ctx) })
}

func (q *Queue) countBy(ctx context.Context) ([]webhook.DestinationCounts, error) {
	if err := q.calls.Enter(ctx); err != nil {
		return nil, err
	}
	defer q.calls.Leave()
	counts, err := q.countedBy.get(ctx, func() (counts []webhook.DestinationCounts, chunks int, err error) {
		rows, err := q.pool.Query(ctx, q.sql.countBy, q.nodeNow())
		if err != nil {
			return nil, 0, err
		}
		counts, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (c webhook.DestinationCounts, err error) {
			var (
				name  []byte
				first *int64
				n     int
			)
			err = r.Scan(&name, &c.Waiting, &c.Claimed, &first, &n)
			c.Destination = string(name)
			if first != nil {
				c.Oldest = time.UnixMicro(*first).UTC()
			}
			chunks += n
			return c, err
		})
		return counts, chunks, err
	})
	if err != nil {
		return nil, fmt.Errorf("pgqueue: counting: %w", err)
	}
	counts = slices.Clone(counts) // the answer may be given again
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
				c.Claimed++
			}
		}
	}
	return counts, nil
}
