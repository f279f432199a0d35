// Package inbox receives webhooks and applies each event once. Senders promise that an event arrives
// at least once: after a lost answer or a crash it comes again.
//
//	box, err := inbox.New(inbox.SQL(db), inbox.Config{
//		Dialect: inbox.PostgreSQL,
//		Scheme:  signature.StandardWebhooks,
//		Secrets: []signature.Secret{secret},
//	}, func(ctx context.Context, tx *sql.Tx, e signature.Event) error {
//		_, err := tx.ExecContext(ctx, "UPDATE ...")
//		return err
//	})
//	http.Handle("/hook", box)
//
// An Inbox verifies a request, begins a transaction, and records the id of the event in a table. If
// the id is new, it calls the receiver's function with the same transaction. It answers 204 after the
// commit. So the id and the effect are stored together or not at all:
//
//   - A repetition finds the id, and is answered 204 without a call.
//   - Of two requests at the same time with the same id, the second one waits for the transaction of
//     the first, and then finds its id or takes its place.
//   - A function that fails leaves nothing behind, and the answer makes the sender try again.
//   - After a crash between the commit and the answer, the event comes again as a repetition.
//
// An event that was delivered, and that somebody sends again on purpose, has a new id, so it is applied
// again. Where that does harm, put an id of your own into its data, and give the table of the effects a
// unique key on it. To replace secrets while the program runs, make a new Inbox with both, and put it
// in the place of the old one.
//
// This holds for effects inside the transaction. If the function also sends a mail, that happens
// again when the commit fails, so store a row that makes another process send it.
//
// All events of a batch are applied in one transaction, in their order. [Dialect.Schema] returns the
// statements that make the table. Use one table for each sender, because ids of two senders may be
// equal, and one for each function, if several functions must get the same events.
package inbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/signature"
)

// Defaults of Config.
const (
	DefaultTable   = "webhook_inbox"
	DefaultKeep    = 34 * 24 * time.Hour
	DefaultTimeout = 30 * time.Second
)

// Config has the settings of an Inbox.
type Config struct {
	// Dialect is the kind of the database. Required.
	Dialect Dialect
	// Table is the name of the table with the ids: letters, digits and underscores, up to 50 bytes,
	// after a schema and a full stop if there is one. Empty means DefaultTable.
	Table string
	// Secrets, Scheme, Tolerance and MaxBody are those of [signature.Handler]. XSignature signs no
	// webhook-id, so there the id of an event is a digest of its body. A body has the time and the id
	// of its message, and all attempts of a delivery have the same body.
	Secrets   []signature.Secret
	Scheme    signature.Scheme
	Tolerance time.Duration
	MaxBody   int64
	// Keep is how long ids are kept, at least one hour. A repetition that comes later is applied
	// again. Zero means DefaultKeep, 34 days: a sender that keeps dead letters for 30 days, as a
	// Forwarder does, may retry one on the last of these days, with the same id, for up to four
	// more days.
	Keep time.Duration
	// Timeout bounds the transaction of one request, with the wait for a connection. A sender that no
	// longer waits for the answer does not end it: the next attempt finds the event applied. Zero
	// means DefaultTimeout, 30 seconds.
	Timeout time.Duration
	// Logger gets a line for each event with a good signature that is not applied, with its id but not
	// its body; the lines of [signature.Handler] for other requests; and a line for ids that cannot be
	// removed. Nil means no logs.
	Logger *slog.Logger
}

// ErrRefused says that an event will never be applied. A function returns an error that wraps
// ErrRefused if another attempt would not help. The answer is then 422, so the sender gives up at
// once. If the request is a batch, the sender divides it, so that the other events are applied.
var ErrRefused = errors.New("inbox: the event is refused")

// A Func applies an event with statements in tx, which it must neither commit nor roll back. Its
// context ends after Config.Timeout. Calls may be concurrent. If it returns an error or panics, tx is
// rolled back. In PostgreSQL a statement that fails makes the commit fail, even if the function
// ignores its error.
type Func[Tx any] func(ctx context.Context, tx Tx, e signature.Event) error

// An Inbox is an HTTP handler that applies each event once. It answers as a [signature.Handler] does
// to a request that it refuses, and otherwise:
//
//	204  the events are applied, now or earlier
//	400  the body is an array, but not a batch
//	422  the function returned ErrRefused
//	500  the function failed
//	503  the database failed
//
// It may be used concurrently, and by any number of processes with one table.
type Inbox[Tx any] struct {
	verify   signature.Handler
	config   Config
	db       DB[Tx]
	apply    Func[Tx]
	insert   string
	remove   string
	recorded atomic.Int64 // events since the start, for the removal of old ids
}

