package pgqueue

import (
	"context"
	"database/sql"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/hookferry/analytics/webhook"
)

// PutTx implements webhook.Outbox; webhook.Forwarder.ForwardTx calls it. The transaction is a
// pgx.Tx, or a *sql.Tx of any driver for PostgreSQL.
//
// Transactions that put the same delivery wait for each other. While a transaction is open, the
// store cannot remove old keys from the dedup window, and PostgreSQL cannot remove finished rows. A
// long transaction has no other effect.
//
// In a transaction of isolation level REPEATABLE READ or SERIALIZABLE, PutTx may fail with SQLSTATE
// 40001 (serialization_failure). Then the caller must repeat the whole transaction. This happens in
// two cases. Another transaction has put the same delivery since this one began. Or the store has
// switched to another partition, which it does a few times an hour.
//
// At SERIALIZABLE, transactions that put at the same time may make each other fail, even if they
// put different deliveries. They fail at commit at the latest.
func (s *Store) PutTx(ctx context.Context, tx any, ds []webhook.Delivery) (n int, err error) {
	var queryRow func(args []any) pgx.Row
	switch tx := tx.(type) {
	case pgx.Tx:
		queryRow = func(args []any) pgx.Row { return tx.QueryRow(ctx, s.in(putTxSQL), args...) }
	case *sql.Tx:
		queryRow = func(args []any) pgx.Row { return tx.QueryRowContext(ctx, s.in(putTxSQL), args...) }
	default:
		return 0, fmt.Errorf("pgqueue: a transaction is a pgx.Tx or a *sql.Tx, not a %T", tx)
	}
	err = s.call(ctx, "storing in a transaction", func() error {
		all, err := entriesOf(ds, true)
		if err != nil || len(all) == 0 {
			return err
		}
		// Notifications are sent when the transaction has been committed, also to this node.
		args := s.putArgs(draftsOf(all), new(int64))
		types := typeMaps.Get().(*pgtype.Map)
		defer typeMaps.Put(types)
		for i, arg := range args { // every driver passes on the text of an array
			if oid := arrays[i]; oid != 0 {
				text, err := types.Encode(oid, pgtype.TextFormatCode, arg, nil)
				if err != nil {
					return err
				}
				args[i] = string(text)
			}
		}
		return queryRow(args).Scan(&n)
	})
	return n, err
}

const putTxSQL = `SELECT stored FROM ` + putCall

// arrays has the type of each argument of putCall that is an array, and 0 for the others.
var arrays = [11]uint32{
	2: pgtype.UUIDArrayOID, 3: pgtype.ByteaArrayOID, 4: pgtype.BoolArrayOID, 5: pgtype.Int8ArrayOID, 6: pgtype.Int4ArrayOID,
	7: pgtype.BoolArrayOID, 8: pgtype.TextArrayOID, 9: pgtype.ByteaArrayOID,
}

// typeMaps is a pool of type maps. Each caches how types are encoded.
var typeMaps = sync.Pool{New: func() any { return pgtype.NewMap() }}

// FirstClaims implements webhook.Outbox.
func (s *claimer) FirstClaims() int64 { return s.firstClaims.Load() }
