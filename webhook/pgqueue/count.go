package pgqueue

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A reader says what waits.
type reader struct{ *memory }

// Count implements webhook.Store. What is in chunks of other nodes counts as claimed.
func (s *reader) Count(ctx context.Context) (c webhook.Counts, err error) {
	if err := s.calls.Enter(ctx); err != nil {
		return c, err
	}
	defer s.calls.Leave()
	var first, died *int64
	var b pgx.Batch
	b.Queue(s.in(`SELECT coalesce(sum(held), 0), coalesce(sum(held) FILTER (WHERE node NOT IN (0, $1)), 0),
	min(due) FILTER (WHERE node = 0) FROM S.chunk`), s.nodeNow()).QueryRow(func(r pgx.Row) error { return r.Scan(&c.Waiting, &c.Claimed, &first) })
	b.Queue(s.in(`SELECT count(*), coalesce(sum(size), 0)::bigint, min(died) FROM S.dead`)).QueryRow(func(r pgx.Row) error { return r.Scan(&c.Dead, &c.DeadBytes, &died) })
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return webhook.Counts{}, fmt.Errorf("pgqueue: counting: %w", err)
	}
	c.Oldest, c.OldestDead = timeAt(first), timeAt(died)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Claimed += len(s.claimed)
	for _, l := range s.lines {
		c.Oldest = earliest(c.Oldest, l.first())
	}
	return c, nil
}

func timeAt(micros *int64) time.Time {
	if micros == nil {
		return time.Time{}
	}
	return timeOf(*micros)
}

// earliest returns the earlier of t, unless it is zero, and when it is due, unless it is nil.
func earliest(t time.Time, it *item) time.Time {
	if it != nil && (t.IsZero() || it.due < t.UnixMicro()) {
		return timeOf(it.due)
	}
	return t
}

// CountByDestination implements webhook.Store. What is in chunks of other nodes counts as
// claimed.
func (s *reader) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return storekit.Page(func() ([]webhook.DestinationCounts, error) {
		counts, err := listed(ctx, s.database, func(r pgx.CollectableRow) (c webhook.DestinationCounts, err error) {
			var name []byte
			var first *int64
			err = r.Scan(&name, &c.Waiting, &c.Claimed, &first)
			c.Destination, c.Oldest = string(name), timeAt(first)
			return c, err
		}, s.in(`SELECT destination, sum(held), coalesce(sum(held) FILTER (WHERE node NOT IN (0, $1)), 0),
	min(due) FILTER (WHERE node = 0) FROM S.chunk GROUP BY destination`), s.nodeNow())
		if err != nil {
			return nil, fmt.Errorf("pgqueue: counting: %w", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		claimed := make(map[string]int)
		for _, it := range s.claimed {
			claimed[it.chunk.line.destination]++
		}
		for i := range counts {
			c := &counts[i]
			c.Claimed += claimed[c.Destination]
			for _, retries := range []bool{false, true} {
				if l := s.lines[lineKey{c.Destination, retries}]; l != nil {
					c.Oldest = earliest(c.Oldest, l.first())
				}
			}
		}
		return counts, nil
	})
}
