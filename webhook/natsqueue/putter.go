package natsqueue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nuid"

	"github.com/hookferry/analytics/webhook/store"
)

const (
	// A message of a put leaves headerRoom bytes of the server's max_payload free: for its header, and
	// because a delivery grows until it is settled; see ending.
	headerRoom = 4096
	// blockBytes and blockLen bound the deliveries in a message: their total size in bytes, and
	// their number; see blockRoom. A message with a single delivery may be larger.
	blockBytes = 128 << 10
	blockLen   = 1024
	// maxBatch is the largest number of messages that the server stores in one atomic batch.
	maxBatch = 1000
	// maxGroup bounds the bytes of the puts of several calls that are stored together.
	maxGroup = 4 << 20
	// putters is how many groups of puts are stored concurrently.
	putters = 4
	// answerPatience is how long a stored put waits to learn which of its deliveries are duplicates.
	// A live owner answers at once.
	answerPatience = 250 * time.Millisecond
)

// A putter stores the puts of this node. It combines the puts of concurrent calls.
type putter struct {
	conn    *conn
	life    *lifetime
	index   *index
	answers *answers
	cleaner *cleaner // makes room
	puts    *store.Batcher[put]
}

// A put is a call of Put, or the revival of a dead letter.
type put struct {
	items   []item
	size    int
	packing *packing      // divides the items into messages
	once    string        // for a revival: the id of its message, which the server stores only once
	parcel  *parcel       // has the messages of the put
	stored  chan struct{} // closed when the parcel has the server's answer

	// Guarded by index.mu.
	left int           // items whose answer the caller waits for
	done chan struct{} // closed when all are answered
}

// An item is a delivery of a put.
type item struct {
	put       *put
	partition int
	stored    stored
	keep      bool
	store.Result
}

// newPut checks and encodes deliveries.
func (pt *putter) newPut(ds ...store.Put) (*put, error) {
	p := &put{items: make([]item, len(ds)), packing: newPacking(pt.conn.blockRoom()), left: len(ds), stored: make(chan struct{}), done: make(chan struct{})}
	total := 0
	for i := range ds {
		total += len(ds[i].Body) + 256
	}
	limit := int(pt.conn.nc.MaxPayload()) - headerRoom
	buf := make([]byte, 0, total)
	for i := range ds {
		d := &ds[i]
		if d.Seq != 0 { // the message gives the number
			unnumbered := *d
			unnumbered.Seq = 0
			d = &unnumbered
		}
		err := d.Check()
		from := len(buf)
		if err == nil {
			buf, err = d.AppendBinary(buf)
		}
		if err != nil {
			return nil, fmt.Errorf("natsqueue: delivery %d: %w", i, err)
		}
		size := len(buf) - from
		if size > limit {
			return nil, fmt.Errorf("natsqueue: delivery %d takes %d bytes, and the server's max_payload has room for %d: %w", i, size, limit, store.ErrTooLarge)
		}
		p.items[i] = item{put: p, partition: pt.conn.config.partition(d.Destination), stored: stored{buf[from:], d.NoDedup}, keep: d.Keep}
		// If no owner answers in time, the delivery counts as stored, whatever the owner says later.
		p.items[i].Stored = true
		p.packing.add(size, &p.items[i])
	}
	p.size = len(buf) + 32*len(ds)
	return p, nil
}

