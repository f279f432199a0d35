package pgqueue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// A releaser releases deliveries with a Key that the settlement of the one before could not release,
// because another transaction had the stripe of the Key.
type releaser struct {
	maintainer *maintainer
}

// A releaser waits for soonRelease until it releases a delivery, as usually the other transaction ends
// meanwhile. Then it tries again, and waits twice as long each time, up to lateRelease.
const soonRelease, lateRelease = 10 * time.Millisecond, 250 * time.Millisecond

// run releases deliveries, at first those of earlier nodes, until the Store is closed.
func (r *releaser) run(ctx context.Context) {
	for wait := soonRelease; ; {
		left, err := r.release(ctx)
		r.maintainer.ran(ctx, "release", "deliveries wait behind others with their key that are gone; look up the error", err)
		if err == nil && !left {
			wait = soonRelease
			select {
			case <-r.maintainer.claimer.owed:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		wait = min(2*wait, lateRelease)
	}
}

// release releases what it can, and reports whether something is left.
func (r *releaser) release(ctx context.Context) (left bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	db, memory := r.maintainer.db, r.maintainer.memory
	var released []*chunk
	b := newBatch()
	b.Queue(db.in(releaseSQL), memory.nodeNow(), nil, nil, nil, nil, r.maintainer.heartbeat.now().UnixMicro(), int64(0), db.channel).Query(into(&released, scanChunk))
	b.Queue(db.in(`SELECT EXISTS (SELECT FROM S.owed)`)).QueryRow(func(row pgx.Row) error { return row.Scan(&left) })
	err = db.pool.SendBatch(ctx, b).Close()
	if err != nil {
		memory.hearAny() // the answer may be lost
		return false, err
	}
	names := make([]string, len(released))
	for i, c := range released {
		names[i] = c.queue.destination
	}
	if len(names) > 0 {
		memory.hear(names...)
	}
	return left, nil
}
