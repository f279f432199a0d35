package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// wellFormed returns the keys that have the form of a dead letter's key. It leaves out the others.
func wellFormed(keys ...string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return strings.Trim(key, "0123456789abcdef") != "" })
}

// scanDead reads the key and the record of a dead letter. If the record is damaged, scanDead logs
// that and returns a dead letter that has nothing but its Key.
func (s *Store) scanDead(r pgx.CollectableRow) (d webhook.DeadLetter, err error) {
	var key string
	var record []byte
	if err = r.Scan(&key, &record); err != nil {
		return d, err
	}
	if damage := d.UnmarshalBinary(record); damage != nil {
		s.config.Logger.Error("pgqueue: ignoring a dead letter that is damaged; discard it by its key", "key", key, "error", damage)
		d = webhook.DeadLetter{}
	}
	d.Key = key
	return d, nil
}

// DeadLetter implements webhook.Store.
func (s *Store) DeadLetter(ctx context.Context, key string) (d webhook.DeadLetter, err error) {
	err = s.call(ctx, "dead letter "+strconv.Quote(key), func() error {
		var record []byte
		err := s.pool.QueryRow(ctx, s.in(`SELECT record FROM S.dead WHERE key = ANY ($1)`), wellFormed(key)).Scan(&record)
		if errors.Is(err, pgx.ErrNoRows) {
			return webhook.ErrNoDeadLetter
		}
		if err == nil {
			err = d.UnmarshalBinary(record)
		}
		d.Key = key
		return err
	})
	return d, err
}

// Dead implements webhook.Store. It leaves out damaged dead letters.
func (s *Store) Dead(ctx context.Context, f webhook.DeadFilter, after string) iter.Seq2[webhook.DeadLetter, error] {
	to := int64(never)
	if !f.To.IsZero() {
		to = f.To.UnixMicro()
	}
	return storekit.Pages(after, func(after string) (ds []webhook.DeadLetter, next string, err error) {
		if len(wellFormed(after)) == 0 {
			return nil, "", fmt.Errorf("pgqueue: %q is not the key of a dead letter", after)
		}
		where, order := "key > $1", "key"
		if f.NewestFirst {
			where, order = "($1 = '' OR key < $1)", "key DESC"
		}
		rows, err := listed(ctx, s.database, "reading dead letters", s.scanDead, `SELECT key, record FROM S.dead
WHERE `+where+` AND ($2 = '\x'::bytea OR destination = $2) AND ($3 = '\x'::bytea OR type = $3)
AND ($4 = '\x'::bytea OR reason = $4) AND died >= $5 AND died < $6
ORDER BY `+order+` LIMIT $7`, after, []byte(f.Destination), []byte(f.Type), []byte(f.Reason), f.From.UnixMicro(), to, page)
		if err != nil {
			return nil, "", err
		}
		for _, d := range rows {
			if d.Destination != "" && f.Match(&d) { // the query does not filter by ID and User
				ds = append(ds, d)
			}
		}
		if len(rows) == page {
			next = rows[page-1].Key
		}
		return ds, next, nil
	})
}

const discardSQL = `DELETE FROM S.dead WHERE key = ANY ($1)`

// Discard implements webhook.Store.
func (s *Store) Discard(ctx context.Context, keys ...string) (n int, err error) {
	err = s.call(ctx, "discarding dead letters", func() error {
		tag, err := s.pool.Exec(ctx, s.in(discardSQL), wellFormed(keys...))
		n = int(tag.RowsAffected())
		return err
	})
	return n, err
}

