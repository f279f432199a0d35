package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook/store"
)

// scanDead reads the key and the record of a dead letter. If the record is damaged, the dead letter has
// nothing but its Key.
func (s *Store) scanDead(r pgx.CollectableRow) (d store.Ended, err error) {
	var key string
	var record []byte
	if err = r.Scan((*text)(&key), &record); err != nil {
		return d, err
	}
	if damage := d.UnmarshalBinary(record); damage != nil {
		s.config.Logger.Error("pgqueue: ignoring a dead letter that is damaged; discard it by its key", "key", key, "error", damage)
		d = store.Ended{}
	}
	d.Key = key
	return d, nil
}

// DeadLetter implements store.Store.
func (s *Store) DeadLetter(ctx context.Context, key string) (store.Ended, error) {
	what := "dead letter " + strconv.Quote(key)
	found, err := listed(ctx, s.database, what, s.scanDead, `SELECT key, record FROM S.dead WHERE key = $1`, []byte(key))
	switch {
	case err != nil:
		return store.Ended{}, err
	case len(found) == 0:
		return store.Ended{}, store.ErrNoDeadLetter
	case found[0].Destination == "":
		return store.Ended{}, fmt.Errorf("pgqueue: %s is damaged", what)
	}
	return found[0], nil
}

// Dead implements store.Store. It leaves out damaged dead letters.
func (s *Store) Dead(ctx context.Context, f store.EndedFilter, after string) iter.Seq2[store.Ended, error] {
	to := int64(never)
	if !f.To.IsZero() {
		to = f.To.UnixMicro()
	}
	order := "key > $6 ORDER BY key"
	if f.NewestFirst {
		order = "($6 = ''::bytea OR key < $6) ORDER BY key DESC"
	}
	list := paged(ctx, s.database, "reading dead letters", after, func(d store.Ended) string { return d.Key }, s.scanDead, `SELECT key, record FROM S.dead
WHERE ($1 = ''::bytea OR destination = $1) AND ($2 = ''::bytea OR type = $2) AND ($3 = ''::bytea OR reason = $3)
AND died >= $4 AND died < $5 AND `+order+` LIMIT $7`, []byte(f.Destination), []byte(f.Type), []byte(f.Reason), f.From.UnixMicro(), to)
	return func(yield func(store.Ended, error) bool) {
		for d, err := range list {
			selected := err != nil || d.Destination != "" && f.Match(&d) // the query does not filter by ID and User
			if selected && !yield(d, err) {
				return
			}
		}
	}
}

const discardSQL = `DELETE FROM S.dead WHERE key = ANY ($1::bytea[])`

// Discard implements store.Store.
func (s *Store) Discard(ctx context.Context, keys ...string) (n int, err error) {
	err = s.call(ctx, "discarding dead letters", func() error {
		tag, err := s.pool.Exec(ctx, s.in(discardSQL), bytesOf(keys))
		n = int(tag.RowsAffected())
		return err
	})
	return n, err
}

// Revive implements store.Store. Damaged dead letters stay.
func (s *Store) Revive(ctx context.Context, keys ...string) (n int, err error) {
	var names, found []string
	err = s.call(ctx, "reviving dead letters", func() error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			rows, err := collect(ctx, tx, s.scanDead, s.in(`SELECT key, record FROM S.dead WHERE key = ANY ($1::bytea[]) FOR UPDATE`), bytesOf(keys))
			if err != nil {
				return err
			}
			var all []*entry
			now := s.Now()
			for _, r := range rows {
				d := r.Delivery
				if d.Destination == "" {
					continue
				}
				d.Due, d.Expires, d.Tries, d.Closed = now, time.Time{}, 0, nil
				e, err := newEntry(&store.Put{Delivery: d, NoDedup: true})
				if err != nil {
					return err
				}
				all, found, names = append(all, e), append(found, r.Key), append(names, d.Destination)
			}
			node := s.nodeNow()
			var b pgx.Batch
			b.Queue(s.in(discardSQL), bytesOf(found))
			s.queuePut(&b, draftsOf(all), &node)
			return tx.SendBatch(ctx, &b).Close()
		})
	})
	s.hear(names...) // also after an error: the answer may be lost
	if err != nil {
		return 0, err
	}
	return len(found), nil
}

// Settings implements store.Store.
func (s *Store) Settings(ctx context.Context, prefix string) iter.Seq2[store.Setting, error] {
	return paged(ctx, s.database, "reading settings", "", func(e store.Setting) string { return e.Name },
		func(r pgx.CollectableRow) (e store.Setting, err error) {
			err = r.Scan((*text)(&e.Name), &e.Value, &e.Version)
			return e, err
		}, `SELECT name, value, version FROM S.setting
WHERE name >= $1 AND name > $2 AND substring(name FOR length($1)) = $1 ORDER BY name LIMIT $3`, []byte(prefix))
}

