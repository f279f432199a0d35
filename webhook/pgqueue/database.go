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

// A database is a schema of PostgreSQL that stores share.
type database struct {
	config     Config
	pool       *pgxpool.Pool
	schema     string // as SQL has it
	lock       int64  // the advisory lock of generations
	calls      storekit.Gate
	background context.Context
	stop       context.CancelFunc
	goroutines sync.WaitGroup
}

// in returns statements with the schema for S.
func (s *database) in(sql string) string { return strings.ReplaceAll(sql, "S.", s.schema+".") }

// A querier is a pool, or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// collect returns what scan makes of the rows of a query.
func collect[T any](ctx context.Context, q querier, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// call runs a call of the store. An error says what it was about.
func (s *database) call(ctx context.Context, what string, f func() error) error {
	if err := s.calls.Enter(ctx); err != nil {
		return err
	}
	defer s.calls.Leave()
	if err := f(); err != nil {
		return fmt.Errorf("pgqueue: %s: %w", what, oneLine(err))
	}
	return nil
}

// listed is collect for a call by itself.
func listed[T any](ctx context.Context, s *database, what string, scan pgx.RowToFunc[T], sql string, args ...any) (all []T, err error) {
	err = s.call(ctx, what, func() error {
		all, err = collect(ctx, s.pool, scan, s.in(sql), args...)
		return err
	})
	return all, err
}

// page is how many rows of a list are read in one go; a setting has up to 64 KB.
const page = 64

// paged lists the rows after the one with the key after, page by page. The last two arguments
// of the statement are that and the size of a page.
func paged[T any](ctx context.Context, s *database, what, after string, key func(T) string, scan pgx.RowToFunc[T], sql string, args ...any) iter.Seq2[T, error] {
	return storekit.Pages(after, func(after string) (all []T, next string, err error) {
		all, err = listed(ctx, s, what, scan, sql, append(args[:len(args):len(args)], []byte(after), page)...)
		if len(all) == page {
			next = key(all[page-1])
		}
		return all, next, err
	})
}

func scanName(r pgx.CollectableRow) (name string, err error) {
	var b []byte
	err = r.Scan(&b)
	return string(b), err
}

// The codes of errors of PostgreSQL that this package looks for.
const (
	deadlockDetected = "40P01"
	lockNotAvailable = "55P03"
	claimsEnded      = "HF001" // of the function settle
)

func hasCode(err error, codes ...string) bool {
	var failed *pgconn.PgError
	return errors.As(err, &failed) && slices.Contains(codes, failed.Code)
}

// A turn is taken by one call at a time.
type turn chan struct{}

func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) give() { <-t }

// A lineError is an error whose text has several lines, on one.
type lineError struct {
	text string
	err  error
}

func (e *lineError) Error() string { return e.text }
func (e *lineError) Unwrap() error { return e.err }

// oneLine returns err with its text on one line. The driver's has one for each try to
// connect, the same where it tries again without TLS; each is told once.
func oneLine(err error) error {
	if err == nil || !strings.Contains(err.Error(), "\n") {
		return err
	}
	first, rest, _ := strings.Cut(err.Error(), "\n")
	var tries []string
	for line := range strings.Lines(rest) {
		line = strings.TrimSpace(line)
		if !slices.ContainsFunc(tries, func(told string) bool { return strings.HasSuffix(told, line) }) {
			tries = append(tries, line)
		}
	}
	return &lineError{strings.TrimSpace(first) + " " + strings.Join(tries, "; "), err}
}

// byIndex has rows found by index for the rest of the transaction. Plans are kept:
// one that was made while a table was empty goes through all of it later on, and
// what a LIMIT that differs by row leaves is taken for a third of the table. The
// costs that PostgreSQL puts on what is off would have it compile each plan.
const byIndex = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
	set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)`
