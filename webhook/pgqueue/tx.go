package pgqueue

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/internal/seen"
	"github.com/hookferry/analytics/webhook"
)

// PutTx stores ds in a transaction of the caller's own, as Put would: they are
// delivered if it commits, and were never there if it does not. It returns how
// many of ds had not been put before.
//
// Transactions that put the same delivery wait for each other. Long ones keep
// what is remembered of puts from being thinned out, and nothing else.
//
// Deliveries are made of calls by webhook.Forwarder.Deliveries.
func (q *Queue) PutTx(ctx context.Context, tx pgx.Tx, ds ...webhook.Delivery) (int, error) {
	return q.putTx(ctx, pgxTx{tx}, ds)
}

// PutSQL is PutTx for database/sql, with any driver for PostgreSQL.
func (q *Queue) PutSQL(ctx context.Context, tx *sql.Tx, ds ...webhook.Delivery) (int, error) {
	return q.putTx(ctx, sqlTx{tx}, ds)
}

func (q *Queue) putTx(ctx context.Context, tx foreignTx, ds []webhook.Delivery) (int, error) {
	if err := q.enter(ctx); err != nil {
		return 0, err
	}
	defer q.calls.Done()
	news, _, err := prepare(ds)
	if err != nil || len(news) == 0 {
		return 0, err
	}
	stored, err := q.putInto(ctx, tx, news)
	if err != nil {
		return 0, fmt.Errorf("pgqueue: storing in a transaction: %w", err)
	}
	return stored, nil
}

func (q *Queue) putInto(ctx context.Context, tx foreignTx, news []fresh) (int, error) {
	wanted := make(map[seen.Key]bool, len(news))
	keys := make([][]byte, 0, len(news))
	for i := range news {
		if k := news[i].key; !wanted[k] {
			wanted[k] = true
			keys = append(keys, k[:])
		}
	}
	clear(wanted)
	err := tx.query(ctx, q.sql.rememberTx, []any{q.lock, keyArray(keys)}, func(scan func(...any) error) error {
		var text string
		if err := scan(&text); err != nil {
			return err
		}
		b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
		if err == nil && len(b) == len(seen.Key{}) {
			wanted[seen.Key(b)] = true
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	stored := 0
	w := drafter{now: time.Now()}
	names := make(map[string]bool)
	for i := range news {
		if n := &news[i]; wanted[n.key] {
			delete(wanted, n.key)
			w.add(n.delivery, n.record)
			names[n.delivery.Destination] = true
			stored++
		}
	}
	if stored == 0 {
		return 0, nil
	}
	destinations, items := make([][]byte, len(w.drafts)), make([][]byte, len(w.drafts))
	dues, held := make([]int64, len(w.drafts)), make([]int64, len(w.drafts))
	for i, d := range w.drafts {
		destinations[i], items[i], dues[i], held[i] = []byte(d.destination), d.data, d.due, int64(d.n)
	}
	// What is notified is heard when the transaction has committed.
	told := payload(0, names)
	err = tx.query(ctx, q.sql.insertTx, []any{
		q.shelf.Load(), byteArray(destinations), intArray(dues), intArray(held), byteArray(items), q.channel(), told,
	}, func(func(...any) error) error { return nil })
	return stored, err
}

// A foreignTx is a transaction of the caller's. Arrays are given to it as text,
// which every driver passes on.
type foreignTx interface {
	query(ctx context.Context, sql string, args []any, row func(scan func(...any) error) error) error
}

type pgxTx struct{ tx pgx.Tx }

func (t pgxTx) query(ctx context.Context, sql string, args []any, row func(scan func(...any) error) error) error {
	rows, err := t.tx.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) query(ctx context.Context, sql string, args []any, row func(scan func(...any) error) error) error {
	rows, err := t.tx.QueryContext(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// byteArray is the text of a bytea[].
func byteArray(values [][]byte) string {
	size := 2
	for _, v := range values {
		size += 2*len(v) + 8
	}
	b := append(make([]byte, 0, size), '{')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `"\\x`...)
		b = hex.AppendEncode(b, v)
		b = append(b, '"')
	}
	return string(append(b, '}'))
}

// keyArray is the text of a uuid[].
func keyArray(keys [][]byte) string {
	b := []byte{'{'}
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = hex.AppendEncode(b, k)
	}
	return string(append(b, '}'))
}

// intArray is the text of a bigint[].
func intArray(values []int64) string {
	b := []byte{'{'}
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v, 10)
	}
	return string(append(b, '}'))
}
