package pgqueue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

// Two nodes accept deliveries, some of them in transactions. One node stops, and a third one
// starts. Summed over all nodes, accepted = delivered + dead: the node that first claims a
// delivery of a transaction counts it as accepted. No node counts or delivers the one that was
// rolled back.
func TestForwardTxIsCountedOnce(t *testing.T) {
	schema := schemaOf(t.TempDir())
	network := webhooktest.NewNetwork()
	defer network.Close()
	network.Receiver("https://good.example/", "")
	network.Receiver("https://gone.example/", "", step.Answer(http.StatusNotFound))
	type node struct {
		*webhook.Forwarder
		store *Store
		ran   chan error
	}
	start := func() *node {
		n := &node{store: openWith(t, Config{Schema: schema}), ran: make(chan error, 1)}
		var err error
		n.Forwarder, err = webhook.New(webhook.Config{
			Store: n.store, DialContext: network.DialContext, TLSClientConfig: network.TLSClientConfig(), Logger: slog.New(slog.DiscardHandler),
			Destinations: []webhook.Destination{
				{ID: "good", Endpoints: []webhook.Endpoint{{URL: "https://good.example/"}}},
				{ID: "gone", Endpoints: []webhook.Endpoint{{URL: "https://gone.example/"}}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	run := func(n *node) {
		go func() { n.ran <- n.Run(context.Background()) }() // until stop
	}
	stop := func(n *node) {
		if err := errors.Join(n.Shutdown(context.Background()), <-n.ran, n.store.Close()); err != nil {
			t.Error(err)
		}
	}
	ctx := t.Context()
	db, err := sql.Open("pgx", address(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	// forward sends the calls numbered from to to-1 to a destination: one in three without a
	// transaction, one in three in a transaction of pgx, and the others in one of database/sql.
	forward := func(n *node, destination string, from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			call := &analytics.Track{UserId: "u1", Event: "Order Placed", MessageId: fmt.Sprint(destination, i)}
			var err error
			switch i % 3 {
			case 0:
				err = n.Forward(ctx, destination, call)
			case 1:
				err = pgx.BeginFunc(ctx, n.store.db.pool, func(tx pgx.Tx) error { return n.ForwardTx(ctx, tx, destination, call) })
			default:
				var tx *sql.Tx
				if tx, err = db.Begin(); err == nil {
					if err = n.ForwardTx(ctx, tx, destination, call); err == nil {
						err = tx.Commit()
					}
					tx.Rollback() // after an error; otherwise the other node waits for the key for ever
				}
			}
			if err != nil {
				t.Errorf("forwarding call %d to %s: %v", i, destination, err)
				return
			}
		}
	}
	rollback := errors.New("rolled back")
	a, b := start(), start()
	forward(a, "good", 0, 60) // no node is running yet
	forward(b, "gone", 0, 30)
	err = pgx.BeginFunc(ctx, a.store.db.pool, func(tx pgx.Tx) error {
		if err := a.ForwardTx(ctx, tx, "good", &analytics.Track{UserId: "u1", Event: "Never", MessageId: "never"}); err != nil {
			return err
		}
		return rollback
	})
	if !errors.Is(err, rollback) {
		t.Fatal(err)
	}
	if got := a.Stats(); got.InTransaction != 41 || got.Accepted != 20 {
		t.Errorf("before the first claim: got %d in transactions, %d accepted; want 41, 20", got.InTransaction, got.Accepted)
	}
	run(a)
	run(b)
	var sending sync.WaitGroup
	for _, n := range []*node{a, b} {
		sending.Go(func() { forward(n, "good", 30, 120) }) // half of them are duplicates
	}
	sending.Wait()
	stop(a)
	c := start()
	run(c)
	forward(c, "good", 120, 150)
	var counts store.Counts
	testkit.Until(t, "every delivery is delivered or dead", func() bool {
		if counts, err = c.store.Count(ctx); err != nil {
			t.Fatal(err)
		}
		return counts.Waiting == 0
	})
	stop(b)
	stop(c)
	var accepted, delivered, dead int64
	for _, n := range []*node{a, b, c} {
		s := n.Stats()
		accepted, delivered, dead = accepted+s.Accepted, delivered+s.Delivered, dead+s.Dead[store.ReasonRefused]
	}
	if delivered != 150 || dead != 30 || counts.Dead != 30 {
		t.Errorf("got %d delivered, %d dead, %d dead letters; want 150, 30, 30", delivered, dead, counts.Dead)
	}
	if accepted != delivered+dead {
		t.Errorf("got %d accepted, want the sum of %d delivered and %d dead", accepted, delivered, dead)
	}
}

// A delivery of a transaction counts as accepted once, also if it is changed, discarded or erased
// before it was first fetched, and if its chunk is given back and claimed again.
func TestPutTxIsCountedBeforeChange(t *testing.T) {
	c := Config{Schema: schemaOf(t.TempDir())}
	a, b := openWith(t, c), openWith(t, c)
	defer a.Close()
	defer b.Close()
	ctx := t.Context()
	wantCounts := func(what string, wantA, wantB int64) {
		t.Helper()
		if gotA, gotB := a.FirstClaims(), b.FirstClaims(); gotA != wantA || gotB != wantB {
			t.Errorf("after %s: the nodes count %d and %d first claims, want %d and %d", what, gotA, gotB, wantA, wantB)
		}
	}
	ds := deliveries("crm", 0, 30) // ten each are due now, in an hour, and in two hours
	for i := range ds {
		ds[i].User = fmt.Sprint("u", i/10)
		ds[i].Due = ds[i].Due.Add(time.Duration(i/10) * time.Hour)
	}
	if err := pgx.BeginFunc(ctx, b.db.pool, func(tx pgx.Tx) error {
		_, err := b.PutTx(ctx, tx, puts(ds...))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	wantCounts("PutTx", 0, 0)
	if n, _, err := a.Change(ctx, store.WaitingFilter{Destination: "crm", User: "u0"}, store.Discarded); n != 10 || err != nil {
		t.Fatalf("Change to Discarded = %d, %v; want 10", n, err)
	}
	wantCounts("Change to Discarded", 30, 0) // the sweep has claimed all chunks of the destination
	if n, _, err := b.Erase(ctx, "u1"); n != 10 || err != nil {
		t.Fatalf("Erase = %d, %v; want 10", n, err)
	}
	if n, _, err := b.Change(ctx, store.WaitingFilter{Destination: "crm"}, store.DueNow); n != 10 || err != nil {
		t.Fatalf("Change to DueNow = %d, %v; want 10", n, err)
	}
	settleAll(t, b, store.Done, fetchUntil(t, b, 10, "crm"))
	wantCounts("the last delivery", 30, 0)
	wantWaiting(t, a, 0)
}
