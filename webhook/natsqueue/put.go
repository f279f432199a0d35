package natsqueue

import (
	"context"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
	"github.com/hookferry/analytics/webhook/storekit"
)

// maxName is how many bytes a destination and a member of an audience have at most.
const maxName = 255

// A fresh delivery is one to be stored.
type fresh struct {
	message
	delivery  *webhook.Delivery
	partition int
}

// prepare checks and encodes ds.
func (q *Queue) prepare(ds []webhook.Delivery) ([]fresh, error) {
	total := 0
	for i := range ds {
		total += len(ds[i].Body) + 256
	}
	buf := make([]byte, 0, total)
	all := make([]fresh, len(ds))
	limit := q.nc.MaxPayload()
	now := time.Now()
	for i := range ds {
		d := &ds[i]
		if err := d.Check(); err != nil {
			return nil, fmt.Errorf("natsqueue: delivery %d: %w", i, err)
		}
		from := len(buf)
		var err error
		if buf, err = d.AppendBinary(buf); err != nil {
			return nil, fmt.Errorf("natsqueue: delivery %d: %w", i, err)
		}
		f := &all[i]
		f.data = buf[from:len(buf):len(buf)]
		if n := int64(len(f.data) + recordRoom + headerRoom); n > limit {
			return nil, fmt.Errorf("natsqueue: delivery %d takes %d bytes; the server's max_payload is %d", i, n, limit)
		}
		f.delivery = d
		f.partition = partitionOf(d.Destination, q.config.Partitions)
		f.subject = q.subjects.delivery(f.partition, token(d.Destination), d.Due, now)
	}
	return all, nil
}

const (
	// headerRoom is what the headers of a delivery take at most.
	headerRoom = 256
	// recordRoom is what a record grows by at most until it is settled, but for the
	// attempts: these are left out where there is no room for them.
	recordRoom = 256
)

// putID is the id of a delivery by which the server knows it again.
func putID(d *webhook.Delivery) nats.Header {
	key := storekit.KeyOf(d.Destination, d.ID)
	return nats.Header{headerID: {base64.RawURLEncoding.EncodeToString(key[:])}}
}

// Put implements webhook.Queue. When the server fails in the middle of a call of several
// deliveries, or does not answer before the deadline of ctx, some of them may be stored;
// these are recognised when they are put again.
func (q *Queue) Put(ctx context.Context, ds ...webhook.Delivery) (int, error) {
	return q.PutEach(ctx, ds, nil)
}

// PutEach implements webhook.SchedulingQueue.
func (q *Queue) PutEach(ctx context.Context, ds []webhook.Delivery, stored []bool) (int, error) {
	if err := q.calls.Enter(ctx); err != nil {
		return 0, err
	}
	defer q.calls.Leave()
	all, err := q.prepare(ds)
	if err != nil {
		return 0, err
	}
	for i := range all {
		all[i].header = putID(all[i].delivery)
	}
	// What is on its way may be stored, so its answer is waited for even if ctx is cancelled.
	storing, cancel := q.background, context.CancelFunc(func() {})
	if deadline, ok := ctx.Deadline(); ok {
		storing, cancel = context.WithDeadline(q.background, deadline)
	}
	defer cancel()
	n, err := q.put(storing, all)
	for i := range stored {
		stored[i] = err == nil && !all[i].duplicate
	}
	return n, err
}

// put stores deliveries and returns how many of them were not there.
func (q *Queue) put(ctx context.Context, all []fresh) (stored int, err error) {
	if len(all) == 0 {
		return 0, nil
	}
	size := int64(0)
	messages := make([]*message, len(all))
	for i := range all {
		messages[i] = &all[i].message
		size += int64(len(all[i].data)) + storedBytes
	}
	if err := q.room.take(q, size); err != nil {
		return 0, err
	}
	err = q.publisher.store(ctx, messages...)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range all {
		f := &all[i]
		if !f.answered || f.err != nil || f.duplicate {
			continue
		}
		stored++
		if p := q.owned[f.partition]; p != nil {
			d := lanes.Clone(f.delivery)
			q.stored(p, f.subject, f.seq, &d, len(f.data))
		}
	}
	if err != nil {
		return 0, fmt.Errorf("natsqueue: storing: %w", err)
	}
	return stored, nil
}
