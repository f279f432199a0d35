package pgqueue

import (
	"context"
	"fmt"
	"iter"
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
		s.db.config.Logger.Error("pgqueue: ignoring a dead letter that is damaged; discard it by its key", "key", key, "error", damage)
		d = store.Ended{}
	}
	d.Key = key
	return d, nil
}

// DeadLetter implements store.Store.
func (s *Store) DeadLetter(ctx context.Context, key string) (store.Ended, error) {
	what := "dead letter " + strconv.Quote(key)
	found, err := listed(ctx, s.db, what, s.scanDead, `SELECT key, record FROM S.dead WHERE key = $1`, []byte(key))
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
	list := paged(ctx, s.db, "reading dead letters", after, func(d store.Ended) string { return d.Key }, s.scanDead, `SELECT key, record FROM S.dead
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
	err = s.db.call(ctx, "discarding dead letters", func() error {
		tag, err := s.db.pool.Exec(ctx, s.db.in(discardSQL), bytesOf(keys))
		n = int(tag.RowsAffected())
		return err
	})
	return n, err
}

// Revive implements store.Store. Damaged dead letters stay.
func (s *Store) Revive(ctx context.Context, keys ...string) (n int, err error) {
	var names, found []string
	err = s.db.call(ctx, "reviving dead letters", func() error {
		return pgx.BeginFunc(ctx, s.db.pool, func(tx pgx.Tx) error {
			rows, err := collect(ctx, tx, s.scanDead, s.db.in(`SELECT key, record FROM S.dead WHERE key = ANY ($1::bytea[]) FOR UPDATE`), bytesOf(keys))
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
				d.Seq, d.Due, d.Expires, d.Tries, d.Closed = 0, now, time.Time{}, 0, nil
				e, err := newEntry(&store.Put{Delivery: d, NoDedup: true})
				if err != nil {
					return err
				}
				all, found, names = append(all, e), append(found, r.Key), append(names, d.Destination)
			}
			node := s.memory.nodeNow()
			var b pgx.Batch
			b.Queue(s.db.in(discardSQL), bytesOf(found))
			s.db.queuePut(&b, draftsOf(all), &node)
			return tx.SendBatch(ctx, &b).Close()
		})
	})
	s.memory.hear(names...) // also after an error: the answer may be lost
	if err != nil {
		return 0, err
	}
	return len(found), nil
}
