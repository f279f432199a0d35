// Command inbox is a service that receives webhooks, and applies each event once. It counts what
// customers have paid, in a database. The answer to its first webhook is lost, so that the event
// comes again, as after a crash. The program ends when the repeated webhook has been answered.
//
//	cd examples/inbox && GOWORK=off go run .
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"

	_ "modernc.org/sqlite"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/signature/inbox"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

func main() {
	ctx := context.Background()
	folder := must(os.MkdirTemp("", "inbox"))
	defer os.RemoveAll(folder)
	db := must(sql.Open("sqlite", "file:"+folder+"/shop.db?_pragma=journal_mode(wal)&_pragma=busy_timeout(20000)"))
	schema := inbox.SQLite.Schema(inbox.DefaultTable)
	for _, statement := range append(schema, "CREATE TABLE paid (customer text PRIMARY KEY, total int)") {
		must(db.Exec(statement))
	}

	secret := signature.NewStandardSecret() // the sender shows it once
	box := must(inbox.New(inbox.SQL(db), inbox.Config{
		Dialect: inbox.SQLite,
		Scheme:  signature.StandardWebhooks,
		Secrets: []signature.Secret{secret},
	}, apply))

	answered := make(chan int) // the status of each answer that is not lost
	first := true
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		box.ServeHTTP(answer, r)
		if first {
			first = false
			fmt.Println("applied, but the answer is lost")
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(answer.Code)
		answered <- answer.Code
	}))
	send(ctx, receiver.URL, secret)
	fmt.Println("answered", <-answered)

	var total int
	check(db.QueryRow("SELECT total FROM paid WHERE customer = 'ann'").Scan(&total))
	fmt.Println("ann has paid", total)
}

// apply adds a payment in the transaction that records the id of the event.
func apply(ctx context.Context, tx *sql.Tx, e signature.Event) error {
	var paid struct {
		Data struct {
			Customer string
			Cents    int
		}
	}
	if err := json.Unmarshal(e.Body, &paid); err != nil {
		return fmt.Errorf("%w: %v", inbox.ErrRefused, err) // the sender gives up at once
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO paid VALUES (?, ?)
		ON CONFLICT (customer) DO UPDATE SET total = total + excluded.total`, paid.Data.Customer, paid.Data.Cents)
	return err
}

// send stands for the sender, which is another program.
func send(ctx context.Context, url string, secret signature.Secret) {
	forwarder := must(webhook.New(webhook.Config{
		Store:        must(memqueue.Open(memqueue.Config{})),
		Destinations: []webhook.Destination{{ID: "shop", Endpoints: []webhook.Endpoint{{URL: url}}, StandardSecrets: []signature.Secret{secret}}},
	}))
	go forwarder.Run(ctx) // until the program ends
	data := map[string]any{"customer": "ann", "cents": 1250}
	check(forwarder.Forward(ctx, "shop", &event.Custom{Type: "invoice.paid", ID: "invoice-7", Data: data}))
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
