package natsqueue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/hookferry/analytics/webhook/store"
)

// loadBlocks is how many messages are read from the stream at a time.
const loadBlocks = 32

// A loader reads waiting deliveries from the stream.
type loader struct {
	conn  *conn
	index *index
}

// load calls use with the deliveries of entries, while the index is locked, and returns its error. A
// delivery is nil if its entry is nil or no longer waits. load reads those that are not in memory from the
// stream, and keeps the other deliveries in these messages that are due soon. If a delivery cannot be
// read, load ends its entry.
func (ld *loader) load(ctx context.Context, entries []*entry, use func(ds []*store.Delivery) error) error {
	var read []*entry
	defer func() {
		if len(read) > 0 {
			ld.index.mu.Lock()
			defer ld.index.mu.Unlock()
			ld.index.hold(read...)
		}
	}()
	var wanted map[*entry]bool // nil until one of them has to be read
	for {
		missing, err := ld.use(entries, use)
		if err != nil || len(missing) == 0 {
			return err
		}
		if wanted == nil {
			wanted = make(map[*entry]bool, len(entries))
			for _, e := range entries {
				wanted[e] = true
			}
		}
		messages, err := ld.contents(ctx, missing)
		if err != nil {
			return fmt.Errorf("natsqueue: reading waiting deliveries: %w", err)
		}
		// If the cleaner has moved an entry meanwhile, the next iteration reads it from its new message.
		read = append(read, ld.keep(missing, messages, wanted)...)
	}
}

// use calls f with the deliveries of entries if all are in memory. Otherwise it returns up to
// loadBlocks blocks that have the others.
func (ld *loader) use(entries []*entry, f func(ds []*store.Delivery) error) (missing []*block, err error) {
	ld.index.mu.Lock()
	defer ld.index.mu.Unlock()
	ds := make([]*store.Delivery, len(entries))
	for i, e := range entries {
		if e == nil || !e.waits() {
			continue
		}
		if ds[i] = e.delivery; ds[i] == nil && len(missing) < loadBlocks && !slices.Contains(missing, e.block) {
			missing = append(missing, e.block)
		}
	}
	if len(missing) == 0 {
		err = f(ds)
	}
	return missing, err
}

// keep sets the deliveries of those entries of blocks that are wanted or due soon, from the messages
// of the blocks. It returns these entries, and ends those whose delivery cannot be read.
func (ld *loader) keep(blocks []*block, messages []*jetstream.RawStreamMsg, wanted map[*entry]bool) (read []*entry) {
	ld.index.mu.Lock()
	defer ld.index.mu.Unlock()
	horizon := time.Now().Add(cacheAhead).UnixMicro()
	for at, b := range blocks {
		var records []stored
		if m := messages[at]; m != nil {
			if r, err := parseRecord(m.Data); err == nil && len(r.records) == len(b.entries) {
				records = r.records
			}
		}
		if records == nil && b.left > 0 && b.p.state != lost {
			ld.conn.config.Logger.Error("natsqueue: the servers have lost a message or damaged it; its deliveries are not attempted", "partition", b.p.n, "sequence", b.seq, "deliveries", b.left)
		}
		for i, e := range b.entries {
			if e == nil || e.delivery != nil || !e.waits() || !wanted[e] && e.due > horizon {
				continue
			}
			var d *store.Delivery
			if records != nil {
				d = b.p.decode(b.seq, i, records[i].data)
			}
			if d == nil {
				b.damaged = true
				if !ld.index.remove(e, false).IsZero() {
					ld.index.tell(e.lane.name)
				}
				continue
			}
			d.Destination, d.Due, e.delivery = e.lane.name, e.at(), d // a release has changed Due, and is not stored
			if x := ld.index.unfit[e]; x != nil {
				d.Tries, d.Closed, d.Attempts, d.Due, d.Expires = x.Tries, x.Closed, x.Attempts, x.Due, x.Expires
			}
			read = append(read, e)
		}
	}
	return read
}

// contents reads the messages of blocks. An element is nil if the servers have lost the message.
func (ld *loader) contents(ctx context.Context, blocks []*block) ([]*jetstream.RawStreamMsg, error) {
	var seqs []uint64
	for _, b := range blocks {
		seqs = append(seqs, b.seq)
	}
	return ld.conn.allMessages(ctx, seqs...)
}
