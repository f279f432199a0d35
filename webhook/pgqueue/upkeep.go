package pgqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const (
	// upkeepEvery is how often tables are looked at, at most.
	upkeepEvery = 10 * time.Second
	// shelves is how many partitions chunks have.
	shelves = 4
	// shelfBytes and shelfAge are what a shelf grows to before the next is used.
	shelfBytes = 256 << 20
	shelfAge   = 10 * time.Minute
	// dirtBytes is the size up to which a shelf is not worth a thought.
	dirtBytes = 8 << 20
	// seenBytes is about what a key takes in its table.
	seenBytes = 44
	// fewChunks is how many chunks are moved on from a shelf at most, in several turns.
	fewChunks = 20_000
	// lockWait is how long others may have to wait while a lock is asked for.
	lockWait = "200ms"
)

// A shelfState is what there is to know of a shelf.
type shelfState struct {
	number int16
	size   int64 // on disk
	live   int64 // bytes of the chunks
	chunks int64 // up to fewChunks; for the shelf in use none are counted
}

// upkeep keeps the tables small. One process does it at a time. Each step is a
// transaction, so that no lock is held longer than for it.
func (q *Queue) upkeep(ctx context.Context) error {
	conn, err := q.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	for _, step := range []func(context.Context, pgx.Tx) error{q.turnGeneration, q.turnShelf, q.clearShelves, q.heal} {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			var mine bool
			if err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1)", lockOf(q.config.Schema, "upkeep")).Scan(&mine); err != nil || !mine {
				return err
			}
			if _, err := tx.Exec(ctx, byIndex+", set_config('lock_timeout', '"+lockWait+"', true)"); err != nil {
				return err
			}
			return step(ctx, tx)
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil { // such as that it could not have its lock
			q.config.Logger.Debug("pgqueue: upkeep is put off", "error", err)
		}
	}
	return nil
}

// turnGeneration forgets the oldest of what was put once the newest generation is
// full, or old enough.
func (q *Queue) turnGeneration(ctx context.Context, tx pgx.Tx) error {
	var (
		generation int64
		age        time.Duration
		size       int64
	)
	err := tx.QueryRow(ctx, q.sql.generation).Scan(&generation, (*micros)(&age), &size)
	if err != nil || size == 0 || age < q.config.DedupWindow/(generations-1) && size/seenBytes < int64(q.config.DedupMax)/generations {
		return err
	}
	// Puts hold this lock shared, so none is between two generations.
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", q.lock); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, fmt.Sprintf("TRUNCATE %s.seen_%d", q.schema, (generation+1)%generations)); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, q.sql.turnGeneration)
	return err
}

// turnShelf has new chunks go to a shelf that is empty, once the one in use is
// large, or old and worth it.
func (q *Queue) turnShelf(ctx context.Context, tx pgx.Tx) error {
	current, age, states, err := q.shelves(ctx, tx)
	if err != nil {
		return err
	}
	size := states[current].size
	if size < shelfBytes && (age < shelfAge || size < dirtBytes) {
		return nil
	}
	for i := 1; i < shelves; i++ {
		next := (int(current) + i) % shelves
		if s := states[next]; s.chunks == 0 && s.size < dirtBytes {
			_, err := tx.Exec(ctx, q.sql.turnShelf, next)
			return err
		}
	}
	return nil // all hold a backlog; what is finished is vacuumed
}

// clearShelves truncates the shelves that are not in use and empty, and moves on
// what little is left on others.
func (q *Queue) clearShelves(ctx context.Context, tx pgx.Tx) error {
	current, _, states, err := q.shelves(ctx, tx)
	if err != nil {
		return err
	}
	for _, s := range states {
		if s.number == current || s.size < dirtBytes {
			continue
		}
		if s.chunks > 0 {
			if s.chunks < fewChunks && s.live < s.size/8 {
				if _, err := tx.Exec(ctx, q.sql.move, s.number, current); err != nil {
					return err
				}
			}
			continue
		}
		name := fmt.Sprintf("%s.chunk_%d", q.schema, s.number)
		if _, err := tx.Exec(ctx, "LOCK TABLE "+name+" IN ACCESS EXCLUSIVE MODE"); err != nil {
			return err
		}
		var used bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+name+")").Scan(&used); err != nil {
			return err
		}
		if !used {
			_, err := tx.Exec(ctx, "TRUNCATE "+name)
			return err // others in their own time: this one is locked until then
		}
	}
	return nil
}

// heal gives back what is claimed by no node: one that was declared dead while a
// claim of it was on its way.
func (q *Queue) heal(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, q.sql.heal)
	return err
}

// shelves returns the shelf in use, since when, and the state of each.
func (q *Queue) shelves(ctx context.Context, tx pgx.Tx) (current int16, age time.Duration, states [shelves]shelfState, err error) {
	if err := tx.QueryRow(ctx, q.sql.shelf).Scan(&current, (*micros)(&age)); err != nil {
		return 0, 0, states, err
	}
	rows, err := tx.Query(ctx, q.sql.shelves, current, fewChunks)
	if err != nil {
		return 0, 0, states, err
	}
	defer rows.Close()
	for rows.Next() {
		var s shelfState
		if err := rows.Scan(&s.number, &s.size, &s.live, &s.chunks); err != nil {
			return 0, 0, states, err
		}
		states[s.number] = s
	}
	return current, age, states, rows.Err()
}

// micros is a duration that is read as microseconds.
type micros time.Duration

// ScanInt64 implements pgtype.Int64Scanner.
func (m *micros) ScanInt64(v pgtype.Int8) error {
	*m = micros(time.Duration(v.Int64) * time.Microsecond)
	return nil
}
