package pgqueue

import (
	"context"
	"embed"
	"fmt"
	"hash/fnv"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrations are the steps from an empty schema to the newest version: step i
// leads to version i+1. What was released is never changed.
func migrations() []string {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		panic(err)
	}
	steps := make([]string, len(names)) // Glob sorts
	for i, name := range names {
		text, err := migrationFiles.ReadFile(name)
		if err != nil {
			panic(err)
		}
		steps[i] = string(text)
	}
	return steps
}

// begin creates what holds the version.
const begin = `CREATE SCHEMA IF NOT EXISTS %[1]s;
SET LOCAL search_path TO %[1]s;
CREATE TABLE IF NOT EXISTS version (number int NOT NULL);
`

// SQL returns the statements that bring schema from version from, 0 for none,
// to the newest, for those who apply them themselves. They are one transaction.
func SQL(schema string, from int) (string, error) {
	name, err := identifier(schema)
	if err != nil {
		return "", err
	}
	steps := migrations()
	if from < 0 || from > len(steps) {
		return "", fmt.Errorf("pgqueue: there is no version %d; the newest is %d", from, len(steps))
	}
	var b strings.Builder
	b.WriteString("BEGIN;\n")
	fmt.Fprintf(&b, begin, name)
	for _, step := range steps[from:] {
		b.WriteString("\n" + step)
	}
	fmt.Fprintf(&b, "\nDELETE FROM version;\nINSERT INTO version VALUES (%d);\nCOMMIT;\n", len(steps))
	return b.String(), nil
}

// identifier returns schema as SQL has it.
func identifier(schema string) (string, error) {
	if schema == "" || len(schema) > 63 || strings.ContainsRune(schema, 0) {
		return "", fmt.Errorf("pgqueue: the name of a schema has 1 to 63 bytes, not %d", len(schema))
	}
	return pgx.Identifier{schema}.Sanitize(), nil
}

// migrate brings the schema to the newest version. Any number of processes may
// do so at once.
func migrate(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	name, err := identifier(schema)
	if err != nil {
		return err
	}
	steps := migrations()
	if version, err := versionOf(ctx, pool, name); err == nil && version == len(steps) {
		return nil // without a lock, and without the right to create anything
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", lockOf(schema, "migrate")); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, fmt.Sprintf(begin, name), pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	version, err := versionOf(ctx, tx, name)
	if err != nil {
		return err
	}
	if version > len(steps) {
		return newerError(schema, version)
	}
	for _, step := range steps[version:] {
		if _, err := tx.Exec(ctx, step, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, "DELETE FROM version"); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "INSERT INTO version VALUES ($1)", len(steps)); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// checkVersion returns an error unless the schema has the newest version.
func checkVersion(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	name, err := identifier(schema)
	if err != nil {
		return err
	}
	version, err := versionOf(ctx, pool, name)
	if err != nil {
		return err
	}
	if n := len(migrations()); version < n {
		return fmt.Errorf("pgqueue: schema %q has version %d, want %d: apply what SQL(%q, %d) returns", schema, version, n, schema, version)
	} else if version > n {
		return newerError(schema, version)
	}
	return nil
}

func newerError(schema string, version int) error {
	return fmt.Errorf("pgqueue: schema %q has version %d, of a newer program; this one knows %d", schema, version, len(migrations()))
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// versionOf returns the version of the schema, 0 if it is empty.
func versionOf(ctx context.Context, q querier, name string) (version int, err error) {
	err = q.QueryRow(ctx, "SELECT coalesce(max(number), 0) FROM "+name+".version").Scan(&version)
	return version, err
}

// lockOf returns the key of an advisory lock.
func lockOf(schema, what string) int64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "hookferry\x00%s\x00%s", schema, what)
	return int64(h.Sum64())
}
