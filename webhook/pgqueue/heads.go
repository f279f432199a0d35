package pgqueue

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// headsPage is how many destinations one query is about.
const headsPage = 1000

// A first says of both queues of a destination what the first unclaimed chunk is.
type first struct {
	destination  string
	fresh, retry unclaimed
}

// An unclaimed is a chunk that is not claimed; held is 0 if there is none.
type unclaimed struct {
	due  int64
	held int
}

func scanFirst(rs pgx.CollectableRow) (f first, err error) {
	var (
		name                 []byte
		due, held, due2, hd2 *int64
	)
	err = rs.Scan(&name, &due, &held, &due2, &hd2)
	f.destination = string(name)
	if due != nil {
		f.fresh = unclaimed{*due, int(*held)}
	}
	if due2 != nil {
		f.retry = unclaimed{*due2, int(*hd2)}
	}
	return f, err
}

// Heads implements webhook.Store. It may yield destinations that this node itself has changed.
// A look at all destinations forgets the lines that it does not find.
func (s *fetcher) Heads(ctx context.Context, all bool) iter.Seq2[webhook.Head, error] {
	return func(yield func(webhook.Head, error) bool) {
		began := time.Now()
		s.mu.Lock()
		names, at := slices.Collect(maps.Keys(s.news)), s.beginLook()
		all = all || s.allNew
		clear(s.news)
		s.allNew = false
		s.mu.Unlock()
		found, rest, after := make(map[string]bool), names, []byte{}
		ended := false // there are no more pages
		for h, err := range storekit.Pages("more", func(more string) (hs []webhook.Head, _ string, err error) {
			switch {
			case ended:
				return s.restOf(found, at, began), "", nil
			case all:
				hs, err = s.headsOf(ctx, s.in(headsAfterSQL), after, headsPage)
				if ended = len(hs) < headsPage; !ended {
					after = []byte(hs[headsPage-1].Destination)
				}
				return hs, more, err
			}
			some := rest[:min(len(rest), headsPage)]
			if rest = rest[len(some):]; len(rest) == 0 {
				more = ""
			}
			args := make([][]byte, len(some))
			for i, name := range some {
				args[i] = []byte(name)
			}
			hs, err = s.headsOf(ctx, s.in(headsSQL), args)
			return hs, more, err
		}) {
			found[h.Destination] = true
			if !yield(h, err) || err != nil {
				s.mu.Lock() // what was not yielded is still news
				s.allNew = s.allNew || all
				for _, name := range names {
					s.news[name] = true
				}
				s.mu.Unlock()
				s.signal()
				return
			}
		}
	}
}

// headsOf returns the heads that a query finds, with those of what is in memory.
func (s *fetcher) headsOf(ctx context.Context, sql string, args ...any) (hs []webhook.Head, err error) {
	if err := s.calls.Enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.Leave()
	if names, ok := args[0].([][]byte); ok && len(names) == 0 {
		return nil, nil
	}
	s.mu.Lock()
	at := s.beginLook()
	s.mu.Unlock()
	var firsts []first
	var b pgx.Batch
	b.Queue(byIndex)
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		firsts, err = pgx.CollectRows(rows, scanFirst)
		return err
	})
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("pgqueue: looking for what is due: %w", oneLine(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range firsts {
		s.learn(s.lineOf(lineKey{f.destination, false}), f.fresh, at)
		s.learn(s.lineOf(lineKey{f.destination, true}), f.retry, at)
		hs = append(hs, s.head(f.destination))
	}
	return hs, nil
}

const headsSQL = `WITH l AS (SELECT * FROM unnest($1::bytea[]) l (destination)) ` + headsOfL

const headsAfterSQL = `WITH RECURSIVE all_of AS (
	(SELECT destination FROM S.chunk WHERE node = 0 AND destination > $1 ORDER BY destination LIMIT 1)
	UNION ALL
	SELECT (SELECT destination FROM S.chunk WHERE node = 0 AND destination > l.destination ORDER BY destination LIMIT 1)
	FROM all_of l WHERE l.destination IS NOT NULL
),
l AS MATERIALIZED (SELECT destination FROM all_of WHERE destination IS NOT NULL LIMIT $2) ` + headsOfL + ` ORDER BY l.destination`

// headsOfL is the query for the first unclaimed chunk of both queues of each destination of l.
const headsOfL = `SELECT l.destination, f.due, f.held, r.due, r.held FROM l
LEFT JOIN LATERAL (SELECT due, held FROM S.chunk WHERE node = 0 AND destination = l.destination AND NOT retry ORDER BY due, id LIMIT 1) f ON true
LEFT JOIN LATERAL (SELECT due, held FROM S.chunk WHERE node = 0 AND destination = l.destination AND retry ORDER BY due, id LIMIT 1) r ON true`
