package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook/store"
)

// A database is a schema of PostgreSQL that several stores share.
type database struct {
	config  Config
	pool    *pgxpool.Pool
	schema  string            // quoted, for SQL
	names   *strings.Replacer // of the method in
	channel string            // of notifications
	calls   store.Gate
	dropped atomic.Int64 // when notice dropped the connections last, in nanoseconds since 1970

	mu         sync.RWMutex
	statements map[string]string // the results of the method in
}

// in returns SQL statements with the name of the schema in place of S, also in the string 'S.ids'.
// It keeps the result, so sql must be one of the constants of this package.
func (db *database) in(sql string) string {
	db.mu.RLock()
	statement, ok := db.statements[sql]
	db.mu.RUnlock()
	if !ok {
		statement = db.names.Replace(sql)
		db.mu.Lock()
		db.statements[sql] = statement
		db.mu.Unlock()
	}
	return statement
}

// checkIsolation returns an error unless transactions of the pool are READ COMMITTED. At a stricter
// level, a transaction fails if another node claims or settles a chunk at the same time. Here, SKIP
// LOCKED and conditions in the statements handle that case.
func (db *database) checkIsolation(ctx context.Context) error {
	const want = "read committed"
	var level string
	err := db.pool.QueryRow(ctx, "SELECT current_setting('default_transaction_isolation')").Scan(&level)
	if err == nil && level != want {
		return fmt.Errorf("default_transaction_isolation is %q; set it to %q for the role or in the pool's connection settings", level, want)
	}
	return err
}

// A querier is a pool, a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// newBatch returns a batch of statements, which are a transaction. It makes PostgreSQL find rows by
// index. Otherwise PostgreSQL may later read a whole table by a plan that was made while the table was
// empty. For a LIMIT that differs by row, it also assumes a third of the table. jit is off because
// PostgreSQL compiles every plan of very high cost, such as one with a step that is switched off.
func newBatch() *pgx.Batch {
	b := new(pgx.Batch)
	b.Queue(byIndex)
	return b
}

const byIndex = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
	set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)`

// into returns a function for the rows of a query. It sets all to these rows, each converted by scan.
func into[T any](all *[]T, scan pgx.RowToFunc[T]) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*all, err = pgx.CollectRows(rows, scan)
		return err
	}
}

// collect runs a query in a newBatch, and returns its rows, each converted by scan.
func collect[T any](ctx context.Context, q querier, scan pgx.RowToFunc[T], sql string, args ...any) (all []T, err error) {
	b := newBatch()
	b.Queue(sql, args...).Query(into(&all, scan))
	err = q.SendBatch(ctx, b).Close()
	return all, err
}

// A text scans a column of type bytea into a string.
type text string

// ScanBytes implements pgtype.BytesScanner.
func (t *text) ScanBytes(b []byte) error {
	*t = text(b)
	return nil
}

// call runs f, which uses the pool, as a call of the store. An error says what the call was doing.
func (db *database) call(ctx context.Context, what string, f func() error) error {
	return db.enter(ctx, what, func() error { return db.notice(f()) })
}

// enter does the same for an f that does not use the pool.
func (db *database) enter(ctx context.Context, what string, f func() error) error {
	if err := db.calls.Enter(ctx); err != nil {
		return err
	}
	defer db.calls.Leave()
	if err := f(); err != nil {
		return fmt.Errorf("pgqueue: %s: %w", what, lineError{err})
	}
	return nil
}

// listed does the same as collect, but runs the query inside call.
func listed[T any](ctx context.Context, s *database, what string, scan pgx.RowToFunc[T], sql string, args ...any) (all []T, err error) {
	err = s.call(ctx, what, func() error {
		all, err = collect(ctx, s.pool, scan, s.in(sql), args...)
		return err
	})
	return all, err
}

// page is how many rows of a list are read at once. The largest ones are documents, with up to 64 KB each.
const page = 64

// paged lists, page by page, the rows whose keys sort after the argument after. To args it appends the
// last key that was listed, and the size of a page.
func paged[T any](ctx context.Context, s *database, what, after string, key func(T) string, scan pgx.RowToFunc[T], sql string, args ...any) iter.Seq2[T, error] {
	return store.Pages(after, func(after string) (all []T, next string, err error) {
		all, err = listed(ctx, s, what, scan, sql, append(args[:len(args):len(args)], []byte(after), page)...)
		if len(all) == page {
			next = key(all[page-1])
		}
		return all, next, err
	})
}

// notice returns err. If it says that the connections of the pool lead to a server that is not the
// right one any more, notice drops them all, at most once a second. New ones may lead to the right one:
// after a failover, those of the pool may stay connected to a server that is read-only now.
func (db *database) notice(err error) error {
	now, last := time.Now().UnixNano(), db.dropped.Load()
	if hasCode(err, readOnly, adminShutdown, crashShutdown, undefinedTable, undefinedFunction, undefinedSchema) &&
		now-last >= int64(time.Second) && db.dropped.CompareAndSwap(last, now) {
		db.config.Logger.Debug("pgqueue: drops all connections, because their server cannot be used any more", "error", lineError{err})
		db.pool.Reset()
	}
	return err
}

// The codes of errors of PostgreSQL that this package looks for.
const (
	readOnly          = "25006"
	undefinedSchema   = "3F000"
	undefinedFunction = "42883"
	undefinedTable    = "42P01"
	adminShutdown     = "57P01"
	crashShutdown     = "57P02"

	uniqueViolation  = "23505"
	deadlockDetected = "40P01"
	duplicateSchema  = "42P06"
	duplicateTable   = "42P07"
	lockNotAvailable = "55P03"
	claimsEnded      = "HF001" // raised by the SQL function settle
)

func hasCode(err error, codes ...string) bool {
	failed, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains(codes, failed.Code)
}

// afterDeadlock runs f, a transaction, and again if PostgreSQL has rolled it back because of a
// deadlock with another one. It gives up after five deadlocks.
func afterDeadlock(f func() error) (err error) {
	for range 5 {
		if err = f(); !hasCode(err, deadlockDetected) {
			break
		}
	}
	return err
}

// A lineError has the text of an error of the driver on one line.
type lineError struct{ error }

func (e lineError) Unwrap() error { return e.error }

// Error implements error. The driver's text has a line for each attempt to connect. If the driver
// has tried again without TLS, these lines may be equal. Then Error keeps one of them.
func (e lineError) Error() string {
	var kept []string
	for line := range strings.Lines(e.error.Error()) {
		line = strings.TrimSpace(line)
		if !slices.ContainsFunc(kept, func(earlier string) bool { return strings.HasSuffix(earlier, line) }) {
			kept = append(kept, line)
		}
	}
	return strings.Replace(strings.Join(kept, "; "), ":;", ":", 1) // the first line may be a heading
}

func bytesOf(users []string) [][]byte {
	all := make([][]byte, len(users))
	for i, user := range users {
		all[i] = []byte(user)
	}
	return all
}
