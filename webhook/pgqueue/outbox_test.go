package pgqueue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/tenants"
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
		_, err := putInTx(ctx, b, tx, puts(ds...))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	wantCounts("PutTx", 0, 0)
	if n, _, err := a.Discard(ctx, refs(listAll(t, a, store.Query{User: "u0"}))...); n != 10 || err != nil {
		t.Fatalf("Discard = %d, %v; want 10", n, err)
	}
	wantCounts("Discard", 10, 0)
	if n, _, err := b.Erase(ctx, "u1"); n != 10 || err != nil {
		t.Fatalf("Erase = %d, %v; want 10", n, err)
	}
	if n, _, err := b.Hasten(ctx, refs(listAll(t, b, store.Query{}))...); n != 10 || err != nil {
		t.Fatalf("Hasten = %d, %v; want 10", n, err)
	}
	settleAll(t, b, store.Done, fetchUntil(t, b, 10, "crm"))
	wantCounts("the last delivery", 10, 20)
	wantWaiting(t, a, 0)
}

// A directory that reads in a transaction sees what the transaction has written. It uses no other
// connection: a directory outside of the transaction does not see it.
func TestDocumentsOfATransaction(t *testing.T) {
	s := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer s.Close()
	db, err := sql.Open("pgx", address(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx := t.Context()
	directory, err := tenants.New(s, tenants.Config{})
	if err == nil {
		_, err = directory.CreateTenant(ctx, tenants.Tenant{ID: "acme"}, "")
	}
	var made tenants.Destination
	if err == nil {
		made, _, err = directory.Create(ctx, tenants.Destination{Tenant: "acme", Settings: webhook.Settings{Endpoints: []webhook.Endpoint{{URL: "https://acme.example/"}}}}, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	const rename = `UPDATE S.document SET name = substr(name, 1, length(name) - 4) || ('0' || $1)::bytea WHERE folder = 'tenant/acme'`
	for name, begin := range map[string]func() (tx any, exec, rollback func() error){
		"pgx": func() (any, func() error, func() error) {
			tx, err := s.db.pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			exec := func() error { _, err := tx.Exec(ctx, s.db.in(rename), "pgx"); return err }
			return tx, exec, func() error { return tx.Rollback(ctx) }
		},
		"database/sql": func() (any, func() error, func() error) {
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			exec := func() error { _, err := tx.Exec(s.db.in(rename), "sql"); return err }
			return tx, exec, tx.Rollback
		},
	} {
		tx, exec, rollback := begin()
		if err := exec(); err != nil {
			t.Fatal(err)
		}
		in := directory.WithTx(tx)
		all, err := in.Destinations(ctx, "acme")
		if err != nil || len(all) != 1 || !strings.HasPrefix(all[0].ID, made.ID[:len(made.ID)-4]+"0") {
			t.Fatalf("%s: Destinations in the transaction = %v, %v, want the renamed one", name, all, err)
		}
		if got, err := in.Destination(ctx, all[0].ID); err != nil || got.ID != all[0].ID {
			t.Errorf("%s: Destination in the transaction = %v, %v", name, got, err)
		}
		if got, err := directory.Destination(ctx, made.ID); err != nil || got.ID != made.ID {
			t.Errorf("%s: Destination outside of the transaction = %v, %v", name, got, err)
		}
		if err := rollback(); err != nil {
			t.Error(err)
		}
	}
	if _, err := directory.WithTx("no transaction").Destinations(ctx, "acme"); err == nil {
		t.Error("Destinations in a transaction of type string: no error")
	}
}

// A sharing directory takes its connections from the pool of the transactions.
type sharing struct {
	db interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}
}

func (s sharing) Destination(ctx context.Context, id string) (d webhook.Destination, err error) {
	d = webhook.Destination{Tenant: "acme", Endpoints: []webhook.Endpoint{{URL: "https://acme.example/"}}}
	return d, s.db.QueryRow(ctx, "SELECT $1::text", id).Scan(&d.ID)
}

func (s sharing) Destinations(ctx context.Context, tenant string) ([]webhook.Destination, error) {
	d, err := s.Destination(ctx, tenant+"-1")
	return []webhook.Destination{d}, err
}

func (sharing) WithTx(tx any) webhook.Directory { return sharing{tx.(pgx.Tx)} }

// Transactions that hold all connections of the pool from which the Directory takes its own do not
// wait for each other.
func TestForwardTxAndSendTxNeedNoSecondConnection(t *testing.T) {
	config := pool(t).Config().Copy()
	config.MaxConns = 4
	four := testkit.Must(pgxpool.NewWithConfig(t.Context(), config))
	defer four.Close()
	q := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer q.Close()
	f, err := webhook.New(webhook.Config{Store: q, Directory: sharing{four}})
	if err != nil {
		t.Fatal(err)
	}
	var begun, ended sync.WaitGroup
	begun.Add(int(config.MaxConns))
	for i := range config.MaxConns {
		ended.Go(func() {
			err := pgx.BeginFunc(t.Context(), four, func(tx pgx.Tx) error {
				begun.Done()
				begun.Wait() // now no connection is left
				order := &analytics.Track{UserId: "u1", Event: "Paid", MessageId: fmt.Sprint(i)}
				if i%2 == 0 {
					return f.ForwardTx(t.Context(), tx, "acme-1", order)
				}
				_, err := f.SendTx(t.Context(), tx, "acme", order)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	ended.Wait()
	if s := f.Stats(); s.InTransaction != int64(config.MaxConns) {
		t.Errorf("%d deliveries are stored in transactions, want %d", s.InTransaction, config.MaxConns)
	}
}

// PutTx says of each delivery what became of it, whatever the driver and the order in which it stores them.
func TestPutTxReturnsResultsInOrder(t *testing.T) {
	s := openWith(t, Config{Schema: schemaOf(t.TempDir())})
	defer s.Close()
	db, err := sql.Open("pgx", address(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx := t.Context()
	putAll(t, s, append(keyed("crm", "before", 0, 1), deliveries("crm", 0, 1)...)...)
	for from, put := range map[int]func(ps []store.Put, out []store.Result) error{
		100: func(ps []store.Put, out []store.Result) error {
			return pgx.BeginFunc(ctx, s.db.pool, func(tx pgx.Tx) error { return s.PutTx(ctx, tx, ps, out) })
		},
		200: func(ps []store.Put, out []store.Result) error {
			tx, err := db.Begin()
			if err != nil {
				return err
			}
			return errors.Join(s.PutTx(ctx, tx, ps, out), tx.Commit())
		},
	} {
		ds := deliveries("crm", from, 4)
		ds[0].Due = ds[0].Due.Add(time.Hour) // so that it is stored after the others
		ds[3] = ds[1]
		key := keyed("crm", fmt.Sprint("key ", from), from, 2)
		ps := puts(ds[0], key[0], deliveries("crm", 0, 1)[0], key[1], ds[1], ds[2], ds[3], keyed("crm", "before", from, 1)[0], key[0])
		want := []store.Result{{Stored: true}, {Stored: true}, {}, {Stored: true, Behind: true}, {Stored: true}, {Stored: true}, {}, {Stored: true, Behind: true}, {}}
		got := make([]store.Result, len(ps))
		if err := put(ps, got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("results of PutTx from %d (-want +got)\n%s", from, diff)
		}
	}
}
