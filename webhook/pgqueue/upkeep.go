package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// upkeepEvery is how often tables are looked at, at most.
	upkeepEvery = 10 * time.Second
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

// A janitor keeps the tables small.
type janitor struct{ *database }

// upkeep keeps the tables small. One process does it at a time. Each step is a
// transaction, so that no lock is held longer than for it.
func (s *janitor) upkeep(ctx context.Context) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	for _, step := range []func(context.Context, pgx.Tx) error{s.turnGeneration, s.tidyShelves, s.heal} {
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
func (s *janitor) turnGeneration(ctx context.Context, tx pgx.Tx) error {
	var next int
	err := tx.QueryRow(ctx, s.in(`SELECT (generation + 1) % 2 FROM S.state, pg_relation_size(('S.seen_' || generation % 2)::regclass) size
WHERE size > 0 AND (size >= $1 OR began <= clock_timestamp() - $2::bigint * interval '1 microsecond')`),
		int64(s.config.DedupMax/generations)*seenBytes, s.config.DedupWindow.Microseconds()).Scan(&next)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	// Puts hold this lock shared, so none is between two generations.
	_, err = tx.Exec(ctx, fmt.Sprintf(s.in(`SELECT pg_advisory_xact_lock(%d); TRUNCATE S.seen_%d;
UPDATE S.state SET generation = generation + 1, began = clock_timestamp()`), s.lock, next), pgx.QueryExecModeSimpleProtocol)
	return err
}

// A shelf is a partition of chunks.
type shelf struct {
	Number  int
	Current bool  // new chunks go there
	Old     bool  // they do so for shelfAge
	Size    int64 // on disk
	Live    int64 // bytes of the chunks
	Chunks  int64 // up to fewChunks; in the current one none are counted
}

const shelvesSQL = `SELECT n, n = shelf, shelved <= clock_timestamp() - $2::bigint * interval '1 microsecond',
	pg_total_relation_size(('S.chunk_' || n)::regclass), l.*
FROM S.state, generate_series(0, 3) n, LATERAL (
	SELECT coalesce(sum(octet_length(items)), 0), count(*)
	FROM (SELECT items FROM S.chunk c WHERE c.shelf = n::smallint AND n <> state.shelf ORDER BY id LIMIT $1) c
) l ORDER BY n`

// tidyShelves has new chunks go to a shelf that is empty, once the current one is large, or
// old and worth it. It truncates others that are empty, and moves on what little is left on them.
func (s *janitor) tidyShelves(ctx context.Context, tx pgx.Tx) error {
	all, err := collect(ctx, tx, pgx.RowToStructByPos[shelf], s.in(shelvesSQL), fewChunks, shelfAge.Microseconds())
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(f shelf) bool { return f.Current })
	current := all[at]
	full := current.Size >= shelfBytes || current.Old && current.Size >= dirtBytes
	for i := 1; i < len(all); i++ { // if all hold a backlog, what is finished is vacuumed
		sql := ""
		f := all[(at+i)%len(all)]
		switch {
		case full && f.Chunks == 0 && f.Size < dirtBytes:
			sql = fmt.Sprintf(`UPDATE S.state SET shelf = %d, shelved = clock_timestamp()`, f.Number)
		case f.Size < dirtBytes:
		case f.Chunks == 0:
			sql = fmt.Sprintf(`DO $$ BEGIN
	LOCK TABLE S.chunk_%[1]d IN ACCESS EXCLUSIVE MODE;
	IF NOT EXISTS (SELECT FROM S.chunk_%[1]d) THEN TRUNCATE S.chunk_%[1]d; END IF;
END $$`, f.Number)
		case f.Chunks < fewChunks && f.Live < f.Size/8:
			sql = fmt.Sprintf(`WITH moved AS (
	DELETE FROM S.chunk WHERE shelf = %d AND id IN (
		SELECT id FROM S.chunk WHERE shelf = %[1]d AND node = 0 LIMIT 1000 FOR UPDATE SKIP LOCKED
	) RETURNING *
)
INSERT INTO S.chunk (shelf, id, destination, retry, due, node, held, done, why, outbox, items)
SELECT %[2]d, id, destination, retry, due, node, held, done, why, outbox, items FROM moved`, f.Number, current.Number)
		}
		if sql == "" {
			continue
		}
		_, err := tx.Exec(ctx, s.in(sql), pgx.QueryExecModeSimpleProtocol)
		if err != nil || f.Chunks == 0 {
			return err // the others in their own time: what is locked is so until then
		}
	}
	return nil
}

// heal gives back what is claimed by no node: one that was declared dead while a
// claim of it was on its way.
func (s *janitor) heal(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, s.in(healSQL))
	return err
}
