package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

// term is how long others leave alone what a process has claimed after its last
// sign of life. They look for the silent in eighths of Claim, and so have taken over
// within Claim of the end of a process.
func (c *Config) term() time.Duration { return c.Claim * 3 / 4 }

// late is the age at which the latest heartbeat of a process is late: it sends one in
// every quarter of Claim.
func (c *Config) late() time.Duration { return c.Claim / 2 }

// trusted is how long a process itself relies on a sign of life that it sent.
func (c *Config) trusted() time.Duration { return c.term() * 9 / 10 }

// enroll makes this process a node, whose claims hold from now on.
func (q *Queue) enroll(ctx context.Context) error {
	sent := time.Now()
	var id int64
	if err := q.pool.QueryRow(ctx, q.sql.enroll, q.config.Node, q.config.term().Microseconds()).Scan(&id); err != nil {
		return err
	}
	q.mu.Lock()
	q.node = id
	q.until = sent.Add(q.config.trusted())
	q.mu.Unlock()
	return q.beat(ctx)
}

var errEnded = errors.New("pgqueue: the claims of this process have expired")

// beat gives a sign of life. It returns errEnded if it comes too late.
func (q *Queue) beat(ctx context.Context) error {
	q.mu.Lock()
	node, present := q.node, q.note
	q.mu.Unlock()
	var note []byte
	if present != nil {
		if note = present(); len(note) > webhook.MaxNote {
			note = nil
		}
	}
	sent := time.Now()
	var (
		now, generation int64
		shelf           int16
	)
	err := q.pool.QueryRow(ctx, q.sql.beat, node, q.config.term().Microseconds(), note, q.config.late().Microseconds()).Scan(&now, &shelf, &generation)
	took := time.Since(sent)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lastErr = err; errors.Is(err, pgx.ErrNoRows) {
		return errEnded
	}
	if err != nil {
		return err
	}
	q.shelf.Store(int32(shelf))
	q.turned(generation)
	q.until = sent.Add(q.config.trusted())
	// The clocks are taken to be one unless they differ by more than is known.
	q.offset = time.UnixMicro(now).Sub(sent.Add(took / 2))
	if q.offset.Abs() <= took/2+time.Millisecond {
		q.offset = 0
	}
	return nil
}

// live gives signs of life until the Queue is closed.
func (q *Queue) live() {
	tick := time.NewTicker(q.config.Claim / 4)
	defer tick.Stop()
	silent := false
	for {
		select {
		case <-tick.C:
		case <-q.presented:
		case <-q.background.Done():
			return
		}
		err := func() error {
			ctx, cancel := context.WithTimeout(q.background, q.config.Claim/4)
			defer cancel()
			err := q.beat(ctx)
			if errors.Is(err, errEnded) {
				return q.again(ctx)
			}
			return err
		}()
		switch {
		case err != nil && q.background.Err() == nil && !silent:
			silent = true
			q.config.Logger.Warn("pgqueue: the database does not answer", "error", oneLine(err))
		case err == nil && silent:
			silent = false
			q.config.Logger.Info("pgqueue: the database answers again")
			q.awake()
		}
	}
}

// again makes this process a new node, after others have taken over what the old
// one had claimed.
func (q *Queue) again(ctx context.Context) error {
	q.config.Logger.Warn("pgqueue: this process was silent for too long, and others have taken over what it had claimed")
	q.mu.Lock()
	now := q.now().UnixMicro()
	for _, c := range q.chunks {
		q.forget(c, now)
	}
	q.mu.Unlock()
	if err := q.enroll(ctx); err != nil {
		return err
	}
	defer q.awake()
	return q.discover(ctx)
}

// resign gives back all that is claimed.
func (q *Queue) resign(ctx context.Context) error {
	q.mu.Lock()
	node := q.node
	var back []*chunk
	for _, c := range q.chunks {
		if c.readable() { // else it is given back with the node
			back = append(back, c)
		}
	}
	q.mu.Unlock()
	var b pgx.Batch
	q.queueRelease(&b, node, back)
	b.Queue(q.sql.resign, node)
	q.queueBye(&b, node)
	return q.pool.SendBatch(ctx, &b).Close()
}

// queueRelease queues the statement that gives chunks back.
func (q *Queue) queueRelease(b *pgx.Batch, node int64, chunks []*chunk) {
	if len(chunks) == 0 {
		return
	}
	shelves, ids, dues := make([]int16, len(chunks)), make([]int64, len(chunks)), make([]int64, len(chunks))
	for i, c := range chunks {
		shelves[i], ids[i] = c.key.shelf, c.key.id
		for _, it := range c.items {
			if it != nil && (dues[i] == 0 || it.At < dues[i]) {
				dues[i] = it.At
			}
		}
	}
	b.Queue(q.sql.release, node, shelves, ids, dues)
}

// queueBye queues the notification that has others look for what was given back.
func (q *Queue) queueBye(b *pgx.Batch, node int64) {
	b.Queue(notify, q.channel(), payload(node, nil))
}

// Release implements webhook.Releaser. A chunk of which something is leased is given
// back once that is settled.
func (q *Queue) Release(ctx context.Context) error {
	if err := q.calls.Enter(ctx); err != nil {
		return err
	}
	defer q.calls.Leave()
	q.releasing.Store(true)
	if err := q.release(ctx); err != nil {
		return fmt.Errorf("pgqueue: giving back what is not leased: %w", err)
	}
	return nil
}

