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

//go:embed migrations/0001.sql
var step1 string

//go:embed migrations/0002.sql
var step2 string

// migrations are the steps from an empty schema to the newest version: step i leads to version i+1.
// A step that was released is never changed.
var migrations = []string{step1, step2}

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
CREATE TABLE IF NOT EXISTS %s.version (number int NOT NULL, oldest int NOT NULL);
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
const oldest = 1

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

// migrate brings an older schema to the newest version, unless Config.NoMigrate is set. It returns
// an error if this program does not work on the version that the schema has afterwards. Several
// processes may migrate at once. If nothing is to be done, this needs no lock, and no right to
// create anything.
func (s *database) migrate(ctx context.Context) error {
	newest := len(migrations)
	number, supported, err := s.inspect(ctx, s.pool)
	// The creation fails if another process creates the same things. Then they are there.
	for tries := 3; err == nil && !s.config.NoMigrate && number < newest && tries > 0; tries-- {
		err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			exec := func(sql string) error {
				_, err := tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
				return err
			}
			if number == 0 {
				if err := exec(creation(s.config.Schema)); err != nil {
					return err
				}
			}
			if err := exec(s.in("LOCK TABLE S.version IN SHARE ROW EXCLUSIVE MODE")); err != nil {
				return err
			}
			if number, supported, err = s.inspect(ctx, tx); err != nil || number >= newest {
				return err
			}
			err := exec(stepsFrom(s.schema, number))
			number, supported = newest, oldest
			return err
		})
		if tries > 1 && hasCode(err, uniqueViolation, duplicateSchema, duplicateTable) {
			number, supported, err = s.inspect(ctx, s.pool)
		}
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

// inspect returns the version of the schema, and that of the oldest programs which work on it. Both are
// 0 if the schema has no tables. Whoever owns the schema can replace its functions, and so read all
// deliveries. So inspect fails if that is a role which this program need not trust. With NoMigrate,
// somebody else has made the schema, so this is only a warning.
func (s *database) inspect(ctx context.Context, q querier) (number, oldest int, err error) {
	var made bool
	var owner string
	err = q.QueryRow(ctx, ownerSQL, s.config.Schema, s.schema+".version").Scan(&made, &owner)
	if err != nil {
		return 0, 0, err
	}
	if owner != "" && s.config.NoMigrate {
		s.config.Logger.Warn("pgqueue: another role owns the schema and can read all deliveries; if it is not the role that applies the migrations, drop the schema", "schema", s.config.Schema, "owner", owner)
	} else if owner != "" {
		return 0, 0, fmt.Errorf("the schema or its tables belong to the role %q, which can read all deliveries in it; drop it, or change the owner (ALTER SCHEMA ... OWNER TO), or make the role of this program a member of that one", owner)
	}
	if !made {
		return 0, 0, nil
	}
	return versionOf(ctx, q, s.schema)
}

// ownerSQL says whether the table $2 exists, and which role owns the schema $1 or its table of the version
// without being trusted. Trusted are the role of this connection and the roles that it is a member of,
// superusers, and the owner of the database. A superuser counts as a member of no role.
const ownerSQL = `SELECT to_regclass($2) IS NOT NULL, coalesce((
	SELECT r.rolname::text FROM pg_roles r, pg_roles me, pg_database d
	WHERE me.rolname = current_user AND d.datname = current_database() AND r.oid IN (
		SELECT nspowner FROM pg_namespace WHERE nspname = $1
		UNION ALL
		SELECT c.relowner FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = 'version')
	AND NOT (r.rolsuper OR r.oid IN (me.oid, d.datdba) OR r.rolname = 'pg_database_owner' OR NOT me.rolsuper AND pg_has_role(r.oid, 'MEMBER'))
	LIMIT 1), '')`

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
