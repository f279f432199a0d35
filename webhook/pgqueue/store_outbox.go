package pgqueue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/hookferry/analytics/webhook/store"
)

// PutTx implements store.Outbox; webhook.Forwarder.ForwardTx calls it. The transaction is a
// pgx.Tx, or a *sql.Tx of any driver for PostgreSQL.
//
// Transactions that put the same delivery wait for each other. So do those that put deliveries with
// the same Key to a destination, and few others: for each of its Keys, a transaction locks one in
// 16,384 of all Keys until it ends. One call locks its Keys in one order, and so cannot deadlock
// with another call. Two calls in one transaction can deadlock, as locks of any two rows can. Put
// waits for such a transaction, too.
//
// While a transaction is open, the store cannot remove old keys from the dedup window, and PostgreSQL
// cannot remove finished rows. A long transaction has no other effect.
//
// In a transaction of isolation level REPEATABLE READ or SERIALIZABLE, PutTx may fail with SQLSTATE
// 40001 (serialization_failure). Then the caller must repeat the whole transaction. This happens if
// another transaction has put the same delivery since this one began, or if the store has switched to
// another partition, which it does a few times an hour. Such a transaction does not see whether its
// deliveries with a Key are behind others, so all are at first. With Config.NoListen they are released
// within Poll.
//
// At SERIALIZABLE, transactions that put at the same time may make each other fail, even if they
// put different deliveries. They fail at commit at the latest.
func (s *Store) PutTx(ctx context.Context, tx any, ps []store.Put, out []store.Result) error {
	var queryRow func(args []any) pgx.Row
	switch tx := tx.(type) {
	case pgx.Tx:
		queryRow = func(args []any) pgx.Row { return tx.QueryRow(ctx, s.db.in(putTxSQL), args...) }
	case *sql.Tx:
		queryRow = func(args []any) pgx.Row { return tx.QueryRowContext(ctx, s.db.in(putTxSQL), args...) }
	default:
		return fmt.Errorf("pgqueue: a transaction is a pgx.Tx or a *sql.Tx, not a %T", tx)
	}
	return s.db.enter(ctx, "storing in a transaction", func() error {
		if len(ps) == 0 {
			return nil
		}
		all, err := newEntries(ps)
		if err != nil {
			return err
		}
		// Notifications are sent when the transaction has been committed, also to this node.
		drafts := draftsOf(slices.Clone(all))
		args := s.db.putArgs(drafts, new(int64))
		types := pgtype.NewMap()
		for i, arg := range args { // every driver passes on text
			t, _ := types.TypeForValue(arg)
			text, err := types.Encode(t.OID, pgtype.TextFormatCode, arg, nil)
			if err != nil {
				return err
			}
			args[i] = string(text)
		}
		var known, behinds string
		var r putResult
		if err := queryRow(args).Scan(&known, &behinds); err != nil {
			return held(ctx, err)
		}
		if err := types.Scan(pgtype.Int4ArrayOID, pgtype.TextFormatCode, []byte(known), &r.known); err != nil {
			return err
		}
		if err := types.Scan(pgtype.BoolArrayOID, pgtype.TextFormatCode, []byte(behinds), &r.behinds); err != nil {
			return err
		}
		r.mark(drafts)
		for i, e := range all {
			out[i] = store.Result{Stored: !e.known, Behind: e.behind}
		}
		return nil
	})
}

// held says of an error after the end of ctx what a put may have waited for.
func held(ctx context.Context, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("no answer from the database in time; a transaction that is open may have put the same Key or id: %w", err)
}

// FirstClaims implements store.Outbox.
func (s *Store) FirstClaims() int64 { return s.claimer.firstClaims.Load() }