// Revive implements webhook.Store. Damaged dead letters stay.
func (s *Store) Revive(ctx context.Context, keys ...string) (n int, err error) {
	err = s.call(ctx, "reviving dead letters", func() error {
		var names []string
		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			rows, err := collect(ctx, tx, s.scanDead, s.in(`SELECT key, record FROM S.dead WHERE key = ANY ($1) FOR UPDATE`), wellFormed(keys...))
			if err != nil {
				return err
			}
			var ds []webhook.Delivery
			found := []string{}
			now := s.Now()
			for _, r := range rows {
				if d := r.Delivery; d.Destination != "" {
					d.Due, d.Expires, d.Tries, d.Closed = now, time.Time{}, 0, nil
					ds, found, names = append(ds, d), append(found, r.Key), append(names, d.Destination)
				}
			}
			all, err := entriesOf(ds, false)
			if err != nil {
				return err
			}
			n = len(ds)
			node := s.nodeNow()
			var b pgx.Batch
			b.Queue(s.in(discardSQL), found)
			s.queuePut(&b, draftsOf(all), &node)
			return tx.SendBatch(ctx, &b).Close()
		})
		if err != nil {
			n = 0
		}
		s.hear(names...) // also after an error: the answer may be lost
		return err
	})
	return n, err
}

// Settings implements webhook.Store.
func (s *Store) Settings(ctx context.Context, prefix string) iter.Seq2[webhook.Setting, error] {
	return paged(ctx, s.database, "reading settings", "", func(e webhook.Setting) string { return e.Name },
		func(r pgx.CollectableRow) (e webhook.Setting, err error) {
			var name []byte
			err = r.Scan(&name, &e.Value, &e.Version)
			e.Name = string(name)
			return e, err
		}, `SELECT name, value, version FROM S.setting
WHERE name >= $1 AND name > $2 AND substring(name FOR length($1)) = $1 ORDER BY name LIMIT $3`, []byte(prefix))
}

// Set implements webhook.Store.
func (s *Store) Set(ctx context.Context, e webhook.Setting) (version uint64, err error) {
	if err := e.Check(); err != nil {
		return 0, fmt.Errorf("pgqueue: %w", err)
	}
	sql, args := `SELECT nextval('S.ids') WHERE NOT EXISTS (SELECT FROM S.setting WHERE name = $1)`, []any{[]byte(e.Name)}
	switch {
	case e.Version == 0 && e.Value != nil:
		sql, args = `INSERT INTO S.setting VALUES ($1, $2, nextval('S.ids')) ON CONFLICT DO NOTHING RETURNING version`, append(args, e.Value)
	case e.Version != 0 && e.Value != nil:
		sql = `UPDATE S.setting SET value = $2, version = nextval('S.ids') WHERE name = $1 AND version = $3 RETURNING version`
		args = append(args, e.Value, int64(e.Version))
	case e.Version != 0:
		sql = `WITH gone AS (DELETE FROM S.setting WHERE name = $1 AND version = $2 RETURNING name) SELECT nextval('S.ids') FROM gone`
		args = append(args, int64(e.Version))
	}
	err = s.call(ctx, "storing a setting", func() error {
		err := s.pool.QueryRow(ctx, s.in(sql), args...).Scan(&version)
		if errors.Is(err, pgx.ErrNoRows) {
			return webhook.ErrConflict
		}
		return err
	})
	return version, err
}

// Count implements webhook.Store. Deliveries in chunks of other nodes count as claimed.
func (s *Store) Count(ctx context.Context) (c webhook.Counts, err error) {
	for d, err := range s.CountByDestination(ctx) {
		if err != nil {
			return webhook.Counts{}, err
		}
		c.Waiting += d.Waiting
		c.Claimed += d.Claimed
		if !d.Oldest.IsZero() && (c.Oldest.IsZero() || d.Oldest.Before(c.Oldest)) {
			c.Oldest = d.Oldest
		}
	}
	err = s.call(ctx, "counting", func() error {
		var died int64
		err := s.pool.QueryRow(ctx, s.in(`SELECT count(*), coalesce(sum(size), 0)::bigint, coalesce(min(died), $1) FROM S.dead`), int64(never)).
			Scan(&c.Dead, &c.DeadBytes, &died)
		c.OldestDead = timeOf(died)
		return err
	})
	return c, err
}

