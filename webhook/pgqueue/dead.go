package pgqueue

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// letters answers for dead letters.
type letters struct{ *putter }

// A deadID is the primary key of a dead letter. The Key of a webhook.DeadLetter is the same in
// hexadecimal digits.
type deadID struct{ died, id int64 }

func (d deadID) key() string {
	b := binary.BigEndian.AppendUint64(nil, uint64(d.died))
	return hex.EncodeToString(binary.BigEndian.AppendUint64(b, uint64(d.id)))
}

func parseKey(key string) (deadID, bool) {
	b, err := hex.DecodeString(key)
	if err != nil || len(b) != 16 || hex.EncodeToString(b) != key {
		return deadID{}, false
	}
	return deadID{int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:]))}, true
}

// A deadRow is a dead letter as it is stored.
type deadRow struct {
	deadID
	record []byte
}

func scanDead(r pgx.CollectableRow) (d deadRow, err error) {
	err = r.Scan(&d.died, &d.id, &d.record)
	return d, err
}

// read returns the dead letter of a row, or false if it is damaged.
func (s *letters) read(r deadRow) (d webhook.DeadLetter, ok bool) {
	err := d.UnmarshalBinary(r.record)
	if err != nil {
		s.config.Logger.Error("pgqueue: a dead letter is damaged and left out; discard it by its key", "key", r.key(), "error", err)
	}
	d.Key = r.key()
	return d, err == nil
}

// DeadLetter implements webhook.Store.
func (s *letters) DeadLetter(ctx context.Context, key string) (d webhook.DeadLetter, err error) {
	err = s.call(ctx, "dead letter "+strconv.Quote(key), func() error {
		var record []byte
		at, ok := parseKey(key)
		err := s.pool.QueryRow(ctx, s.in(`SELECT record FROM S.dead WHERE died = $1 AND id = $2`), at.died, at.id).Scan(&record)
		if !ok || errors.Is(err, pgx.ErrNoRows) {
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
func (s *letters) Dead(ctx context.Context, f webhook.DeadFilter, after string) iter.Seq2[webhook.DeadLetter, error] {
	bound := func(t time.Time) *int64 {
		if t.IsZero() {
			return nil
		}
		n := t.UnixMicro()
		return &n
	}
	return storekit.Pages(after, func(after string) (ds []webhook.DeadLetter, next string, err error) {
		var from deadID
		if after != "" {
			var ok bool
			if from, ok = parseKey(after); !ok {
				return nil, "", fmt.Errorf("pgqueue: %q is not the key of a dead letter", after)
			}
		}
		where, order := "(died, id) > ($1, $2)", "died, id"
		if f.NewestFirst {
			where, order = "(died, id) < ($1, $2)", "died DESC, id DESC"
			if after == "" {
				from = deadID{math.MaxInt64, math.MaxInt64}
			}
		}
		rows, err := listed(ctx, s.database, "dead letters", scanDead, `SELECT died, id, record FROM S.dead
WHERE `+where+` AND ($3 = '\x'::bytea OR destination = $3) AND ($4 = '\x'::bytea OR type = $4)
AND ($5 = '\x'::bytea OR reason = $5) AND ($6::bigint IS NULL OR died >= $6) AND ($7::bigint IS NULL OR died < $7)
ORDER BY `+order+` LIMIT $8`, from.died, from.id, []byte(f.Destination), []byte(f.Type), []byte(f.Reason),
			bound(f.From), bound(f.To), page)
		if err != nil {
			return nil, "", err
		}
		for _, r := range rows {
			if d, ok := s.read(r); ok && f.Match(&d) { // no column has the user
				ds = append(ds, d)
			}
		}
		if len(rows) == page {
			next = rows[page-1].key()
		}
		return ds, next, nil
	})
}

// Discard implements webhook.Store.
func (s *letters) Discard(ctx context.Context, keys ...string) (n int, err error) {
	err = s.call(ctx, "discarding", func() error {
		died, ids := deadIDs(keys)
		tag, err := s.pool.Exec(ctx, s.in(discardSQL), died, ids)
		n = int(tag.RowsAffected())
		return err
	})
	return n, err
}

// deadIDs returns the primary keys of these dead letters, without those of malformed keys.
func deadIDs(keys []string) (died, ids []int64) {
	died, ids = []int64{}, []int64{}
	for _, key := range keys {
		if d, ok := parseKey(key); ok {
			died, ids = append(died, d.died), append(ids, d.id)
		}
	}
	return died, ids
}

// Revive implements webhook.Store. What is damaged stays.
func (s *letters) Revive(ctx context.Context, keys ...string) (n int, err error) {
	err = s.call(ctx, "reviving", func() error {
		var drafts []*draft
		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			died, ids := deadIDs(keys)
			rows, err := collect(ctx, tx, scanDead, s.in(`SELECT d.died, d.id, d.record
FROM S.dead d, (SELECT DISTINCT * FROM unnest($1::bigint[], $2::bigint[])) u (died, id)
WHERE d.died = u.died AND d.id = u.id FOR UPDATE OF d`), died, ids)
			if err != nil {
				return err
			}
			var ds []webhook.Delivery
			died, ids = died[:0], ids[:0]
			now := s.Now()
			for _, r := range rows {
				if dead, ok := s.read(r); ok {
					d := dead.Delivery
					d.Due, d.Expires, d.Tries, d.Closed = now, time.Time{}, 0, nil
					ds, died, ids = append(ds, d), append(died, r.died), append(ids, r.id)
				}
			}
			all, err := entriesOf(ds, false)
			if err != nil {
				return err
			}
			n, drafts = len(ds), draftsOf(all, time.Now())
			sender := s.nodeNow()
			var b pgx.Batch
			b.Queue(s.in(discardSQL), died, ids)
			s.queuePut(&b, s.putArgs(0, drafts, false, &sender), new(putResult))
			return tx.SendBatch(ctx, &b).Close()
		})
		if err != nil {
			n = 0
			return err
		}
		names := make(map[string]bool)
		s.mu.Lock()
		s.reportAll(drafts)
		s.mu.Unlock()
		for _, d := range drafts {
			names[d.queue.destination] = true
		}
		s.heard(maps.Keys(names))
		return nil
	})
	return n, err
}

const discardSQL = `DELETE FROM S.dead d USING unnest($1::bigint[], $2::bigint[]) u (died, id)
WHERE d.died = u.died AND d.id = u.id`
