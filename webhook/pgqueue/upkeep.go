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
	// generations is how many generations of keys are remembered.
	generations = 2
	// seenBytes is about what a key takes in its table.
	seenBytes = 52
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
func (s *Store) upkeep(ctx context.Context) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	for _, step := range []func(context.Context, pgx.Tx) error{s.turnGeneration, s.turnShelf, s.clearShelves, s.heal} {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			var mine bool
			if err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1)", lockOf(s.config.Schema, "upkeep")).Scan(&mine); err != nil || !mine {
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
			s.config.Logger.Debug("pgqueue: upkeep is put off", "error", err)
		}
	}
	return nil
}

// turnGeneration forgets the oldest of what was put once the newest generation is
// full, or old enough.
func (s *Store) turnGeneration(ctx context.Context, tx pgx.Tx) error {
	var (
		generation int64
		age        time.Duration
		size       int64
	)
	err := tx.QueryRow(ctx, s.sql.generation).Scan(&generation, (*micros)(&age), &size)
	if err != nil || size == 0 || age < s.config.DedupWindow && size/seenBytes < int64(s.config.DedupMax)/generations {
		return err
	}
	// Puts hold this lock shared, so none is between two generations.
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", s.lock); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, fmt.Sprintf("TRUNCATE %s.seen_%d", s.schema, (generation+1)%generations)); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, s.sql.turnGeneration)
	return err
}

// turnShelf has new chunks go to a shelf that is empty, once the one in use is
// large, or old and worth it.
func (s *Store) turnShelf(ctx context.Context, tx pgx.Tx) error {
	current, age, states, err := s.shelves(ctx, tx)
	if err != nil {
		return err
	}
	size := states[current].size
	if size < shelfBytes && (age < shelfAge || size < dirtBytes) {
		return nil
	}
	for i := 1; i < shelves; i++ {
		next := (int(current) + i) % shelves
		if st := states[next]; st.chunks == 0 && st.size < dirtBytes {
			_, err := tx.Exec(ctx, s.sql.turnShelf, next)
			return err
		}
	}
	return nil // all hold a backlog; what is finished is vacuumed
}

// clearShelves truncates the shelves that are not in use and empty, and moves on
// what little is left on others.
func (s *Store) clearShelves(ctx context.Context, tx pgx.Tx) error {
	current, _, states, err := s.shelves(ctx, tx)
	if err != nil {
		return err
	}
	for _, st := range states {
		if st.number == current || st.size < dirtBytes {
			continue
		}
		if st.chunks > 0 {
			if st.chunks < fewChunks && st.live < st.size/8 {
				if _, err := tx.Exec(ctx, s.sql.move, st.number, current); err != nil {
					return err
				}
			}
			continue
		}
		name := fmt.Sprintf("%s.chunk_%d", s.schema, st.number)
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
func (s *Store) heal(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, s.sql.heal)
	return err
}

// shelves returns the shelf in use, since when, and the state of each.
func (s *Store) shelves(ctx context.Context, tx pgx.Tx) (current int16, age time.Duration, states [shelves]shelfState, err error) {
	if err := tx.QueryRow(ctx, s.sql.shelf).Scan(&current, (*micros)(&age)); err != nil {
		return 0, 0, states, err
	}
	rows, err := tx.Query(ctx, s.sql.shelves, current, fewChunks)
	if err != nil {
		return 0, 0, states, err
	}
	defer rows.Close()
	for rows.Next() {
		var st shelfState
		if err := rows.Scan(&st.number, &st.size, &st.live, &st.chunks); err != nil {
			return 0, 0, states, err
		}
		states[st.number] = st
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
