package pgqueue

import (
	"context"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

// Heads implements webhook.Store. It may yield destinations that this node itself has changed.
func (s *Store) Heads(ctx context.Context, all bool) iter.Seq2[webhook.Head, error] {
	return func(yield func(webhook.Head, error) bool) {
		s.mu.Lock()
		all := all || s.allNew
		names := s.news
		s.news, s.allNew = make(map[string]bool), false
		s.mu.Unlock()
		heads, err := s.look(ctx, all, slices.Collect(maps.Keys(names)))
		ended := err == nil
		for _, h := range heads {
			if ended = yield(h, nil); !ended {
				break
			}
		}
		if !ended {
			s.heardAny() // so that the next call yields the heads that this one did not
		}
		if err != nil {
			yield(webhook.Head{}, err)
		}
	}
}

// look reads the heads of all destinations, or of names, from the database. It combines them with
// the deliveries in memory. With all it also removes empty queues from memory.
func (s *Store) look(ctx context.Context, all bool, names []string) (heads []webhook.Head, err error) {
	sql, args := headsAllSQL, []any(nil)
	if !all {
		sql, args = headsSQL, []any{bytesOf(names)}
	}
	began := time.Now()
	s.mu.Lock()
	reports := s.reports
	s.mu.Unlock()
	var found []head
	err = s.call(ctx, "looking for due deliveries", func() error {
		if !all && len(names) == 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		found, err = indexed(ctx, s.pool, scanHead, s.in(sql), args...)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := make(map[queueKey]bool)
	for _, h := range found {
		s.learn(h, reports)
		seen[h.queue] = true
	}
	if all {
		rest := make(map[string]bool)
		for key, q := range s.queues {
			if !seen[key] {
				s.learn(head{queue: key}, reports)
			}
			if len(q.free) == 0 && q.beyond == never {
				delete(s.queues, key)
				continue
			}
			rest[key.destination] = true
		}
		names = slices.Collect(maps.Keys(rest))
		s.looked = time.Since(began)
	}
	for _, name := range names {
		fresh, retries := s.queueOf(queueKey{name, false}), s.queueOf(queueKey{name, true})
		heads = append(heads, webhook.Head{Destination: name, Fresh: fresh.next(), Retry: retries.next()})
	}
	return heads, nil
}

func scanHead(r pgx.CollectableRow) (h head, err error) {
	var name []byte
	err = r.Scan(&name, &h.queue.retries, &h.due, &h.waiting)
	h.queue.destination = string(name)
	return h, err
}

const headsSQL = `WITH d AS (SELECT unnest($1::bytea[]) AS destination) ` + headsOfD

// headsAllSQL returns the heads of all destinations. It looks each next destination up in an
// index, so it does not read all the chunks of a destination.
const headsAllSQL = `WITH RECURSIVE d AS (
	(SELECT destination FROM S.chunk WHERE node = 0 ORDER BY destination LIMIT 1)
	UNION ALL
	SELECT (SELECT destination FROM S.chunk WHERE node = 0 AND destination > d.destination ORDER BY destination LIMIT 1)
	FROM d WHERE d.destination IS NOT NULL
) ` + headsOfD

// headsOfD finds the first unclaimed chunk of both queues of each destination of d.
const headsOfD = `SELECT d.destination, q.retry, coalesce(c.due, 0), coalesce(c.waiting, 0)
FROM d CROSS JOIN (VALUES (false), (true)) q (retry) LEFT JOIN LATERAL (
	SELECT due, waiting FROM S.chunk WHERE node = 0 AND destination = d.destination AND retry = q.retry ORDER BY due, id LIMIT 1
) c ON true WHERE d.destination IS NOT NULL`
