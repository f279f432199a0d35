package boltqueue

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
	"github.com/hookferry/analytics/webhook/storekit"
)

// A request is what one call wants to have stored, all of it or nothing. The committer
// has those that go to the journal, the writer those that have work or are large. One
// that wants nothing has the writer begin an epoch of the journal.
type request struct {
	puts []put
	ends []end
	// work is done in a transaction of the database. It may add puts. An error
	// that is not the transaction's own it leaves in err, having written nothing.
	work func(e *edit, r *request) error
	// alone asks for a transaction of its own, which is rolled back.
	alone bool
	// large is set for puts that are too long for an entry of the journal.
	large bool

	state  atomic.Int32
	done   chan struct{}
	err    error
	stored int
}

const (
	queued int32 = iota
	taken
	withdrawn
)

// A put is a delivery about to be stored.
type put struct {
	key   storekit.Key
	known bool // is stored though it was put before
	added bool // was not put before
	row   []byte
	item  *lanes.Item
	dest  string
}

// An end is a settlement about to be stored.
type end struct {
	lease   uint64
	verdict webhook.Verdict
	at      int64 // when it is due, has died, or the lease ends
	row     []byte
}

// itemBytes is about what an item costs beside its row.
const itemBytes = 512

// sizeOf returns what the item of a row counts for.
func sizeOf(row []byte) int64 { return int64(len(row)) + itemBytes }

// maxShared is how long an array is that rows share, in bytes: one that stays is to
// hold no more memory than that.
const maxShared = 8 << 10

// prepare checks and copies ds.
func (r *request) prepare(ds []webhook.Delivery) error {
	left := 0 // that the rows to come take
	for i := range ds {
		left += rowRoom(&ds[i])
	}
	var rows []byte
	for i := range ds {
		n := rowRoom(&ds[i])
		if cap(rows)-len(rows) < n {
			rows = make([]byte, 0, max(n, min(left, maxShared)))
		}
		left -= n
		p, err := newPut(&ds[i], rows)
		if err != nil {
			return err
		}
		if at := len(rows); cap(rows)-at >= len(p.row) {
			rows = rows[:at+len(p.row)]
		}
		r.puts = append(r.puts, p)
	}
	return nil
}

// newPut makes a put of d, and its row behind what is in rows, where there is room.
func newPut(d *webhook.Delivery, rows []byte) (put, error) {
	if err := d.Check(); err != nil {
		return put{}, fmt.Errorf("boltqueue: %w", err)
	}
	row, err := appendSealed(rows[len(rows):], d)
	if err != nil {
		return put{}, fmt.Errorf("boltqueue: %w", err)
	}
	// The record ends with the body, which is kept once.
	it := &lanes.Item{Delivery: lanes.CloneHead(d), Order: lanes.Order{At: d.Due.UnixMicro()}}
	it.Body = bodyOf(row, len(d.Body))
	return put{key: storekit.KeyOf(d.Destination, d.ID), row: row, item: it, dest: d.Destination}, nil
}

// size returns about how many bytes the request comes to in the journal, and how
// many of them are puts.
func (r *request) size() (n int, puts int64) {
	const opBytes = 64 // at most, beside the row
	puts = bytesOf(r.puts)
	for i := range r.ends {
		n += len(r.ends[i].row)
	}
	return n + int(puts) + opBytes*(len(r.puts)+len(r.ends)), puts
}

// An inbox holds the requests that wait for the next commit or transaction.
type inbox struct {
	wake chan struct{} // has a value after something came

	mu       sync.Mutex
	requests []*request
}

// do has r stored.
func (q *Queue) do(ctx context.Context, r *request) error {
	if err := ctx.Err(); err != nil {
		return err // in the middle of the call
	}
	r.done = make(chan struct{})
	if r.work != nil {
		q.errands.send(r)
	} else {
		q.inbox.send(r)
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
	}
	if r.state.CompareAndSwap(queued, withdrawn) {
		return ctx.Err()
	}
	<-r.done // a commit holds it and is under way
	return r.err
}

func (b *inbox) send(r *request) {
	b.mu.Lock()
	b.requests = append(b.requests, r)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *inbox) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.requests)
}

// The most a commit holds; a request that is larger has one for itself.
const (
	maxGroupRows  = 8192
	maxGroupBytes = 4 << 20
)

// take appends to group the requests for the next commit or transaction.
func (b *inbox) take(group []*request) []*request {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, rows, bytes := 0, 0, 0
	for _, r := range b.requests {
		size, puts := r.size()
		r.large = r.large || puts > maxGroupBytes
		rows += len(r.puts) + len(r.ends)
		bytes += size
		if len(group) > 0 && (rows > maxGroupRows || bytes > maxGroupBytes || r.single() || group[0].single() ||
			(r.work == nil) != (group[0].work == nil)) {
			break
		}
		n++
		if r.state.CompareAndSwap(queued, taken) {
			group = append(group, r)
		}
	}
	b.requests = slices.Delete(b.requests, 0, n)
	return group
}

// single reports whether the request is not done together with others.
func (r *request) single() bool { return r.alone || r.large }
