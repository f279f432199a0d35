package natsqueue

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

const (
	// headerRoom is what a message has beside its records at most, and what a delivery grows by
	// until it is settled, but for its attempts: these are left out where there is no room for them.
	headerRoom = 4096
	// blockBytes and blockLen bound what shares a message, unless it is a single delivery.
	blockBytes = 128 << 10
	blockLen   = 1024
	// maxBatch is how many messages the server stores together.
	maxBatch = 1000
	// maxGroup is how many bytes of different calls are stored together.
	maxGroup = 4 << 20
	// answerPatience is how long a put that is stored waits to learn what of it is duplicate. An
	// owner says so at once, if there is one.
	answerPatience = 250 * time.Millisecond
)

// A putter stores puts.
type putter struct {
	*index
	puts *storekit.Batcher[put]
	room room
}

// A put is a call of Put.
type put struct {
	items  []item
	called bool // by Put: the caller knows that something waits
	size   int
	once   string // the id of its only message, which has a dead letter that is revived: several nodes may do so at once
	err    error
	stored chan struct{} // closed when it is stored, or err is set

	// Guarded by Store.mu.
	left int           // items without an answer
	done chan struct{} // closed when there is none
	over bool          // nobody waits for it any more
}

// An item is a delivery to be stored.
type item struct {
	put       *put
	partition int
	record    []byte
	keep      bool
	noDedup   bool
	webhook.Result
}

// A part is a message of puts, whose answer is awaited.
type part struct {
	items []*item
	size  int
	sent  time.Time
}

// newPut checks and encodes ds.
func (s *putter) newPut(n int, at func(int) *webhook.Put) (*put, error) {
	p := &put{items: make([]item, n), left: n, stored: make(chan struct{}), done: make(chan struct{})}
	total := 0
	for i := range n {
		total += len(at(i).Body) + 256
	}
	limit := int(s.nc.MaxPayload()) - headerRoom
	buf := make([]byte, 0, total)
	for i := range n {
		d := at(i)
		if err := d.Check(); err != nil {
			return nil, fmt.Errorf("natsqueue: delivery %d: %w", i, err)
		}
		from := len(buf)
		var err error
		if buf, err = d.AppendBinary(buf); err != nil {
			return nil, fmt.Errorf("natsqueue: delivery %d: %w", i, err)
		}
		if size := len(buf) - from; size > limit {
			return nil, fmt.Errorf("natsqueue: delivery %d takes %d bytes, and the server's max_payload has room for %d: %w", i, size, limit, webhook.ErrTooLarge)
		}
		p.items[i] = item{put: p, partition: s.config.partition(d.Destination), record: buf[from:len(buf):len(buf)], keep: d.Keep, noDedup: d.NoDedup}
	}
	p.size = len(buf) + 32*n
	if n == 0 {
		close(p.done)
	}
	return p, nil
}

// Put implements webhook.Store. Its deliveries, of as many destinations as there are, are one
// message, or an atomic batch: more than 1,000 messages of 128 KB are ErrTooLarge. While the owner
// of a destination is dead, duplicates for it are reported as stored, and left out later.
func (s *Store) Put(ctx context.Context, ps []webhook.Put, out []webhook.Result) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.Leave()
	p, err := s.newPut(len(ps), func(i int) *webhook.Put { return &ps[i] })
	if err != nil {
		return err
	}
	p.called = true
	if err := s.put(ctx, p); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range p.items {
		out[i] = p.items[i].Result
	}
	return nil
}

// put stores a put, and waits for the answers.
func (s *putter) put(ctx context.Context, p *put) error {
	if len(p.items) == 0 {
		return nil
	}
	if p.pack().messages() > maxBatch || s.config.MaxBytes > 0 && int64(p.size) > s.config.MaxBytes {
		return fmt.Errorf("natsqueue: %d deliveries with %d bytes: %w", len(p.items), p.size, webhook.ErrTooLarge)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.room.take(int64(p.size)); err != nil {
		return err
	}
	s.puts.Add(p, p.size)
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout+resend/2, errNoAnswer)
	defer cancel()
	select {
	case <-p.stored:
	case <-ctx.Done():
	}
	if err := context.Cause(ctx); err != nil { // it may be stored
		s.puts.Drop(p)
		s.giveUp(p)
		return err
	}
	if p.err != nil {
		s.giveUp(p)
		return fmt.Errorf("natsqueue: storing: %w", p.err)
	}
	timer := time.NewTimer(answerPatience)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	}
	// It is stored, whatever its owner says.
	s.mu.Lock()
	defer s.mu.Unlock()
	p.over = true
	for i := range p.items {
		if it := &p.items[i]; it.put != nil {
			it.Stored = true
		}
	}
	return nil
}

