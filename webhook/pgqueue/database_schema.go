package pgqueue

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// migrate brings an older schema to the newest version, unless Config.NoMigrate is set. It returns
// an error if this program does not work on the version that the schema has afterwards. Several
// processes may migrate at once. If nothing is to be done, this needs no lock, and no right to
// create anything.
func (db *database) migrate(ctx context.Context) error {
	newest := len(migrations)
	number, supported, err := db.inspect(ctx, db.pool)
	// The creation fails if another process creates the same things. Then they exist.
	for tries := 3; err == nil && !db.config.NoMigrate && number < newest && tries > 0; tries-- {
		err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
			exec := func(sql string) error {
				_, err := tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
				return err
			}
			if number == 0 {
				if err := exec(creation(db.config.Schema)); err != nil {
					return err
				}
			}
			if err := exec(db.in("LOCK TABLE S.version IN SHARE ROW EXCLUSIVE MODE")); err != nil {
				return err
			}
			if number, supported, err = db.inspect(ctx, tx); err != nil || number >= newest {
				return err
			}
			err := exec(stepsFrom(db.schema, number))
			number, supported = newest, oldest
			return err
		})
		if tries > 1 && hasCode(err, uniqueViolation, duplicateSchema, duplicateTable) {
			number, supported, err = db.inspect(ctx, db.pool)
		}
	}
	switch name := db.config.Schema; {
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
func (db *database) inspect(ctx context.Context, q querier) (number, oldest int, err error) {
	var made bool
	var owner string
	err = q.QueryRow(ctx, ownerSQL, db.config.Schema, db.schema+".version").Scan(&made, &owner)
	if err != nil {
		return 0, 0, err
	}
	if owner != "" && db.config.NoMigrate {
		db.config.Logger.Warn("pgqueue: another role owns the schema and can read all deliveries; if it is not the role that applies the migrations, drop the schema", "schema", db.config.Schema, "owner", owner)
	} else if owner != "" {
		return 0, 0, fmt.Errorf("the schema or its tables belong to the role %q, which can read all deliveries in it; drop it, or change the owner (ALTER SCHEMA ... OWNER TO), or make the role of this program a member of that one", owner)
	}
	if !made {
		return 0, 0, nil
	}
	return versionOf(ctx, q, db.schema)
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
