package pgqueue

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

var _ webhook.DeadLetters = (*Queue)(nil)

// deadPage is how many dead letters and members are read in one go.
const deadPage = 256

// A deadID is where a dead letter stands among them. Its key is that in hexadecimal digits.
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

// DeadLetter implements webhook.DeadLetters.
func (q *Queue) DeadLetter(ctx context.Context, key string) (d webhook.DeadLetter, err error) {
	if err := q.calls.Enter(ctx); err != nil {
		return d, err
	}
	defer q.calls.Leave()
	at, ok := parseKey(key)
	if !ok {
		return d, webhook.ErrNoDeadLetter
	}
	var record []byte
	err = q.pool.QueryRow(ctx, q.sql.deadLetter, at.died, at.id).Scan(&record)
	if err == pgx.ErrNoRows {
		return d, webhook.ErrNoDeadLetter
	}
	if err == nil {
		err = d.UnmarshalBinary(record)
	}
	if err != nil {
		return d, fmt.Errorf("pgqueue: dead letter %s: %w", key, err)
	}
	d.Key = key
	return d, nil
}

// Dead implements webhook.DeadLetters.
func (q *Queue) Dead(ctx context.Context, filter webhook.DeadFilter, after string) iter.Seq2[webhook.DeadLetter, error] {
	return storekit.Pages(after, func(after string) ([]webhook.DeadLetter, string, error) { return q.deadAfter(ctx, filter, after) })
}

// deadAfter returns the next dead letters, and the key of the last of them if there may
// be more.
func (q *Queue) deadAfter(ctx context.Context, f webhook.DeadFilter, after string) (page []webhook.DeadLetter, next string, err error) {
	if err := q.calls.Enter(ctx); err != nil {
		return nil, "", err
	}
	defer q.calls.Leave()
	var from deadID
	if after != "" {
		var ok bool
		if from, ok = parseKey(after); !ok {
			return nil, "", fmt.Errorf("pgqueue: %q is not the key of a dead letter", after)
		}
	}
	bound := func(t time.Time) *int64 {
		if t.IsZero() {
			return nil
		}
		n := t.UnixMicro()
		return &n
	}
	rows, err := q.pool.Query(ctx, q.sql.dead, from.died, from.id, []byte(f.Destination), []byte(f.Type), []byte(f.Reason),
		bound(f.From), bound(f.To), deadPage)
	if err != nil {
		return nil, "", fmt.Errorf("pgqueue: dead letters: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var (
			id     deadID
			record []byte
		)
		if err := rows.Scan(&id.died, &id.id, &record); err != nil {
			return page, "", fmt.Errorf("pgqueue: dead letters: %w", err)
		}
		var d webhook.DeadLetter
		if err := d.UnmarshalBinary(record); err != nil {
			return page, "", fmt.Errorf("pgqueue: dead letter %s: %w", id.key(), err)
		}
		d.Key = id.key()
		page = append(page, d)
	}
	if err := rows.Err(); err != nil {
		return page, "", fmt.Errorf("pgqueue: dead letters: %w", err)
	}
	if len(page) == deadPage {
		next = page[len(page)-1].Key
	}
	return page, next, nil
}

// Discard implements webhook.DeadLetters.
func (q *Queue) Discard(ctx context.Context, keys ...string) (int, error) {
	if err := q.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer q.calls.Leave()
	died, ids := deadIDs(keys)
	tag, err := q.pool.Exec(ctx, q.sql.discard, died, ids)
	if err != nil {
		return 0, fmt.Errorf("pgqueue: discarding: %w", err)
	}
	return int(tag.RowsAffected()), nil
}

func deadIDs(keys []string) (died, ids []int64) {
	for _, key := range keys {
		if d, ok := parseKey(key); ok {
			died, ids = append(died, d.died), append(ids, d.id)
		}
	}
	return died, ids
}

// Revive implements webhook.DeadLetters.
func (q *Queue) Revive(ctx context.Context, keys ...string) (int, error) {
	if err := q.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer q.calls.Leave()
	died, ids := deadIDs(keys)
	if len(ids) == 0 {
		return 0, nil
	}
	n := 0
	err := q.within(ctx, func(t *transaction) error {
		rows, err := t.conn.Query(ctx, q.sql.discard+" RETURNING record", died, ids)
		if err != nil {
			return err
		}
		records, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		if err != nil {
			return err
		}
		n = len(records)
		now := q.time()
		ds := make([]webhook.Delivery, n)
		for i, record := range records {
			var d webhook.DeadLetter
			if err := d.UnmarshalBinary(record); err != nil {
				return err
			}
			ds[i] = d.Delivery
			ds[i].Due, ds[i].Expires, ds[i].Tries, ds[i].Closed = now, time.Time{}, 0, nil
		}
		return t.add(ds)
	})
	if err != nil {
		return 0, fmt.Errorf("pgqueue: reviving: %w", err)
	}
	return n, nil
}