// New returns an Inbox that applies events with a function. The table must be there when the first
// request comes.
func New[Tx any](db DB[Tx], c Config, apply Func[Tx]) (*Inbox[Tx], error) {
	if c.Table == "" {
		c.Table = DefaultTable
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var wrong check.Faults
	wrong.Refuse(!c.Dialect.valid(), "Dialect", "is not one of PostgreSQL, MySQL and SQLite")
	wrong.Refuse(!tableName.MatchString(c.Table), "Table", "is %q; want letters, digits and underscores, up to 50, after a schema and a full stop if there is one", c.Table)
	wrong.Refuse(c.Scheme > signature.StandardWebhooks, "Scheme", "is unknown")
	if err := (&signature.Handler{Secrets: c.Secrets, Scheme: c.Scheme}).Check(); err != nil && c.Scheme <= signature.StandardWebhooks {
		wrong.Refuse(true, "Secrets", "%v", err)
	}
	wrong.Refuse(db == nil, "db", "is nil")
	wrong.Refuse(apply == nil, "apply", "is nil")
	check.Least(&wrong, "Tolerance", &c.Tolerance, 0, signature.DefaultTolerance)
	check.Least(&wrong, "MaxBody", &c.MaxBody, 0, signature.DefaultMaxBody)
	check.Least(&wrong, "Keep", &c.Keep, time.Hour, DefaultKeep)
	check.Range(&wrong, "Timeout", &c.Timeout, time.Second, time.Hour, DefaultTimeout)
	if err := wrong.Err("inbox"); err != nil {
		return nil, err
	}
	c.Secrets = slices.Clone(c.Secrets)
	b := &Inbox[Tx]{config: c, db: db, apply: apply}
	b.insert, b.remove = fill(dialects[c.Dialect].insert, c.Table), fill(dialects[c.Dialect].remove, c.Table)
	b.verify = signature.Handler{
		Secrets: c.Secrets, Scheme: c.Scheme, Tolerance: c.Tolerance, MaxBody: c.MaxBody, Logger: c.Logger, Next: http.HandlerFunc(b.receive),
	}
	return b, nil
}

// ServeHTTP implements [http.Handler].
func (b *Inbox[Tx]) ServeHTTP(w http.ResponseWriter, r *http.Request) { b.verify.ServeHTTP(w, r) }

// receive applies the events of a verified request.
func (b *Inbox[Tx]) receive(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // the Handler has read it already
	id := r.Header.Get(signature.StandardID)
	events, err := signature.Events(id, body)
	if err != nil {
		b.config.Logger.Warn("a request was not applied, and its sender gives it up: it is an array, but not a batch of events", "status", http.StatusBadRequest, "id", id, "err", err)
		http.Error(w, "the body is an array, but not a batch of events", http.StatusBadRequest)
		return
	}
	if b.config.Scheme == signature.XSignature {
		for i, e := range events {
			events[i].ID = fmt.Sprintf("sha256-%x", sha256.Sum256(e.Body))
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), b.config.Timeout)
	defer cancel()
	status, fresh, err := b.applyOnce(ctx, events)
	if err != nil {
		b.config.Logger.Warn("an event was not applied; the sender tries again unless the status is 422", "status", status, "id", id, "err", err)
		http.Error(w, "the event was not applied", status)
		return
	}
	w.WriteHeader(status)
	if before := b.recorded.Add(int64(fresh)) - int64(fresh); before/removeEvery != (before+int64(fresh))/removeEvery {
		_ = http.NewResponseController(w).Flush() // the sender does not wait for the removal
		b.removeOld(ctx)
	}
}

// applyOnce applies the events that are new, in one transaction, and returns their number, and the
// status of the answer.
func (b *Inbox[Tx]) applyOnce(ctx context.Context, events []signature.Event) (status, fresh int, err error) {
	tx, isNew, err := b.begin(ctx, events)
	if err != nil {
		return http.StatusServiceUnavailable, 0, fmt.Errorf("inbox: recording: %w", err)
	}
	ended := false
	defer func() {
		if !ended { // also if the function panics
			_ = b.db.Rollback(ctx, tx)
		}
	}()
	for _, e := range events {
		if !isNew[e.ID] {
			continue
		}
		isNew[e.ID] = false // a batch may have an event twice
		fresh++
		if err := b.apply(ctx, tx, e); errors.Is(err, ErrRefused) {
			return http.StatusUnprocessableEntity, 0, err
		} else if err != nil {
			return http.StatusInternalServerError, 0, err
		}
	}
	if fresh == 0 {
		return http.StatusNoContent, 0, nil
	}
	err = b.db.Commit(ctx, tx)
	if ended = err == nil; !ended { // or the answer was lost: then the next attempt finds the ids
		return http.StatusServiceUnavailable, 0, fmt.Errorf("inbox: committing: %w", err)
	}
	return http.StatusNoContent, fresh, nil
}

// begin begins a transaction that has recorded all events, and returns which are new. It tries a few
// times, because the function has not been called yet: when the first of 64 transactions with one id
// rolls back, MariaDB ends some 25 of those that wait for it as deadlocked.
func (b *Inbox[Tx]) begin(ctx context.Context, events []signature.Event) (tx Tx, isNew map[string]bool, err error) {
	isNew = make(map[string]bool, len(events))
	for _, e := range events {
		isNew[e.ID] = false
	}
	// Record the ids in the same order in all requests, so that two batches do not wait for each
	// other.
	ids := slices.Sorted(maps.Keys(isNew))
	now := time.Now().Unix()
	for range 5 {
		if tx, err = b.db.Begin(ctx); err != nil {
			return tx, nil, err
		}
		for _, id := range ids {
			var rows int64
			if rows, err = b.db.Exec(ctx, tx, b.insert, id, now); err != nil {
				_ = b.db.Rollback(ctx, tx)
				break
			}
			isNew[id] = rows == 1
		}
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	return tx, isNew, err
}

// Old ids are removed in steps of up to removeMax, one for each removeEvery new events, so that the
// table has little more than the ids of Config.Keep.
const removeEvery, removeMax = 200, 1000

// removeOld removes some of the ids that were recorded longer ago than Keep.
func (b *Inbox[Tx]) removeOld(ctx context.Context) {
	tx, err := b.db.Begin(ctx)
	if err == nil {
		if _, err = b.db.Exec(ctx, tx, b.remove, time.Now().Add(-b.config.Keep).Unix()); err != nil {
			_ = b.db.Rollback(ctx, tx)
		} else {
			err = b.db.Commit(ctx, tx)
		}
	}
	if err != nil {
		b.config.Logger.Warn("old ids of webhooks could not be removed; a later request tries again", "table", b.config.Table, "err", err)
	}
}
