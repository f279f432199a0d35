//go:build unix

package pgqueue_test

import (
	"context"
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

func ExampleSQL() {
	text, err := pgqueue.SQL("hookferry", 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Join(strings.Split(text, "\n")[:3], "\n"))
	// Output:
	// BEGIN;
	// CREATE SCHEMA IF NOT EXISTS "hookferry";
	// SET LOCAL search_path TO "hookferry";
}