// Set implements store.Store.
func (s *Store) Set(ctx context.Context, e store.Setting) (version uint64, err error) {
	if err := e.Check(); err != nil {
		return 0, fmt.Errorf("pgqueue: %w", err)
	}
	err = s.call(ctx, "storing a setting", func() error {
		err := s.pool.QueryRow(ctx, s.in(setSQL), []byte(e.Name), e.Value, int64(e.Version)).Scan(&version)
		if errors.Is(err, pgx.ErrNoRows) {
			return store.ErrConflict
		}
		return err
	})
	return version, err
}

// setSQL removes version $3 of the setting $1, and stores it anew unless the value $2 is null. It returns
// the new version, or no row if there is a conflict.
const setSQL = `WITH old AS (
	DELETE FROM S.setting WHERE name = $1 AND version = $3 RETURNING name
), new AS (
	SELECT nextval('S.ids') AS version WHERE EXISTS (SELECT FROM old)
		OR $3::bigint = 0 AND NOT EXISTS (SELECT FROM S.setting WHERE name = $1)
), stored AS (
	INSERT INTO S.setting SELECT $1, $2::bytea, version FROM new WHERE $2 IS NOT NULL ON CONFLICT DO NOTHING RETURNING version
)
SELECT version FROM stored UNION ALL SELECT version FROM new WHERE $2 IS NULL`

// Count implements store.Store. Deliveries in chunks of other nodes count as claimed.
func (s *Store) Count(ctx context.Context) (c store.Counts, err error) {
	for d, err := range s.CountByDestination(ctx) {
		if err != nil {
			return store.Counts{}, err
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

// CountByDestination implements store.Store. Deliveries in chunks of other nodes count as
// claimed.
func (s *Store) CountByDestination(ctx context.Context) iter.Seq2[store.DestinationCounts, error] {
	return store.Page(func() ([]store.DestinationCounts, error) {
		counts, err := listed(ctx, s.database, "counting", func(r pgx.CollectableRow) (c store.DestinationCounts, err error) {
			var first int64
			err = r.Scan((*text)(&c.Destination), &c.Waiting, &c.Claimed, &first)
			c.Oldest = timeOf(first)
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
			for _, key := range queuesOf(c.Destination) {
				if it := s.queues[key].first(); it != nil && (c.Oldest.IsZero() || it.d.Due.Before(c.Oldest)) {
					c.Oldest = it.d.Due
				}
			}
		}
		return counts, nil
	})
}

// Waiting implements store.Store. To find the delivery with the ID after, it reads all deliveries
// before it.
func (s *Store) Waiting(ctx context.Context, destination, after string) iter.Seq2[store.Delivery, error] {
	return func(yield func(store.Delivery, error) bool) {
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
func (s *Store) inOrder(ctx context.Context, destination string) iter.Seq2[store.Delivery, error] {
	return func(yield func(store.Delivery, error) bool) {
		const what = "reading waiting deliveries"
		type bound struct{ ID, Due int64 } // a chunk, and a lower bound of its due times
		chunks, err := listed(ctx, s.database, what, pgx.RowToStructByPos[bound], waitingSQL, []byte(destination))
		var items []*item // read but not yielded yet
		for err == nil && len(chunks)+len(items) > 0 {
			var ids []int64
			for _, c := range chunks[:min(len(chunks), chunkPage)] {
				ids = append(ids, c.ID)
			}
			chunks = chunks[len(ids):]
			var read []*chunk
			read, err = listed(ctx, s.database, what, scanChunk, chunksSQL, ids)
			for _, c := range read {
				for j := range c.items {
					if c.items[j].state == free {
						items = append(items, &c.items[j])
					}
				}
			}
			slices.SortFunc(items, itemOrder)
			for err == nil && len(items) > 0 && (len(chunks) == 0 || items[0].due() < chunks[0].Due) {
				if !yield(items[0].d, nil) {
					return
				}
				items = items[1:]
			}
		}
		if err != nil {
			yield(store.Delivery{}, err)
		}
	}
}

// waitingSQL returns the first id of each chunk, which stays the same when a chunk is moved to another
// partition. chunksSQL reads chunks by their first ids.
const waitingSQL = `SELECT coalesce(origin, id), due FROM S.chunk WHERE node = 0 AND destination = $1
UNION ALL
SELECT coalesce(origin, id), due FROM S.chunk WHERE node <> 0 AND destination = $1
ORDER BY due`

const chunksSQL = `SELECT ` + chunkColumns + `, c.node FROM S.chunk c, unnest($1::bigint[]) u (id)
WHERE c.part = (u.id & 3)::smallint AND c.id = u.id
UNION ALL
SELECT ` + chunkColumns + `, c.node FROM S.chunk c, unnest($1::bigint[]) u (id) WHERE c.origin = u.id`
