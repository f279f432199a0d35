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

// headsPage is how many destinations one query is about.
const headsPage = 1000

// A head is the first chunk of a line that is not claimed; held is 0 if there is none.
type head struct {
	line lineKey
	due  int64
	held int
}

func scanHead(rs pgx.CollectableRow) (h head, err error) {
	var name []byte
	err = rs.Scan(&name, &h.line.retries, &h.due, &h.held)
	h.line.destination = string(name)
	return h, err
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
		ended := false
		defer func() {
			if ended {
				return
			}
			s.mu.Lock() // what was not yielded is still news
			s.allNew = s.allNew || all
			for _, name := range names {
				s.news[name] = true
			}
			s.mu.Unlock()
			s.signal()
		}()
		found := make(map[string]bool)
		give := func(hs []webhook.Head, err error) bool {
			for _, h := range hs {
				if found[h.Destination] = true; !yield(h, nil) {
					return false
				}
			}
			if err != nil {
				yield(webhook.Head{}, err)
			}
			return err == nil
		}
		if all {
			for after := []byte{}; after != nil; {
				hs, err := s.headsOf(ctx, headsAfterSQL, after, headsPage)
				if after = nil; len(hs) == headsPage {
					after = []byte(hs[headsPage-1].Destination)
				}
				if !give(hs, err) {
					return
				}
			}
			ended = give(s.restOf(found, at, began), nil)
			return
		}
		for ; !ended; ended = len(names) == 0 {
			some := names[:min(len(names), headsPage)]
			var args [][]byte
			var retries []bool
			for _, name := range some {
				args, retries = append(args, []byte(name), []byte(name)), append(retries, false, true)
			}
			if !give(s.headsOf(ctx, headsSQL, args, retries)) {
				return
			}
			names = names[len(some):]
		}
	}
}

// headsOf returns the heads that a query finds, with those of what is in memory.
func (s *fetcher) headsOf(ctx context.Context, sql string, args ...any) (hs []webhook.Head, err error) {
	err = s.call(ctx, "looking for what is due", func() error {
		if names, ok := args[0].([][]byte); ok && len(names) == 0 {
			return nil
		}
		s.mu.Lock()
		at := s.beginLook()
		s.mu.Unlock()
		var found []head
		var b pgx.Batch
		b.Queue(byIndex)
		b.Queue(s.in(sql), args...).Query(func(rows pgx.Rows) (err error) {
			found, err = pgx.CollectRows(rows, scanHead)
			return err
		})
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, h := range found {
			s.learn(s.lineOf(h.line), h, at)
		}
		for _, h := range found {
			if h.line.retries {
				hs = append(hs, s.head(h.line.destination))
			}
		}
		return nil
	})
	return hs, err
}

const headsSQL = `WITH l AS (SELECT * FROM unnest($1::bytea[], $2::boolean[]) l (destination, retry)) ` + headsOfL

const headsAfterSQL = `WITH RECURSIVE all_of AS (
	(SELECT destination FROM S.chunk WHERE node = 0 AND destination > $1 ORDER BY destination LIMIT 1)
	UNION ALL
	SELECT (SELECT destination FROM S.chunk WHERE node = 0 AND destination > l.destination ORDER BY destination LIMIT 1)
	FROM all_of l WHERE l.destination IS NOT NULL
),
l AS MATERIALIZED (
	SELECT destination, retry FROM (SELECT destination FROM all_of WHERE destination IS NOT NULL LIMIT $2) d, (VALUES (false), (true)) r (retry)
) ` + headsOfL + ` ORDER BY l.destination`

// headsOfL is the query for the first unclaimed chunk of each line of l.
const headsOfL = `SELECT l.destination, l.retry, coalesce(c.due, 0), coalesce(c.held, 0) FROM l LEFT JOIN LATERAL (
	SELECT due, held FROM S.chunk WHERE node = 0 AND destination = l.destination AND retry = l.retry ORDER BY due, id LIMIT 1
) c ON true`