// put stores p. Then it waits, up to answerPatience, for the owners to say which deliveries are
// duplicates. After an error it ends the claims that were made for p, and no further ones are made.
func (pt *putter) put(ctx context.Context, p *put) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout+resend/2, errNoAnswer)
	defer cancel()
	if len(p.packing.parts) > maxBatch || pt.conn.config.MaxBytes > 0 && int64(p.size) > pt.conn.config.MaxBytes {
		return fmt.Errorf("natsqueue: %d deliveries with %d bytes: %w", len(p.items), p.size, store.ErrTooLarge)
	}
	if err := pt.cleaner.takeRoom(ctx, int64(p.size)); err != nil {
		return err
	}
	pt.puts.Add(p, p.size)
	var err error
	select {
	case <-p.stored:
		err = p.parcel.err
	case <-ctx.Done(): // p may be stored or not
		err = context.Cause(ctx)
		pt.puts.Drop(p)
	}
	if err == nil {
		timer := time.NewTimer(answerPatience)
		defer timer.Stop()
		select {
		case <-p.done:
		case <-timer.C:
		}
	}
	pt.index.mu.Lock()
	defer pt.index.mu.Unlock()
	pt.answers.forget(p)
	for i := range p.items {
		if e := pt.index.claims[p.items[i].Claim]; err != nil && e != nil {
			pt.index.putBack(e)
			pt.index.tell(e.lane.name)
		}
	}
	if err != nil {
		return fmt.Errorf("natsqueue: storing: %w", err)
	}
	return nil
}

// A packing divides deliveries into messages.
type packing struct {
	room  int // for the deliveries of a message, in bytes
	parts []*part
	last  map[int]*part // the last part of each partition
}

func newPacking(room int) *packing { return &packing{room: room, last: make(map[int]*part)} }

// add adds items of one partition to a message that has room for all of them. The argument size is
// their total size in bytes.
func (k *packing) add(size int, items ...*item) {
	first := items[0]
	x := k.last[first.partition]
	if x == nil || x.size+size > k.room || len(x.items)+len(items) > blockLen {
		x = new(part)
		k.parts, k.last[first.partition] = append(k.parts, x), x
	}
	x.items, x.size = append(x.items, items...), x.size+size
}

// storePuts stores puts, which share messages. If each of them fits into one message, the messages
// are stored one by one. Such a put is never divided, because the server may store one message and
// refuse the next. Otherwise they share one atomic batch, because a server without replicas writes
// each batch to a file of its own, which takes 2 to 3 ms. A revival has its own message, with an id:
// if two nodes revive the same dead letter, the server stores the message only once.
func (pt *putter) storePuts(puts []*put) {
	var parcels []*parcel
	shared, batch := newPacking(pt.conn.blockRoom()), false
	for _, p := range puts {
		parts := p.packing.parts
		if p.once != "" {
			parcels = append(parcels, pt.parcel(parts...))
			p.parcel.messages[0].Header[headerID] = []string{p.once}
			continue
		}
		batch = batch || len(parts) > 1
		for _, x := range parts {
			shared.add(x.size, x.items...)
		}
	}
	if batch {
		parcels = append(parcels, pt.parcel(shared.parts...))
	} else {
		for _, x := range shared.parts {
			parcels = append(parcels, pt.parcel(x))
		}
	}
	pt.conn.store(pt.life.ctx, parcels...) // sets the error of each parcel
	for _, p := range puts {
		close(p.stored)
	}
}

// parcel encodes each part as a message, and registers it to await the owner's answer. A
// message may be sent again, if a server does not answer. The owner knows the dedup keys of its
// deliveries. If the dedup window ignores one of them, the message has an id, by which the server
// stores it only once.
func (pt *putter) parcel(parts ...*part) *parcel {
	c := new(parcel)
	for _, x := range parts {
		r := record{node: pt.conn.id, records: make([]stored, len(x.items))}
		for i, it := range x.items {
			r.records[i], it.put.parcel = it.stored, c
		}
		r.serial = pt.answers.await(x)
		m := one(pt.conn.config.prefix(x.items[0].partition)+kindPut, r.append(make([]byte, 0, headerRoom+x.size+4*len(x.items))))
		if slices.ContainsFunc(r.records, func(d stored) bool { return d.noDedup }) {
			m.messages[0].Header[headerID] = []string{nuid.Next()}
		}
		c.messages = append(c.messages, m.messages...)
	}
	return c
}