// CountByDestination implements webhook.Store. Deliveries in chunks of other nodes count as
// claimed.
func (s *Store) CountByDestination(ctx context.Context) iter.Seq2[webhook.DestinationCounts, error] {
	return storekit.Page(func() ([]webhook.DestinationCounts, error) {
		counts, err := listed(ctx, s.database, "counting", func(r pgx.CollectableRow) (c webhook.DestinationCounts, err error) {
			var name []byte
			var first int64
			err = r.Scan(&name, &c.Waiting, &c.Claimed, &first)
			c.Destination, c.Oldest = string(name), timeOf(first)
			return c, err
		}, `SELECT destination, sum(waiting), coalesce(sum(waiting) FILTER (WHERE node NOT IN (0, $1)), 0),
	coalesce(min(due) FILTER (WHERE node = 0), $2) FROM S.chunk GROUP BY destination`, s.nodeNow(), int64(never))
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		claimed := make(map[string]int)
		for _, it := range s.claims {
			claimed[it.chunk.queue.destination]++
		}
		for i := range counts {
			c := &counts[i]
			c.Claimed += claimed[c.Destination]
			for _, retries := range []bool{false, true} {
				it := s.queues[queueKey{c.Destination, retries}].first()
				if it != nil && (c.Oldest.IsZero() || timeOf(it.due).Before(c.Oldest)) {
					c.Oldest = timeOf(it.due)
				}
			}
		}
		return counts, nil
	})
}

// waitingPage is how many chunks Waiting reads at a time.
const waitingPage = 16

// Waiting implements webhook.Store. If the argument after is not empty, it is the ID of a delivery,
// and Waiting yields the deliveries behind this one. For that, it also reads all deliveries before
// it. If there is no delivery with this ID, Waiting yields all deliveries.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[webhook.Delivery, error] {
	return func(yield func(webhook.Delivery, error) bool) {
		found := after == ""
		for d, err := range s.inOrder(ctx, destination) {
			if err == nil && !found {
				found = d.ID == after
			} else if !yield(d, err) || err != nil {
				return
			}
		}
		if !found {
			s.inOrder(ctx, destination)(yield)
		}
	}
}

// inOrder yields the deliveries of a destination, ordered by Due.
func (s *Store) inOrder(ctx context.Context, destination string) iter.Seq2[webhook.Delivery, error] {
	return func(yield func(webhook.Delivery, error) bool) {
		const what = "reading waiting deliveries"
		type bound struct{ ID, Due int64 } // a chunk, and a lower bound of its due times
		chunks, err := listed(ctx, s.database, what, pgx.RowToStructByPos[bound], waitingSQL, []byte(destination))
		var items []*item // read but not yielded yet
		for err == nil && len(chunks)+len(items) > 0 {
			var ids []int64
			for _, c := range chunks[:min(len(chunks), waitingPage)] {
				ids = append(ids, c.ID)
			}
			chunks = chunks[len(ids):]
			var rows []row
			rows, err = listed(ctx, s.database, what, scanRow, chunksSQL, ids)
			for i := range rows {
				c, _ := readChunk(&rows[i]) // ignore the error: a damaged chunk must hide no other
				for j := range c.items {
					if c.items[j].state == free {
						items = append(items, &c.items[j])
					}
				}
			}
			slices.SortFunc(items, itemOrder)
			for err == nil && len(items) > 0 && (len(chunks) == 0 || items[0].due < chunks[0].Due) {
				if d, err := items[0].delivery(); err == nil && !yield(d, nil) {
					return
				}
				items = items[1:]
			}
		}
		if err != nil {
			yield(webhook.Delivery{}, err)
		}
	}
}

const waitingSQL = `SELECT id, due FROM S.chunk WHERE node = 0 AND destination = $1
UNION ALL
SELECT id, due FROM S.chunk WHERE node <> 0 AND destination = $1
ORDER BY due`

const chunksSQL = `SELECT ` + rowColumns + `, c.node, c.outbox FROM S.chunk c, unnest($1::bigint[]) u (id)
WHERE c.part = (u.id & 3)::smallint AND c.id = u.id`
