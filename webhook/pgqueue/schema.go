package pgqueue

import (
	"context"
	_ "embed"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed migrations/0001.sql
var step1 string

// migrations are the steps from an empty schema to the newest version: step i leads to version i+1.
// A step that was released is never changed.
var migrations = []string{step1}

// begin creates the schema and the table that holds its version. The functions of the schema keep
// this search_path. With pg_temp last, they ignore temporary tables of a caller of PutTx.
const begin = `CREATE SCHEMA IF NOT EXISTS %[1]s;
SET LOCAL search_path TO %[1]s, pg_temp;
CREATE TABLE IF NOT EXISTS version (number int NOT NULL, oldest int NOT NULL);
`

// oldest is the schema version of the oldest programs that work on the newest schema, beside newer
// programs or after them. A migration that only adds things which these programs need not know
// (tables, optional columns, indexes) leaves this number as it is. A migration that removes
// something, or changes its meaning, raises it to a version whose programs do not use that thing.
const oldest = 1

// SQL returns the statements that migrate a schema to the newest version, as one transaction. The
// argument from is the present version of the schema, or 0 if the schema does not exist. See
// Config.NoMigrate.
func SQL(schema string, from int) (string, error) {
	name, err := identifier(schema)
	if err != nil {
		return "", err
	}
	if newest := len(migrations); from < 0 || from > newest {
		return "", fmt.Errorf("pgqueue: there is no version %d; the newest is %d", from, newest)
	}
	return fmt.Sprintf("BEGIN;\n"+begin, name) + stepsFrom(from) + "COMMIT;\n", nil
}

// stepsFrom returns the statements that follow begin.
func stepsFrom(version int) string {
	return fmt.Sprintf("\n%s\nDELETE FROM version;\nINSERT INTO version VALUES (%d, %d);\n",
		strings.Join(migrations[version:], "\n"), len(migrations), oldest)
}

// identifier returns the name of a schema, quoted for SQL.
func identifier(schema string) (string, error) {
	if schema == "" || len(schema) > 63 || strings.ContainsRune(schema, 0) {
		return "", fmt.Errorf("pgqueue: the name of a schema has 1 to 63 bytes, not %d", len(schema))
	}
	return pgx.Identifier{schema}.Sanitize(), nil
}

// migrate brings an older schema to the newest version, unless Config.NoMigrate is set. It returns
// an error if this program does not work on the version that the schema has afterwards. Several
// processes may migrate at once. If nothing is to be done, this needs no lock, and no right to
// create anything.
func (s *database) migrate(ctx context.Context) error {
	newest := len(migrations)
	number, supported, err := versionOf(ctx, s.pool, s.schema)
	if !s.config.NoMigrate && (err != nil || number < newest) {
		err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			sql := fmt.Sprintf("SELECT pg_advisory_xact_lock(%[2]d);\n"+begin, s.schema, s.lock^2)
			if _, err := tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
			if number, supported, err = versionOf(ctx, tx, s.schema); err != nil || number >= newest {
				return err
			}
			_, err = tx.Exec(ctx, stepsFrom(number), pgx.QueryExecModeSimpleProtocol)
			number, supported = newest, oldest
			return err
		})
	}
	switch name := s.config.Schema; {
	case err != nil:
		return err
	case number < newest:
		return fmt.Errorf("pgqueue: schema %q has version %d, want %d: apply the statements that pgqueue.SQL(%q, %d) returns",
			name, number, newest, name, number)
	case supported > newest:
		return fmt.Errorf("pgqueue: schema %q has version %d, which needs a program of schema version %d or newer; this one has %d",
			name, number, supported, newest)
	}
	return nil
}

// versionOf returns the version of the schema, and that of the oldest programs which work on it. Both
// are 0 if the schema is empty.
func versionOf(ctx context.Context, q querier, name string) (number, oldest int, err error) {
	err = q.QueryRow(ctx, "SELECT coalesce(max(number), 0), coalesce(max(oldest), 0) FROM "+name+".version").Scan(&number, &oldest)
	return number, oldest, err
}

// lockOf returns the key of the advisory lock of a schema's dedup window.
func lockOf(schema string) int64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "hookferry\x00%s", schema)
	return int64(h.Sum64())
}
