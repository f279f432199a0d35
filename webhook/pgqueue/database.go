package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/webhook/storekit"
)

// A database is a schema of PostgreSQL that several stores share.
type database struct {
	config     Config
	pool       *pgxpool.Pool
	schema     string // quoted, for SQL
	lock       int64  // the advisory lock of the dedup window
	calls      storekit.Gate
	background context.Context // ends when the Store is closed
	stop       context.CancelFunc
	goroutines sync.WaitGroup
}

// in returns SQL statements with the name of the schema in place of S.
func (s *database) in(sql string) string { return strings.ReplaceAll(sql, "S.", s.schema+".") }

// A querier is a pool, a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// collect returns the rows of a query, each converted by scan.
func collect[T any](ctx context.Context, q querier, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, _ := q.Query(ctx, sql, args...) // CollectRows returns the error
	return pgx.CollectRows(rows, scan)
}

// byIndex makes PostgreSQL find rows by index in the rest of a transaction. Without it, PostgreSQL
// may keep a plan that was made while a table was empty, and later read the whole table. PostgreSQL
// also overestimates a LIMIT that differs by row: it assumes a third of the table. jit is off
// because PostgreSQL adds a very high cost to a type of plan that is switched off, and compiles
// every plan with such a cost.
const byIndex = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
	set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)`

// indexed does the same as collect, but runs the query in a transaction of its own that begins with
// byIndex.
func indexed[T any](ctx context.Context, q querier, scan pgx.RowToFunc[T], sql string, args ...any) (all []T, err error) {
	var b pgx.Batch
	b.Queue(byIndex)
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		all, err = pgx.CollectRows(rows, scan)
		return err
	})
	err = q.SendBatch(ctx, &b).Close()
	return all, err
}

// call runs f as a call of the store. The argument what describes the call. An error begins with
// this text.
func (s *database) call(ctx context.Context, what string, f func() error) error {
	if err := s.calls.Enter(ctx); err != nil {
		return err
	}
	defer s.calls.Leave()
	if err := f(); err != nil {
		return fmt.Errorf("pgqueue: %s: %w", what, lineError{err})
	}
	return nil
}

// listed does the same as collect, but runs the query inside s.call.
func listed[T any](ctx context.Context, s *database, what string, scan pgx.RowToFunc[T], sql string, args ...any) (all []T, err error) {
	err = s.call(ctx, what, func() error {
		all, err = collect(ctx, s.pool, scan, s.in(sql), args...)
		return err
	})
	return all, err
}

// page is how many rows of a list are read at once. The largest rows are settings, with up to 64 KB
// each.
const page = 64

// paged lists, page by page, the rows whose keys sort after the argument after. For each page it
// appends two arguments to args: the last key that was listed, and the size of a page.
func paged[T any](ctx context.Context, s *database, what, after string, key func(T) string, scan pgx.RowToFunc[T], sql string, args ...any) iter.Seq2[T, error] {
	return storekit.Pages(after, func(after string) (all []T, next string, err error) {
		all, err = listed(ctx, s, what, scan, sql, append(args[:len(args):len(args)], []byte(after), page)...)
		if len(all) == page {
			next = key(all[page-1])
		}
		return all, next, err
	})
}

// The codes of errors of PostgreSQL that this package looks for.
const (
	deadlockDetected = "40P01"
	lockNotAvailable = "55P03"
	claimsEnded      = "HF001" // raised by the SQL function settle
)

func hasCode(err error, codes ...string) bool {
	var failed *pgconn.PgError
	return errors.As(err, &failed) && slices.Contains(codes, failed.Code)
}

// A semaphore is held by one call at a time. It has a capacity of 1.
type semaphore chan struct{}

func (s semaphore) acquire(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s semaphore) release() { <-s }

// A lineError has the text of an error of the driver on one line.
type lineError struct{ error }

func (e lineError) Unwrap() error { return e.error }

// Error implements error. The driver's text has a line for each attempt to connect. If the driver
// has tried again without TLS, the lines may be equal. Then Error keeps only one of them.
func (e lineError) Error() string {
	first, rest, _ := strings.Cut(e.error.Error(), "\n")
	var attempts []string
	for line := range strings.Lines(rest) {
		line = strings.TrimSpace(line)
		if !slices.ContainsFunc(attempts, func(kept string) bool { return strings.HasSuffix(kept, line) }) {
			attempts = append(attempts, line)
		}
	}
	return strings.TrimSpace(first + " " + strings.Join(attempts, "; "))
}
