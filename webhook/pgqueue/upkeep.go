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
	// upkeepEvery is how often upkeep runs, at most.
	upkeepEvery = 10 * time.Second
	// New chunks go to the next partition once the current one has fullBytes or the age oldAge.
	fullBytes = 256 << 20
	oldAge    = 10 * time.Minute
	// rotateChunks leaves partitions of less than smallBytes alone: it neither replaces nor
	// truncates them.
	smallBytes = 8 << 20
	// dedupParts is how many partitions the dedup window has.
	dedupParts = 2
	// dedupBytes is about how many bytes a key takes in its table.
	dedupBytes = 52
	// rotateChunks moves the chunks of a nearly empty partition to the current one if they are
	// fewer than fewChunks.
	fewChunks = 20_000
	// lockWait bounds how long a step waits for a lock. While the step waits, other transactions queue
	// up behind it.
	lockWait = "200ms"
)

// upkeep keeps the tables small. Only one node at a time does it. Each step is a short transaction
// of its own.
func (s *database) upkeep(ctx context.Context) error {
	var errs []error
	for _, step := range []func(context.Context, pgx.Tx) error{s.rotateDedup, s.rotateChunks, s.heal} {
		errs = append(errs, pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			var mine bool
			if err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1)", lockOf(s.config.Schema, "upkeep")).Scan(&mine); err != nil || !mine {
				return err
			}
			if _, err := tx.Exec(ctx, byIndex+", set_config('lock_timeout', '"+lockWait+"', true)"); err != nil {
				return err
			}
			return step(ctx, tx)
		}))
	}
	return errors.Join(errs...)
}

// rotateDedup removes the older half of the dedup window when the newer half is full, or has taken
// keys for DedupWindow. New keys then go to the empty half.
func (s *database) rotateDedup(ctx context.Context, tx pgx.Tx) error {
	var next int
	err := tx.QueryRow(ctx, s.in(`SELECT 1 - dedup_part FROM S.state, pg_relation_size(('S.dedup_' || dedup_part)::regclass) size
WHERE size > 0 AND (size >= $1 OR dedup_since <= clock_timestamp() - $2::bigint * interval '1 microsecond')`),
		int64(s.config.DedupMax/dedupParts)*dedupBytes, s.config.DedupWindow.Microseconds()).Scan(&next)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	// Each put holds this lock in shared mode, and the rotation takes it in exclusive mode. So no
	// put looks up keys before the rotation and then adds them after it.
	_, err = tx.Exec(ctx, fmt.Sprintf(s.in(`SELECT pg_advisory_xact_lock(%d); TRUNCATE S.dedup_%d;
UPDATE S.state SET dedup_part = %[2]d, dedup_since = clock_timestamp()`), s.lock, next), pgx.QueryExecModeSimpleProtocol)
	return err
}

// A partition is one of the partitions of the table of chunks.
type partition struct {
	Number  int
	Current bool  // new chunks go to this partition
	Old     bool  // new chunks have gone to the current partition for oldAge
	Size    int64 // in bytes, on disk
	Live    int64 // bytes of its first fewChunks chunks
	Chunks  int64 // how many chunks it has, counted up to fewChunks; 0 for the current partition
}

const partitionsSQL = `SELECT n, n = chunk_part, chunk_since <= clock_timestamp() - $2::bigint * interval '1 microsecond',
	pg_total_relation_size(('S.chunk_' || n)::regclass), l.*
FROM S.state, generate_series(0, 3) n, LATERAL (
	SELECT coalesce(sum(octet_length(items)), 0), count(*)
	FROM (SELECT items FROM S.chunk c WHERE c.part = n::smallint AND n <> state.chunk_part ORDER BY id LIMIT $1) c
) l ORDER BY n`

// rotateChunks directs new chunks to an empty partition when the current one is full, or old and
// not small. It truncates other partitions that are empty, and moves the chunks of nearly empty
// ones to the current one. If all partitions hold a backlog, only vacuum removes finished chunks.
func (s *database) rotateChunks(ctx context.Context, tx pgx.Tx) error {
	all, err := collect(ctx, tx, pgx.RowToStructByPos[partition], s.in(partitionsSQL), fewChunks, oldAge.Microseconds())
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(p partition) bool { return p.Current })
	current := all[at]
	full := current.Size >= fullBytes || current.Old && current.Size >= smallBytes
	for i := 1; i < len(all); i++ {
		sql := ""
		p := all[(at+i)%len(all)]
		switch {
		case full && p.Chunks == 0 && p.Size < smallBytes:
			sql = fmt.Sprintf(`UPDATE S.state SET chunk_part = %d, chunk_since = clock_timestamp()`, p.Number)
		case p.Size < smallBytes:
		case p.Chunks == 0:
			sql = fmt.Sprintf(`DO $$ BEGIN
	LOCK TABLE S.chunk_%[1]d IN ACCESS EXCLUSIVE MODE;
	IF NOT EXISTS (SELECT FROM S.chunk_%[1]d) THEN TRUNCATE S.chunk_%[1]d; END IF;
END $$`, p.Number)
		case p.Chunks < fewChunks && p.Live < p.Size/8:
			// Move the rows by DELETE and INSERT. An UPDATE of part, the partition key, would make
			// concurrent statements that lock these rows fail.
			sql = fmt.Sprintf(`WITH moved AS (
	DELETE FROM S.chunk WHERE part = %[1]d AND id IN (
		SELECT id FROM S.chunk WHERE part = %[1]d AND node = 0 LIMIT 1000 FOR UPDATE SKIP LOCKED
	) RETURNING *
)
INSERT INTO S.chunk (part, id, destination, retry, due, node, waiting, done, reason, outbox, items)
SELECT %[2]d, nextval('S.ids') * 4 + %[2]d, destination, retry, due, node, waiting, done, reason, outbox, items FROM moved`, p.Number, current.Number)
		}
		if sql == "" {
			continue
		}
		_, err := tx.Exec(ctx, s.in(sql), pgx.QueryExecModeSimpleProtocol)
		if err != nil || p.Chunks == 0 {
			return err // end the transaction now, because it holds its locks until then
		}
	}
	return nil
}

// heal frees chunks that are claimed by nodes which no longer exist. Such claims arise if a claim
// is stored while another node removes the claiming node.
func (s *database) heal(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, s.in(healSQL))
	return err
}

const healSQL = `WITH RECURSIVE h AS (
	(SELECT node FROM S.chunk WHERE node <> 0 ORDER BY node LIMIT 1)
	UNION ALL
	SELECT (SELECT node FROM S.chunk WHERE node <> 0 AND node > h.node ORDER BY node LIMIT 1) FROM h WHERE h.node IS NOT NULL
)
UPDATE S.chunk SET node = 0 WHERE node <> 0 AND node = ANY (ARRAY(
	SELECT node FROM h WHERE node IS NOT NULL AND NOT EXISTS (SELECT FROM S.node n WHERE n.id = h.node)))`
