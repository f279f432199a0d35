package pgqueue

import (
	"context"
	_ "embed"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed migrations/0004.sql
var step4 string

// migrations are the steps from an empty schema to the newest version: step i leads to version i+1.
// A step that was released is never changed. Versions 1 to 3 never were: nothing leads from them.
var migrations = []string{"", "", "", step4}

// create creates the table that holds the version of a schema, and the schema if it is missing. Only
// that needs the right to create schemas in the database.
const create = `SET LOCAL hookferry.schema TO %s;
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = current_setting('hookferry.schema')) THEN
        EXECUTE format('CREATE SCHEMA %%I', current_setting('hookferry.schema'));
    END IF;
END
$$;
CREATE TABLE IF NOT EXISTS %s.version (number int PRIMARY KEY, oldest int NOT NULL);
`

// creation returns create for a schema with a valid name.
func creation(schema string) string {
	name, _ := identifier(schema)
	return fmt.Sprintf(create, literal(schema), name)
}

// oldest is the schema version of the oldest programs that work on the newest schema, beside newer
// programs or after them. A migration that only adds things which these programs need not know
// (tables, optional columns, indexes) leaves this number as it is. A migration that removes
// something, or changes its meaning, raises it to a version whose programs do not use that thing.
const oldest = 4

// SQL returns the statements that migrate a schema to the newest version, as one transaction. The
// argument from is the present version of the schema, or 0 if it has no tables yet or does not
// exist. See Config.NoMigrate.
func SQL(schema string, from int) (string, error) {
	name, err := identifier(schema)
	if err != nil {
		return "", err
	}
	if newest := len(migrations); from < 0 || from > newest {
		return "", fmt.Errorf("pgqueue: there is no version %d; the newest is %d", from, newest)
	}
	first := ""
	if from == 0 {
		first = creation(schema)
	}
	return "BEGIN;\n" + first + stepsFrom(name, from) + "COMMIT;\n", nil
}

// stepsFrom returns the statements that migrate from a version. The argument name is quoted. The
// functions of the schema keep this search_path. With pg_temp last, they ignore temporary tables of a
// caller of PutTx.
func stepsFrom(name string, version int) string {
	return fmt.Sprintf("SET LOCAL search_path TO %s, pg_temp;\n\n%s\nDELETE FROM version;\nINSERT INTO version VALUES (%d, %d);\n",
		name, strings.Join(migrations[version:], "\n"), len(migrations), oldest)
}

// identifier returns the name of a schema, quoted for SQL.
func identifier(schema string) (string, error) {
	if schema == "" || len(schema) > 63 || strings.ContainsRune(schema, 0) {
		return "", fmt.Errorf("pgqueue: the name of a schema has 1 to 63 bytes, not %d", len(schema))
	}
	return pgx.Identifier{schema}.Sanitize(), nil
}

// literal returns a string constant for SQL.
func literal(text string) string {
	return "E'" + strings.NewReplacer(`\`, `\\`, "'", "''").Replace(text) + "'"
}

// versionOf returns the versions in the table version of a schema, 0 if it is empty.
func versionOf(ctx context.Context, q querier, name string) (number, oldest int, err error) {
	err = q.QueryRow(ctx, "SELECT coalesce(max(number), 0), coalesce(max(oldest), 0) FROM "+name+".version").Scan(&number, &oldest)
	return number, oldest, err
}

// channelOf returns the channel of the notifications of a schema.
func channelOf(schema string) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "hookferry\x00%s", schema)
	return "hookferry_" + strconv.FormatUint(h.Sum64(), 36)
}
