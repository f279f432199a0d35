//go:build unix

package pgqueue_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/pgqueue"
)

// An order and the event about it are stored together, or not at all.
func Example_outbox() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	store, err := pgqueue.Open(ctx, pool, pgqueue.Config{Schema: "example"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	forwarder, err := webhook.New(webhook.Config{
		Store: store,
		Destinations: []webhook.Destination{
			{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "https://crm.example/hook"}}},
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	order := &analytics.Track{
		UserId: "u1", Event: "Order Completed", MessageId: "order-1",
		Properties: map[string]any{"total": 12.5},
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE orders (id text PRIMARY KEY)"); err != nil {
		log.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ('order-1')"); err != nil {
			return err
		}
		return forwarder.ForwardTx(ctx, tx, "crm", order)
	})
	if err != nil {
		log.Fatal(err)
	}
	counts, err := store.Count(ctx)
	fmt.Println("waiting:", counts.Waiting, err)
	// Output:
	// waiting: 1 <nil>
}

// The same with database/sql, whatever its driver is.
func Example_outboxSQL() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	store, err := pgqueue.Open(ctx, pool, pgqueue.Config{Schema: "example_sql"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	forwarder, err := webhook.New(webhook.Config{
		Store: store,
		Destinations: []webhook.Destination{
			{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "https://crm.example/hook"}}},
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	order := &analytics.Track{UserId: "u1", Event: "Order Completed", MessageId: "order-1"}
	if err := forwarder.ForwardTx(ctx, tx, "crm", order); err != nil {
		log.Fatal(err)
	}
	if err := tx.Rollback(); err != nil { // there is no such order after all
		log.Fatal(err)
	}
	counts, err := store.Count(ctx)
	fmt.Println("waiting:", counts.Waiting, err)
	// Output:
	// waiting: 0 <nil>
}

// customers is a webhook.Directory: each destination of a tenant has a row.
type customers struct {
	db interface { // a pool, or a transaction
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	}
}

func (c customers) Destinations(ctx context.Context, tenant string) ([]webhook.Destination, error) {
	return c.query(ctx, "tenant = $1", tenant)
}

func (c customers) Destination(ctx context.Context, id string) (webhook.Destination, error) {
	ds, err := c.query(ctx, "id = $1", id)
	if err == nil && len(ds) == 0 {
		err = webhook.ErrTakesNothing // or ErrUnknownDestination, if the destination may come yet
	}
	if err != nil {
		return webhook.Destination{}, err // any other error: its deliveries wait, and the forwarder asks again
	}
	return ds[0], nil
}

// WithTx makes customers a webhook.TxDirectory: ForwardTx needs no second connection.
func (c customers) WithTx(tx any) webhook.Directory { return customers{tx.(pgx.Tx)} }

func (c customers) query(ctx context.Context, where, value string) ([]webhook.Destination, error) {
	rows, err := c.db.Query(ctx, "SELECT id, tenant, url, secret, NOT enabled FROM destinations WHERE "+where, value)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (webhook.Destination, error) {
		d := webhook.Destination{Endpoints: make([]webhook.Endpoint, 1)}
		err := row.Scan(&d.ID, &d.Tenant, &d.Endpoints[0].URL, &d.Secret, &d.Disabled)
		return d, err
	})
}

// Each destination of a tenant has a row with its settings, for which the forwarder asks.
func Example_tenants() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, `
		CREATE TABLE destinations (id text PRIMARY KEY, tenant text NOT NULL, url text NOT NULL, secret text NOT NULL, enabled bool NOT NULL);
		CREATE INDEX ON destinations (tenant);
		INSERT INTO destinations VALUES ('acme-1', 'acme', 'https://acme.example/hook', 's3cret', true)`); err != nil {
		log.Fatal(err)
	}

	customers := customers{pool}
	all, err := customers.Destinations(ctx, "acme")
	fmt.Println(len(all), all[0].Endpoints[0].URL, err)
	acme, err := customers.Destination(ctx, "acme-1")
	fmt.Println(acme.ID, acme.Endpoints[0].URL, acme.Disabled, err)
	_, err = customers.Destination(ctx, "umbrella-1")
	fmt.Println(err)
	// Output:
	// 1 https://acme.example/hook <nil>
	// acme-1 https://acme.example/hook false <nil>
	// webhook: destination takes nothing
}

// Behind PgBouncer in transaction mode there is no LISTEN. PgBouncer before 1.21 does not
// know prepared statements either.
func ExampleConfig_pooler() {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	config.MaxConns = 8
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	store, err := pgqueue.Open(ctx, pool, pgqueue.Config{Schema: "example_pooler", NoListen: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(store.Close())
	// Output: <nil>
}

func ExampleSQL() {
	text, err := pgqueue.SQL("hookferry", 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Join(strings.Split(text, "\n")[:2], "\n"))
	// Output:
	// BEGIN;
	// SET LOCAL search_path TO "hookferry", pg_temp;
}
