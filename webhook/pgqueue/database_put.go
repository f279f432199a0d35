package pgqueue

import (
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// A putResult is the result of the SQL function put.
type putResult struct {
	stored  int     // how many deliveries are stored
	known   []int32 // the positions of deliveries with a known key, counted from 1
	chunks  []int64 // the ids of the chunks, one for each draft
	behinds []bool  // which of the drafts with a Key, which come first, are behind another chunk
}

// mark sets known and behind of the entries of drafts, of which r is the result.
func (r *putResult) mark(drafts []*draft) {
	place := int32(0)
	for i, d := range drafts {
		for _, e := range d.entries {
			place++
			_, e.known = slices.BinarySearch(r.known, place)
			e.behind = !e.known && i < len(r.behinds) && r.behinds[i]
		}
	}
}

// putTxSQL returns text, which every driver can read.
const (
	putSQL   = `SELECT stored, known, chunks, behinds` + fromPut
	putTxSQL = `SELECT coalesce(known::text, '{}'), coalesce(behinds::text, '{}')` + fromPut
	fromPut  = ` FROM S.put($1::bigint, $2::uuid[], $3::bytea[], $4::boolean[], $5::bigint[],
	$6::int[], $7::boolean[], $8::bytea[], $9::bigint[], $10::bigint[], $11::bigint[], $12::text[], $13::bytea[], $14::uuid[], $15::text)`
)

// queuePut queues the statement that stores drafts, if there are any. The statement sets the result.
func (db *database) queuePut(b *pgx.Batch, drafts []*draft, sender *int64) *putResult {
	r := new(putResult)
	if len(drafts) > 0 {
		b.Queue(db.in(putSQL), db.putArgs(drafts, sender)...).QueryRow(func(row pgx.Row) error { return row.Scan(&r.stored, &r.known, &r.chunks, &r.behinds) })
	}
	return r
}

// putArgs returns the arguments of putSQL. The sender is this node, which claims the drafts whose field
// mine is set. PostgreSQL notifies all other nodes of the other drafts. In a transaction of a caller,
// sender is 0. For retries it is nil, and no node is notified.
func (db *database) putArgs(drafts []*draft, sender *int64) []any {
	var (
		names, reasons, items          [][]byte
		retries, mine                  []bool
		counts                         []int32
		keys, orders                   []pgtype.UUID
		dues, firsts, lasts, accepteds []int64
		numbers                        []string
	)
	for _, d := range drafts {
		names, retries, items = append(names, []byte(d.queue.destination)), append(retries, d.queue.retries), append(items, d.data)
		counts, mine, reasons = append(counts, int32(len(d.entries))), append(mine, d.mine), append(reasons, []byte(d.entries[0].reason))
		firsts, lasts, accepteds, numbers = append(firsts, d.first), append(lasts, d.last), append(accepteds, d.accepted), append(numbers, d.numbers())
		orders = append(orders, d.order)
		for _, e := range d.entries {
			dues, keys = append(dues, e.due), append(keys, pgtype.UUID{Bytes: e.key, Valid: e.dedup})
		}
	}
	return []any{sender, keys, names, retries, dues, counts, mine, reasons, firsts, lasts, accepteds, numbers, items, orders, db.channel}
}