// soughtRest is how long a look for what is unclaimed rests afterwards, in times of what
// it took, however often others tell that there is something.
const soughtRest = 4

// look looks for what no notification told of, takes over what dead nodes had
// claimed, and keeps the tables small, until the Queue is closed.
func (q *Queue) look() {
	silent := time.NewTicker(q.config.Claim / 8)
	defer silent.Stop()
	timer := time.NewTimer(q.config.Poll)
	defer timer.Stop()
	var kept, rested time.Time
	discover := func(ctx context.Context) error {
		began := time.Now()
		err := q.discover(ctx)
		rested = time.Now().Add(soughtRest * time.Since(began))
		return err
	}
	for {
		select {
		case <-silent.C:
			q.steps(q.takeOver)
			continue
		case <-q.sought:
			timer.Reset(time.Until(rested))
			continue
		case <-timer.C:
		case <-q.background.Done():
			return
		}
		began := time.Now()
		steps := []func(context.Context) error{q.giveBack, q.release, discover}
		if began.Sub(kept) >= upkeepEvery {
			steps, kept = append(steps, q.upkeep), began
		}
		q.steps(steps...)
		// However long it takes, it takes a small part of the time.
		timer.Reset(max(q.config.Poll, 20*time.Since(began)))
	}
}

// steps takes one step after the other until one fails, of which live tells.
func (q *Queue) steps(steps ...func(context.Context) error) {
	for _, step := range steps {
		ctx, cancel := context.WithTimeout(q.background, writeTimeout)
		err := step(ctx)
		cancel()
		if err != nil {
			return
		}
	}
}

// takeOver gives back what nodes had claimed whose heartbeats have ended, and tells all
// other nodes of it. The statement that removes these nodes decides who is dead: it may
// be carried out long after it was sent.
func (q *Queue) takeOver(ctx context.Context) error {
	q.mu.Lock()
	node := q.node
	q.mu.Unlock()
	judge := []any{node, q.config.term().Microseconds(), q.config.late().Microseconds()}
	var some bool
	if err := q.pool.QueryRow(ctx, q.sql.silent, judge...).Scan(&some); err != nil || !some {
		return err
	}
	tx, err := q.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, byIndex); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, q.sql.expire, judge...)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) == 0 {
		return err
	}
	tag, err := tx.Exec(ctx, q.sql.heal)
	if err != nil {
		return err
	}
	if !q.config.NoListen {
		if _, err := tx.Exec(ctx, notify, q.channel(), payload(node, nil)); err != nil {
			return err
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	q.config.Logger.Warn("pgqueue: took over from processes that are silent", "nodes", names, "chunks", tag.RowsAffected())
	return q.discover(ctx)
}

// giveBack gives back what is claimed in this node's name and not in its memory:
// by transactions that were committed though that was never learned.
func (q *Queue) giveBack(ctx context.Context) error {
	since := q.doubt.Load()
	if since == 0 {
		return nil
	}
	conn, err := q.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	q.claims.Lock()
	defer q.claims.Unlock()
	q.mu.Lock()
	node := q.node
	shelves, ids := make([]int16, 0, len(q.chunks)), make([]int64, 0, len(q.chunks))
	for key := range q.chunks {
		shelves, ids = append(shelves, key.shelf), append(ids, key.id)
	}
	q.mu.Unlock()
	var b pgx.Batch
	b.Queue(byIndex)
	b.Queue(q.sql.giveBack, node, shelves, ids)
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	// The server may still be at work on what was given up here.
	if time.Since(time.UnixMicro(since)) > 2*writeTimeout {
		q.doubt.CompareAndSwap(since, 0)
	}
	return nil
}

// doubts notes that storing a claim failed.
func (q *Queue) doubts() { q.doubt.Store(time.Now().UnixMicro()) }

// idleClaim is how long a chunk of which nothing is handed out stays claimed.
const idleClaim = 10 * time.Second

// release gives back the chunks that this process has not used of late, such as
// those of a destination that it leaves alone, or all that it can.
func (q *Queue) release(ctx context.Context) error {
	q.mu.Lock()
	node, now, all := q.node, q.now(), q.releasing.Load()
	var back []*chunk
	for _, c := range q.chunks {
		if (all || now.Sub(c.used) > idleClaim) && c.readable() && c.allFree() {
			back = append(back, c)
		}
	}
	if len(back) == 0 {
		q.mu.Unlock()
		return nil
	}
	var b pgx.Batch
	q.queueRelease(&b, node, back)
	if all {
		q.queueBye(&b, node)
	}
	for _, c := range back {
		// The lane knows of it before its items are gone.
		for _, it := range c.items {
			if it != nil {
				q.report(c.lane, it.Order)
			}
		}
		q.forget(c, now.UnixMicro())
	}
	q.mu.Unlock()
	err := q.pool.SendBatch(ctx, &b).Close()
	if err != nil {
		q.doubts()
	}
	return err
}

// allFree reports whether nobody may settle anything of c.
func (c *chunk) allFree() bool {
	for _, it := range c.items {
		if it != nil && !it.Free() {
			return false
		}
	}
	return true
}
