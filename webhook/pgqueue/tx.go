package pgqueue

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// PutTx stores ds in a transaction of the caller's own, as Put would: they are
// delivered if it commits, and were never there if it does not. It returns how
// many of ds had not been put before.
//
// Transactions that put the same delivery wait for each other. Long ones keep
// what is remembered of puts from being thinned out, and nothing else.
//
// In a transaction of isolation level REPEATABLE READ or SERIALIZABLE, PutTx may fail
// with SQLSTATE 40001 (serialization_failure), after which the caller tries the whole
// transaction again: if another has put the same delivery since it began, or the store
// went on to other tables, as it does some times an hour. At SERIALIZABLE, transactions
// that put at the same time may fail for each other, at the latest when they commit,
// whatever they put. Long ones keep finished rows from being cleared away, too.
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
	if err := q.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer q.calls.Leave()
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

// putInto is one statement, and a second where something was put before.
func (q *Queue) putInto(ctx context.Context, tx foreignTx, news []fresh) (int, error) {
	unknown := make(map[storekit.Key]bool, len(news))
	keys := make([]storekit.Key, 0, len(news))
	for i := range news {
		if k := news[i].key; !unknown[k] {
			unknown[k] = true
			keys = append(keys, k)
		}
	}
	w := drafter{now: time.Now()}
	all := w.addUnknown(news, maps.Clone(unknown))
	clear(unknown)
	drafts := q.draftArgs(w.drafts)
	err := errTurned
	for turns := 0; err == errTurned && turns < 10; turns++ {
		err = q.putAll(ctx, tx, keys, drafts, unknown)
	}
	if n := len(unknown); err != nil || n == 0 || n == all {
		return n, err
	}
	w = drafter{now: w.now}
	stored := w.addUnknown(news, unknown)
	return stored, tx.query(ctx, q.sql.insertTx, q.draftArgs(w.drafts), func(func(...any) error) error { return nil })
}

// putAll is the first statement. It adds the keys that were not known to unknown, or
// returns errTurned, and the next try will be right.
func (q *Queue) putAll(ctx context.Context, tx foreignTx, keys []storekit.Key, drafts []any, unknown map[storekit.Key]bool) error {
	newest, certain, suspects, _ := q.window.split(keys)
	args := append([]any{q.lock, newest, keyArray(certain), keyArray(suspects)}, drafts...)
	turned := false
	err := tx.query(ctx, q.sql.putAll[newest%generations], args, func(scan func(...any) error) error {
		var text *string
		if err := scan(&text); err != nil {
			return err
		}
		if text == nil {
			turned = true
			return nil
		}
		b, err := hex.DecodeString(strings.ReplaceAll(*text, "-", ""))
		if err == nil && len(b) == len(storekit.Key{}) {
			unknown[storekit.Key(b)] = true
		}
		return err
	})
	if err != nil || !turned {
		return err
	}
	if err := tx.query(ctx, q.sql.newest, nil, func(scan func(...any) error) error { return scan(&newest) }); err != nil {
		return err
	}
	q.turned(newest)
	return errTurned
}

// draftArgs returns what putAll and insertTx have in common.
func (q *Queue) draftArgs(drafts []*draft) []any {
	destinations, items := make([][]byte, len(drafts)), make([][]byte, len(drafts))
	dues, held := make([]int64, len(drafts)), make([]int64, len(drafts))
	names := make(map[string]bool)
	for i, d := range drafts {
		destinations[i], items[i], dues[i], held[i] = []byte(d.destination), d.data, d.due, int64(d.n)
		names[d.destination] = true
	}
	// What is notified is heard when the transaction has committed.
	return []any{
		q.shelf.Load(), byteArray(destinations), intArray(dues), intArray(held), byteArray(items), q.channel(), payload(0, names),
	}
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
func keyArray(keys []storekit.Key) string {
	b := []byte{'{'}
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = hex.AppendEncode(b, k[:])
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
