package pgqueue

import (
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/hookferry/analytics/webhook/store"
)

// A settling is a transaction that stores settlements.
type settling struct {
	claimer *claimer
	batch   pgx.Batch
	size    int     // of the settlements, approximately, in bytes
	items   []*item // the settled deliveries
	retries []*entry
	drafts  []*draft       // of retries
	ended   map[*chunk]int // for each chunk, how many of its deliveries are settled
	keeps   bool           // what is done goes to the history
	kept    []store.Record // what goes there

	node     int64                             // this node
	first    map[pgtype.UUID]*store.Settlement // of those with a Key, of which the next one is to be released
	released []*chunk                          // what release returns
}

// collect adds the first settlements of ss, as many as fit. It returns their number, and why it refuses
// the next one. It fails if the claims of this node may have ended.
func (t *settling) collect(ss []store.Settlement) (n int, refused, err error) {
	t.claimer.memory.mu.Lock()
	defer t.claimer.memory.mu.Unlock()
	if err := t.claimer.heartbeat.expired(); err != nil {
		return 0, nil, err
	}
	for ; n < len(ss) && t.size <= maxBatch; n++ {
		ss[n].Released = time.Time{}
		if refused = t.add(&ss[n]); refused != nil {
			break
		}
	}
	if len(t.ended) > 0 {
		t.queue()
	}
	return n, refused, nil
}

// add adds a settlement, unless its claim has ended. It returns why it refuses the settlement.
func (t *settling) add(v *store.Settlement) error {
	if err := v.Check(); err != nil {
		return err
	}
	it := t.claimer.memory.claims[v.Delivery.Claim]
	if it == nil || it.state == storing {
		return nil // the claim has ended, or an earlier settlement ends it
	}
	d := it.d
	d.Claim = 0
	d.Tries, d.Closed, d.Attempts = v.Delivery.Tries, v.Delivery.Closed, v.Delivery.Attempts
	switch v.Verdict {
	case store.Return:
		t.claimer.memory.takeBack(it)
		return nil
	case store.Retry:
		d.Due, d.Expires = v.Delivery.Due, v.Delivery.Expires
		e, err := newEntry(&store.Put{Delivery: d, NoDedup: true})
		if err != nil {
			return err
		}
		t.retries = append(t.retries, e)
		t.size += len(e.record)
	case store.Bury:
		if err := t.bury(&d, v); err != nil {
			return err
		}
	case store.Done:
		if t.keeps {
			t.kept = append(t.kept, store.Record{Delivery: d, At: v.At})
			t.size += len(d.Body)
		}
	}
	if v.Verdict != store.Retry && it.chunk.order.Valid {
		t.first[it.chunk.order] = v
	}
	t.size += 64
	it.state = storing
	t.items = append(t.items, it)
	t.ended[it.chunk]++
	return nil
}

// bury queues the statement that makes d a dead letter.
func (t *settling) bury(d *store.Delivery, v *store.Settlement) error {
	dead := store.Record{Delivery: *d, Reason: v.Reason, At: v.At}
	record, err := dead.AppendBinary(nil)
	if err != nil {
		return err
	}
	t.batch.Queue(t.claimer.db.in(burySQL), int64(d.Seq), []byte(d.Destination), d.Accepted.UnixMicro(), v.At.UnixMicro(), d.Size(),
		[]byte(d.Type), []byte(v.Reason), []byte(d.User), keysOf(d), record)
	t.size += len(record)
	return nil
}

// queue queues the statements that settle the deliveries of chunks and store retries.
func (t *settling) queue() {
	var ids []int64
	var before, waiting []int32
	var bits []string
	for c, n := range t.ended {
		ids, before, waiting = append(ids, c.id), append(before, int32(c.waiting)), append(waiting, int32(c.waiting-n))
		bits = append(bits, c.doneBits())
	}
	t.batch.Queue(t.claimer.db.in(settleSQL), t.claimer.memory.node, ids, before, waiting, bits)
	t.drafts = draftsOf(t.retries)
	t.claimer.db.queuePut(&t.batch, t.drafts, nil)
	t.queueRelease()
}

// queueRelease queues the statement that releases the deliveries behind those that are settled, if any has
// a Key. This node claims a released one as it claims those that it puts; see claimDrafts.
func (t *settling) queueRelease() {
	t.node = t.claimer.memory.node
	if len(t.first) == 0 {
		return
	}
	now := t.claimer.heartbeat.now()
	claims := !t.claimer.releasing.Load() && t.claimer.memory.bytes <= cacheBytes/2
	var keys []pgtype.UUID
	var afters []int64
	var mine, lapses []bool
	for key, v := range t.first {
		it := t.claimer.memory.claims[v.Delivery.Claim]
		q := t.claimer.memory.queues[queueKey{it.d.Destination, false}]
		keys, afters = append(keys, key), append(afters, it.chunk.first)
		mine, lapses = append(mine, claims && (q == nil || q.beyond > now.Add(-shortBacklog).UnixMicro())), append(lapses, v.Reason.Lapsed())
	}
	t.batch.Queue(t.claimer.db.in(releaseSQL), t.node, keys, afters, mine, lapses, now.UnixMicro(), now.Add(time.Second).UnixMicro(), t.claimer.db.channel).
		Query(into(&t.released, scanChunk))
}

// installReleased adds released chunks to memory. It sets Released of the settlements.
func (t *settling) installReleased() {
	m := t.claimer.memory
	for _, c := range t.released {
		switch {
		case c.owner == behind:
			t.claimer.owed.Set()
			continue
		case c.owner == 0:
			m.reportOne(c.queue, c.due, 1)
		case m.node == t.node: // otherwise other nodes have taken over the claims
			t.claimer.installFirst(c)
		}
		t.first[c.order].Released = timeOf(c.due)
	}
}

// finish changes memory after the transaction, whose error is err.
func (t *settling) finish(err error) {
	t.claimer.memory.mu.Lock()
	defer t.claimer.memory.mu.Unlock()
	t.claimer.memory.report(t.drafts...)
	for _, it := range t.items {
		if err == nil {
			t.claimer.memory.unhand(it, settled)
		} else if it.state == storing {
			it.state = inHand
		}
	}
	if err != nil {
		return
	}
	t.installReleased()
	for c, n := range t.ended {
		if c.waiting -= n; c.waiting == 0 {
			t.claimer.memory.forget(c)
		}
	}
}

const settleSQL = `SELECT S.settle($1::bigint, $2::bigint[], $3::int[], $4::int[], $5::text[])`

const releaseSQL = `SELECT c.id, c.first, c.destination, c.retry, c.waiting, c.outbox, '', c.items, c.key, c.due, c.node
FROM S.release($1::bigint, $2::uuid[], $3::bigint[], $4::boolean[], $5::boolean[], $6::bigint, $7::bigint, $8::text) c`

const burySQL = `INSERT INTO S.dead (seq, destination, accepted, died, size, type, reason, user_id, keys, record)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`
