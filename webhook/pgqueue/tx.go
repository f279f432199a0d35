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

// PutTx implements webhook.Outbox; webhook.Forwarder.ForwardTx calls it. The transaction is a
// pgx.Tx, or a *sql.Tx of any driver for PostgreSQL.
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
func (s *putter) PutTx(ctx context.Context, tx any, ds []webhook.Delivery) (int, error) {
	switch tx := tx.(type) {
	case pgx.Tx:
		return s.putTx(ctx, ds, func(args ...any) (n *int, err error) {
			err = tx.QueryRow(ctx, s.in(putTxSQL), args...).Scan(&n)
			return n, err
		})
	case *sql.Tx:
		return s.putTx(ctx, ds, func(args ...any) (n *int, err error) {
			err = tx.QueryRowContext(ctx, s.in(putTxSQL), args...).Scan(&n)
			return n, err
		})
	}
	return 0, fmt.Errorf("pgqueue: a transaction is a pgx.Tx or a *sql.Tx, not a %T", tx)
}

// FirstClaims implements webhook.Outbox.
func (s *putter) FirstClaims() int64 { return s.firstClaims.Load() }

// putTx makes the arguments of the statement that do executes. Arrays are texts, which every
// driver passes on. What is notified is heard when the transaction has committed.
func (s *putter) putTx(ctx context.Context, ds []webhook.Delivery, do func(args ...any) (*int, error)) (int, error) {
	if err := s.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	var all []*fresh
	seen := make(map[storekit.Key]bool)
	for i := range ds {
		f, _, err := newFresh(&ds[i], nil)
		if err != nil {
			return 0, fmt.Errorf("pgqueue: delivery %d: %w", i, err)
		}
		f.key = storekit.KeyOf(ds[i].Destination, ds[i].ID)
		if !seen[f.key] {
			seen[f.key] = true
			all = append(all, &f)
		}
	}
	if len(all) == 0 {
		return 0, nil
	}
	var (
		keys, names, retries, dues, counts, items []string
		told                                      = make(map[string]bool)
	)
	for _, d := range draftsOf(all, time.Now()) {
		names, items = append(names, bytesText([]byte(d.line.destination))), append(items, bytesText(d.data))
		retries, counts = append(retries, strconv.FormatBool(d.line.retries)), append(counts, strconv.Itoa(len(d.items)))
		told[d.line.destination] = true
		for _, f := range d.items {
			keys, dues = append(keys, hex.EncodeToString(f.key[:])), append(dues, strconv.FormatInt(f.due, 10))
		}
	}
	n, err := do(s.lock, arrayText(keys), arrayText(names), arrayText(retries), arrayText(dues), arrayText(counts), arrayText(items),
		s.channel(), payload(0, maps.Keys(told)))
	if err != nil {
		return 0, fmt.Errorf("pgqueue: storing in a transaction: %w", err)
	}
	return *n, nil
}

// bytesText is the text of a bytea in an array.
func bytesText(v []byte) string {
	b := append(make([]byte, 0, 2*len(v)+6), `"\\x`...)
	return string(append(hex.AppendEncode(b, v), '"'))
}

func arrayText(values []string) string { return "{" + strings.Join(values, ",") + "}" }

const putTxSQL = `SELECT stored FROM S.put($1::bigint, 0, $2::uuid[], $3::bytea[], $4::boolean[], $5::bigint[], $6::int[], NULL, NULL, $7::bytea[], true, $8::text, $9::text)`