// giveUp gives back what was claimed for p, and claims nothing for it any more.
func (s *putter) giveUp(p *put) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.over = true
	for i := range p.items {
		if e := s.claims[p.items[i].Claim]; e != nil {
			s.putBack(e)
			s.tell(e.lane.name)
		}
	}
}

// A packing is puts, by the messages they make.
type packing map[int][]*part

// pack divides p into messages.
func (p *put) pack() packing {
	all := make(packing)
	all.add(p)
	return all
}

func (k packing) messages() (n int) {
	for _, parts := range k {
		n += len(parts)
	}
	return n
}

// add adds a put to messages that have room.
func (k packing) add(p *put) {
	for i := range p.items {
		it := &p.items[i]
		parts := k[it.partition]
		if n := len(parts); n == 0 || parts[n-1].size+len(it.record) > blockBytes || parts[n-1].items[0].noDedup != it.noDedup || len(parts[n-1].items) == blockLen {
			parts = append(parts, new(part))
			k[it.partition] = parts
		}
		last := parts[len(parts)-1]
		last.items, last.size = append(last.items, it), last.size+len(it.record)
	}
}

// storePuts stores puts. Those that take one message share it with others, and the rest share an
// atomic batch; one that several nodes may store is alone.
func (s *putter) storePuts(puts []*put) {
	single, batch := make(packing), make(packing)
	of := make(map[*parcel][]*put)
	var parcels []*parcel
	add := func(c *parcel, puts ...*put) { parcels, of[c] = append(parcels, c), puts }
	var rest []*put
	for _, p := range puts {
		k := p.pack()
		switch {
		case p.once != "":
			c := &parcel{messages: s.messages(k, true)}
			c.messages[0].Header = nats.Header{headerID: {p.once}}
			add(c, p)
		case k.messages() == 1:
			single.add(p)
		default:
			batch.add(p)
			rest = append(rest, p)
		}
	}
	for _, parts := range single {
		for _, x := range parts {
			var puts []*put
			for _, it := range x.items {
				if n := len(puts); n == 0 || puts[n-1] != it.put {
					puts = append(puts, it.put)
				}
			}
			add(&parcel{messages: []*nats.Msg{s.message(x, false)}}, puts...)
		}
	}
	if len(rest) > 0 {
		add(&parcel{messages: s.messages(batch, false)}, rest...)
	}
	err := s.send(s.background, parcels...)
	for c, puts := range of {
		for _, p := range puts {
			if p.err = c.err; !c.answered {
				p.err = err
			}
		}
	}
	for _, p := range puts {
		close(p.stored)
	}
}

// messages returns the messages of a packing.
func (s *putter) messages(k packing, revived bool) (all []*nats.Msg) {
	for _, parts := range k {
		for _, x := range parts {
			all = append(all, s.message(x, revived))
		}
	}
	return all
}

// message returns the message of a part.
func (s *putter) message(x *part, revived bool) *nats.Msg {
	c := chunk{revived: revived, noDedup: x.items[0].noDedup, node: s.id, records: make([][]byte, len(x.items))}
	size := headerRoom
	for i, it := range x.items {
		c.records[i] = it.record
		size += len(it.record) + 4
	}
	s.mu.Lock()
	s.serial++
	c.number = s.serial
	x.sent = time.Now()
	s.parts[c.number] = x
	s.mu.Unlock()
	return &nats.Msg{Subject: s.config.prefix(x.items[0].partition) + kindPut, Data: c.append(make([]byte, 0, size))}
}

// putAnswer is what an owner answers the node that put a chunk.
func putAnswer(number uint64, dups []byte) []byte {
	return append(binary.AppendUvarint(nil, number), dups...)
}

// heardOfPut takes an answer of another node.
func (s *putter) heardOfPut(m *nats.Msg) {
	number, n := binary.Uvarint(m.Data)
	if n <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered(number, m.Data[n:])
}
