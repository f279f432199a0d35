// Package memdb has a database in memory for tests of package inbox, with transactions. It knows the
// statements of an Inbox, and one effect: an event is applied.
package memdb

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
)

// Errors of a DB.
var (
	ErrEnded  = errors.New("memdb: the transaction has ended")
	ErrKilled = errors.New("memdb: the connection was cut")
)

// A DB has committed rows. It may be used concurrently.
type DB struct {
	mu      sync.Mutex
	rows    map[string]int64 // when each id was recorded
	applied map[string]int   // how often each event was applied
	holders map[string]*Tx   // of the ids that open transactions have recorded
}

// New returns an empty database.
func New() *DB {
	return &DB{rows: map[string]int64{}, applied: map[string]int{}, holders: map[string]*Tx{}}
}

// Applied returns how often an event was applied, in transactions that were committed.
func (db *DB) Applied(id string) int {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.applied[id]
}

// Rows returns the ids that are recorded, and when.
func (db *DB) Rows() map[string]int64 {
	db.mu.Lock()
	defer db.mu.Unlock()
	return maps.Clone(db.rows)
}

// A Client is the part of one process in a DB. It is an inbox.DB.
type Client struct {
	db *DB
	// Fault is called without a lock before and after each operation: "begin", "insert", "apply",
	// "delete" and "commit". The id is the latest one that the transaction has asked for. The
	// operation fails with the error of Fault; if after is true, it has been done nevertheless. Nil
	// means no faults.
	Fault func(operation, id string, after bool) error

	open   map[*Tx]bool // guarded by db.mu, as killed
	killed bool
}

// Client returns a new client, which must not be used before its Fault is set.
func (db *DB) Client() *Client { return &Client{db: db, open: map[*Tx]bool{}} }

// Kill ends the process: its transactions are rolled back, and all further operations fail.
func (c *Client) Kill() {
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	c.killed = true
	for tx := range c.open {
		tx.end(false)
	}
}

// A Tx is a transaction. Nobody else sees its rows before the commit.
type Tx struct {
	client  *Client
	latest  string // the id of the latest insert
	ids     map[string]int64
	applied []string
	deleted []string
	ended   chan struct{}
}

// do does an operation of tx with the lock held, between the calls of Fault.
func (c *Client) do(tx *Tx, name string, operation func() error) error {
	fault := func(after bool) error {
		if c.Fault == nil {
			return nil
		}
		return c.Fault(name, tx.latest, after)
	}
	if err := fault(false); err != nil {
		return err
	}
	c.db.mu.Lock()
	err := ErrKilled
	if !c.killed {
		select {
		case <-tx.ended:
			err = ErrEnded
		default:
			err = operation()
		}
	}
	c.db.mu.Unlock()
	if err != nil {
		return err
	}
	return fault(true)
}

// Begin implements inbox.DB.
func (c *Client) Begin(context.Context) (*Tx, error) {
	tx := &Tx{client: c, ids: map[string]int64{}, ended: make(chan struct{})}
	return tx, c.do(tx, "begin", func() error {
		c.open[tx] = true
		return nil
	})
}

// Exec implements inbox.DB. An insert waits for an open transaction that has the same id.
func (c *Client) Exec(ctx context.Context, tx *Tx, statement string, args ...any) (rows int64, err error) {
	if strings.HasPrefix(statement, "DELETE") {
		err = c.do(tx, "delete", func() error {
			for id, at := range c.db.rows {
				if at < args[0].(int64) {
					tx.deleted = append(tx.deleted, id)
				}
			}
			return nil
		})
		return int64(len(tx.deleted)), err
	}
	id, at := args[0].(string), args[1].(int64)
	tx.latest = id
	for {
		var holder *Tx
		err := c.do(tx, "insert", func() error {
			holder = c.db.holders[id]
			_, there := c.db.rows[id]
			if holder == nil && !there {
				tx.ids[id], c.db.holders[id] = at, tx
				rows = 1
			}
			return nil
		})
		if err != nil || holder == nil || holder == tx {
			return rows, err
		}
		select {
		case <-holder.ended:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// Apply applies an event.
func (tx *Tx) Apply(id string) error {
	return tx.client.do(tx, "apply", func() error {
		tx.applied = append(tx.applied, id)
		return nil
	})
}

// Commit implements inbox.DB.
func (c *Client) Commit(_ context.Context, tx *Tx) error {
	return c.do(tx, "commit", func() error {
		tx.end(true)
		return nil
	})
}

// Rollback implements inbox.DB.
func (c *Client) Rollback(_ context.Context, tx *Tx) error {
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	tx.end(false)
	return nil
}

// end ends a transaction that is open. The caller holds the lock of the DB.
func (tx *Tx) end(commit bool) {
	db := tx.client.db
	if !tx.client.open[tx] {
		return
	}
	delete(tx.client.open, tx)
	for id := range tx.ids {
		delete(db.holders, id)
	}
	if commit {
		for _, id := range tx.deleted {
			delete(db.rows, id)
		}
		maps.Copy(db.rows, tx.ids)
		for _, id := range tx.applied {
			db.applied[id]++
		}
	}
	close(tx.ended)
}
