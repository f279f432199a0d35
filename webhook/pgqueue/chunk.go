package pgqueue

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/hookferry/analytics/webhook/store"
)

const (
	// chunkItems and chunkBytes bound a chunk, in deliveries and in bytes. A chunk of a single delivery
	// may be larger.
	chunkItems = 256
	chunkBytes = 256 << 10
	// cacheBytes bounds, approximately, the bytes of claimed chunks in memory. At the bound a node claims
	// none of the deliveries that it puts, and gives back chunks of which the forwarder has no delivery.
	cacheBytes = 32 << 20
	// itemBytes is about how many bytes of memory a delivery takes in addition to its record.
	itemBytes = 384
)

// A queueKey names a queue of the store: the fresh deliveries of a destination, or its retries.
type queueKey struct {
	destination string
	retries     bool
}

// queuesOf returns the queues of a destination.
func queuesOf(destination string) [2]queueKey {
	return [...]queueKey{{destination, false}, {destination, true}}
}

// chunkColumns are the columns that scanChunk reads, of chunk c. The column node follows.
const chunkColumns = `c.id, c.first, c.destination, c.retry, c.waiting, c.outbox, coalesce(c.done::text, ''), c.items, c.key, c.due`

func scanChunk(r pgx.CollectableRow) (*chunk, error) {
	var c chunk
	var done string
	var items []byte
	err := r.Scan(&c.id, &c.first, (*text)(&c.queue.destination), &c.queue.retries, &c.waiting, &c.outbox, &done, &items, &c.order, &c.due, &c.owner)
	c.decode(items, done)
	if c.order.Valid && len(c.items) == 1 && c.items[0].state == free {
		c.items[0].d.Due = timeOf(c.due) // the record has the one before it was released
	}
	return &c, err
}

// behind is the node of chunks that are behind another chunk with their Key.
const behind = -1

// claimPicked claims the chunks that a CTE named picked has locked, except those that a node had
// claimed, or that are behind another one. It returns all of them, with the node from before. $1 is the id of this node.
const claimPicked = `
UPDATE S.chunk c SET node = CASE p.node WHEN 0 THEN $1 ELSE p.node END FROM picked p
WHERE c.part = p.part AND c.id = p.id
RETURNING ` + chunkColumns + `, p.node`

// A chunk is a row of the table, in memory. Usually this node has claimed it.
type chunk struct {
	id      int64 // the last two bits are the partition
	first   int64 // no delivery has a smaller number; the first one that was put in this chunk has it
	queue   queueKey
	order   pgtype.UUID // of the Key of its only delivery, not valid if that has none; see orderOf
	owner   int64       // the node that had claimed it before the query, 0, or behind
	due     int64       // when its first delivery was due, according to the row
	outbox  bool        // PutTx has stored the chunk, and its first claim has not ended
	waiting int         // how many deliveries are not done, according to the row
	items   []item      // all deliveries, settled or not, but none behind an item of unreadable length
	damaged error       // why a delivery could not be read
	size    int64
	used    time.Time // when it was claimed, or a claim of one of its deliveries last began or ended
	// inHand is how many items have the state inHand or storing. A damaged chunk counts as one more, and
	// so stays claimed until this node ends: otherwise nodes would claim it again and again.
	inHand int
}

// An item is a delivery of a chunk.
type item struct {
	chunk *chunk
	index int // in the chunk
	state itemState
	d     store.Delivery // zero if the item was settled when it was read, or is damaged
}

type itemState uint8

const (
	free    itemState = iota // in its queue
	inHand                   // claimed by the caller
	storing                  // claimed, and its outcome is being stored
	settled                  // its outcome is stored
	damaged                  // its record cannot be read
)

func (it *item) due() int64 { return it.d.Due.UnixMicro() }

// itemOrder is the order of the items of a queue.
func itemOrder(x, y *item) int {
	return cmp.Or(x.d.Due.Compare(y.d.Due), cmp.Compare(x.chunk.id, y.chunk.id), cmp.Compare(x.index, y.index))
}

// decode adds the items of a row: for each, its length as a varint, and its record. The argument done
// has a '1' for each delivery that is done, and is empty if none is. A delivery that cannot be read
// hides no other, unless its length is damaged. One that was put in this chunk has no Seq in its record.
func (c *chunk) decode(items []byte, done string) {
	c.items = make([]item, 0, max(c.waiting, 0))
	c.size = int64(len(items))
	waiting := 0
	for len(items) > 0 {
		size, n := binary.Uvarint(items)
		if n <= 0 || size > uint64(len(items)-n) {
			break
		}
		end := n + int(size)
		it := item{chunk: c, index: len(c.items), state: settled}
		if !isSet(done, it.index) {
			waiting++
			it.state = free
			if err := it.d.UnmarshalBinary(items[n:end]); err != nil {
				it.state, it.d, c.damaged = damaged, store.Delivery{}, err
			}
			if it.d.Seq == 0 {
				it.d.Seq = uint64(c.first) + uint64(it.index)
			}
		}
		c.items = append(c.items, it)
		items = items[end:]
	}
	c.size += int64(len(c.items) * itemBytes)
	if waiting != c.waiting {
		c.damaged = errors.New("it has another number of deliveries than its row says")
	}
}

func isSet(bits string, i int) bool { return i < len(bits) && bits[i] == '1' }

// blank returns the items of a row without the bytes of those that are done, which stay as empty ones.
func blank(items []byte, done string) (left []byte) {
	for i := 0; len(items) > 0; i++ {
		size, n := binary.Uvarint(items)
		if n <= 0 || size > uint64(len(items)-n) {
			break // the others are damaged, and stay as they are
		}
		end := n + int(size)
		if isSet(done, i) {
			left = append(left, 0)
		} else {
			left = append(left, items[:end]...)
		}
		items = items[end:]
	}
	return append(left, items...)
}

// doneBits has a bit for each item: set if it is settled, or its outcome is being stored.
func (c *chunk) doneBits() string {
	bits := bytes.Repeat([]byte("0"), len(c.items))
	for i := range c.items {
		if state := c.items[i].state; state == settled || state == storing {
			bits[i] = '1'
		}
	}
	return string(bits)
}

// nextDue returns the earliest due time of the deliveries that are not settled, or never.
func (c *chunk) nextDue() int64 {
	due := int64(never)
	for i := range c.items {
		if it := &c.items[i]; it.state != settled {
			due = min(due, it.due())
		}
	}
	return due
}
