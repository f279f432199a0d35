// Package transactions tests that an event is stored with the row it reports, or not at all, in the
// transactions of several libraries. docs/transactions.md quotes it.
package transactions

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/pgtest"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/pgqueue"
)

// An Order is a row of the table orders.
type Order struct {
	ID string
}

// Queries has the shape of what sqlc generates for pgx.
type Queries struct{ db DBTX }

type DBTX interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}

func (q *Queries) WithTx(tx pgx.Tx) *Queries { return &Queries{tx} }

func (q *Queries) CreateOrder(ctx context.Context, id string) error {
	_, err := q.db.Exec(ctx, "INSERT INTO orders (id) VALUES ($1)", id)
	return err
}

var errStop = errors.New("the order is taken back")

// Each library stores an order and its event. Where fail is errStop, the transaction is rolled back.
func TestOrderAndEventAreStoredTogether(t *testing.T) {
	url := pgtest.New(t, "fsync=off").URL()
	ctx := t.Context()
	pool := testkit.Must(pgxpool.New(ctx, url))
	t.Cleanup(pool.Close)
	testkit.Must(pool.Exec(ctx, "CREATE TABLE orders (id text PRIMARY KEY)"))
	db := testkit.Must(sql.Open("pgx", url))
	t.Cleanup(func() { db.Close() })
	bunDB := bun.NewDB(db, pgdialect.New())
	gormDB := testkit.Must(gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{}))
	prepared := testkit.Must(gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{PrepareStmt: true}))
	queries := &Queries{pool}

	store := testkit.Must(pgqueue.Open(ctx, pool, pgqueue.Config{}))
	t.Cleanup(func() { store.Close() })
	directory := testkit.Must(tenants.New(store, tenants.Config{}))
	testkit.Must(directory.CreateTenant(ctx, tenants.Tenant{ID: "acme"}, ""))
	if _, _, err := directory.Create(ctx, tenants.Destination{
		Tenant: "acme", Settings: webhook.Settings{Endpoints: []webhook.Endpoint{{URL: "https://acme.example/"}}},
	}, ""); err != nil {
		t.Fatal(err)
	}
	forwarder := testkit.Must(webhook.New(webhook.Config{Store: store, Directory: directory}))

	// send is a function that a service writes once. tx may have any type that SendTx takes.
	send := func(ctx context.Context, tx any, id string) error {
		_, err := forwarder.SendTx(ctx, tx, "acme", &event.Custom{Type: "order.placed", ID: id, Data: Order{id}})
		return err
	}
	libraries := []struct {
		name  string
		place func(id string, fail error) error
	}{
		{"pgx", func(id string, fail error) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, "INSERT INTO orders (id) VALUES ($1)", id); err != nil {
					return err
				}
				return errors.Join(send(ctx, tx, id), fail)
			})
		}},
		{"database-sql", func(id string, fail error) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback() // does nothing after Commit
			if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES ($1)", id); err != nil {
				return err
			}
			if err := errors.Join(send(ctx, tx, id), fail); err != nil {
				return err
			}
			return tx.Commit()
		}},
		{"sqlc", func(id string, fail error) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if err := queries.WithTx(tx).CreateOrder(ctx, id); err != nil {
					return err
				}
				return errors.Join(send(ctx, tx, id), fail)
			})
		}},
		{"bun", func(id string, fail error) error {
			return bunDB.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
				if _, err := tx.NewInsert().Model(&Order{id}).Exec(ctx); err != nil {
					return err
				}
				return errors.Join(send(ctx, tx.Tx, id), fail)
			})
		}},
		{"gorm", func(id string, fail error) error {
			return gormDB.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
				if err := tx.Create(&Order{id}).Error; err != nil {
					return err
				}
				return errors.Join(send(ctx, tx.Statement.ConnPool.(*sql.Tx), id), fail)
			})
		}},
		{"gorm-prepared", func(id string, fail error) error {
			return prepared.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
				if err := tx.Create(&Order{id}).Error; err != nil {
					return err
				}
				return errors.Join(send(ctx, tx.Statement.ConnPool.(*gorm.PreparedStmtTX).Tx, id), fail)
			})
		}},
	}
	for i, l := range libraries {
		if err := l.place(l.name+"-1", nil); err != nil {
			t.Errorf("%s: %v", l.name, err)
		}
		if err := l.place(l.name+"-2", errStop); !errors.Is(err, errStop) {
			t.Errorf("%s: the transaction ended with %v, want %v", l.name, err, errStop)
		}
		var orders int64
		if err := pool.QueryRow(ctx, "SELECT count(*) FROM orders").Scan(&orders); err != nil {
			t.Fatal(err)
		}
		counts, err := store.Count(ctx)
		if want := int64(i + 1); err != nil || orders != want || int64(counts.Waiting) != want {
			t.Errorf("%s: %d orders and %d events, want %d of both; %v", l.name, orders, counts.Waiting, want, err)
		}
	}
}
