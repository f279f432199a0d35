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
			sender := s.nodeNow()
			var b pgx.Batch
			b.Queue(s.in(discardSQL), found)
			s.queuePut(&b, s.putArgs(0, draftsOf(all, time.Now()), false, &sender), new(putResult))
			return tx.SendBatch(ctx, &b).Close()
		})
		if err != nil {
			n = 0
			return err
		}
		s.heard(names...)
		return nil
	})
	return n, err
}
