package inbox

import (
	"context"
	"database/sql"
	"regexp"
	"strconv"
	"strings"
)

// A DB begins transactions of type Tx. [SQL] and [PGX] return one. It may be used concurrently; a
// transaction is used by one goroutine at a time.
type DB[Tx any] interface {
	Begin(ctx context.Context) (Tx, error)
	// Exec returns how many rows the statement changed.
	Exec(ctx context.Context, tx Tx, statement string, args ...any) (rows int64, err error)
	// Commit returns nil only if everything that was done in tx is durable.
	Commit(ctx context.Context, tx Tx) error
	Rollback(ctx context.Context, tx Tx) error
}

// SQL returns a DB for database/sql, whose transactions have the isolation that the database has by
// default. In SQLite, let the connections use write-ahead logging and a busy timeout, as in
// "file:data.db?_pragma=journal_mode(wal)&_pragma=busy_timeout(5000)".
func SQL(db *sql.DB) DB[*sql.Tx] { return database{db} }

type database struct{ db *sql.DB }

func (d database) Begin(ctx context.Context) (*sql.Tx, error)   { return d.db.BeginTx(ctx, nil) }
func (d database) Commit(_ context.Context, tx *sql.Tx) error   { return tx.Commit() }
func (d database) Rollback(_ context.Context, tx *sql.Tx) error { return tx.Rollback() }

func (d database) Exec(ctx context.Context, tx *sql.Tx, statement string, args ...any) (int64, error) {
	result, err := tx.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// A PGXTx is the part of pgx.Tx that an Inbox needs.
type PGXTx[Tag interface{ RowsAffected() int64 }] interface {
	Exec(ctx context.Context, sql string, args ...any) (Tag, error)
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// PGX returns a DB for a *pgxpool.Pool of github.com/jackc/pgx/v5, as in inbox.PGX(pool). The
// function then gets a pgx.Tx. Go infers the type arguments.
func PGX[Tx PGXTx[Tag], Tag interface{ RowsAffected() int64 }](pool interface {
	Begin(ctx context.Context) (Tx, error)
}) DB[Tx] {
	return pgxDatabase[Tx, Tag]{pool}
}

type pgxDatabase[Tx PGXTx[Tag], Tag interface{ RowsAffected() int64 }] struct {
	pool interface {
		Begin(ctx context.Context) (Tx, error)
	}
}

func (d pgxDatabase[Tx, Tag]) Begin(ctx context.Context) (Tx, error)     { return d.pool.Begin(ctx) }
func (d pgxDatabase[Tx, Tag]) Commit(ctx context.Context, tx Tx) error   { return tx.Commit(ctx) }
func (d pgxDatabase[Tx, Tag]) Rollback(ctx context.Context, tx Tx) error { return tx.Rollback(ctx) }

func (d pgxDatabase[Tx, Tag]) Exec(ctx context.Context, tx Tx, statement string, args ...any) (int64, error) {
	tag, err := tx.Exec(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return tag.RowsAffected(), nil
}

// A Dialect is a kind of database.
type Dialect uint8

const (
	// PostgreSQL, version 10 or later, and databases that take its statements.
	PostgreSQL Dialect = iota + 1
	// MySQL, version 5.7 or later, and MariaDB.
	MySQL
	// SQLite, version 3.24 or later.
	SQLite
)

func (d Dialect) valid() bool { return d >= PostgreSQL && d <= SQLite }

var tableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]{0,49}$`)

// dialects has the statements of each Dialect, for $table. insert changes exactly one row if the id
// is new. If a transaction that has not ended has recorded the id, insert waits for its end. remove
// uses the index on received, and changes at most removeMax rows.
var dialects = [...]struct {
	schema         []string
	insert, remove string
}{
	PostgreSQL: {
		schema: []string{
			`CREATE TABLE IF NOT EXISTS $table (id text COLLATE "C" PRIMARY KEY, received bigint NOT NULL)`,
			`CREATE INDEX IF NOT EXISTS $index ON $table (received)`,
		},
		insert: `INSERT INTO $table (id, received) VALUES ($1, $2) ON CONFLICT DO NOTHING`,
		// An array makes the planner look each id up, whatever the statistics say.
		remove: `DELETE FROM $table WHERE id = ANY (ARRAY(SELECT id FROM $table WHERE received < $1 ORDER BY received LIMIT $max FOR UPDATE SKIP LOCKED))`,
	},
	MySQL: {
		schema: []string{
			`CREATE TABLE IF NOT EXISTS $table (id varchar(1024) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY, received bigint NOT NULL, KEY $index (received)) ENGINE=InnoDB`,
		},
		// The change makes the count of an id that is there 2, with and without the flag
		// CLIENT_FOUND_ROWS of the connection. INSERT IGNORE would hide other errors, too.
		insert: `INSERT INTO $table (id, received) VALUES (?, ?) ON DUPLICATE KEY UPDATE received = received + 1`,
		remove: `DELETE FROM $table WHERE received < ? ORDER BY received LIMIT $max`,
	},
	SQLite: {
		schema: []string{
			`CREATE TABLE IF NOT EXISTS $table (id text PRIMARY KEY NOT NULL, received integer NOT NULL) WITHOUT ROWID`,
			`CREATE INDEX IF NOT EXISTS $index ON $table (received)`,
		},
		insert: `INSERT INTO $table (id, received) VALUES (?, ?) ON CONFLICT DO NOTHING`,
		remove: `DELETE FROM $table WHERE id IN (SELECT id FROM $table WHERE received < ? ORDER BY received LIMIT $max)`,
	},
}

// Schema returns the statements that make a table, if it does not exist, and its index. The column
// id has the ids, and received the seconds since 1970 at which they were recorded.
func (d Dialect) Schema(table string) (statements []string) {
	for _, s := range dialects[d].schema {
		statements = append(statements, fill(s, table))
	}
	return statements
}

// fill returns a statement for a table.
func fill(statement, table string) string {
	index := strings.ReplaceAll(table, ".", "_") + "_received"
	return strings.NewReplacer("$table", table, "$index", index, "$max", strconv.Itoa(removeMax)).Replace(statement)
}
