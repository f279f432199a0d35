package pgqueue

import (
	"cmp"
	"encoding/binary"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hookferry/analytics/webhook"
)

// chunkItems and chunkBytes bound a chunk, in deliveries and in bytes. A chunk of a single delivery
// may be larger.
const (
	chunkItems = 256
	chunkBytes = 256 << 10
)

// itemBytes is about how many bytes of memory a delivery takes in addition to its record.
const itemBytes = 128

// A queueKey names a queue of the store: the fresh deliveries of a destination, or its
// retries.
type queueKey struct {
	destination string
	retries     bool
}

// A row is a chunk in the table.
type row struct {
	id      int64 // the last two bits are the partition
	queue   queueKey
	node    int64 // the node that had claimed the chunk before, or 0
	waiting int
	done    string // a '1' for each delivery that is done; empty if none is
	outbox  bool   // PutTx stored the chunk, and this is its first claim
	items   []byte
}

// rowColumns are the columns that scanRow reads, of chunk c. The columns node and outbox follow.
const rowColumns = `c.id, c.destination, c.retry, c.waiting, coalesce(c.done::text, ''), c.items`

func scanRow(r pgx.CollectableRow) (row row, err error) {
	var name []byte
	err = r.Scan(&row.id, &name, &row.queue.retries, &row.waiting, &row.done, &row.items, &row.node, &row.outbox)
	row.queue.destination = string(name)
	return row, err
}

// claimPicked claims the chunks that a CTE named picked has locked, except those that a node had
// claimed. It returns all of them, with the node and outbox from before. $1 is the id of this node.
const claimPicked = `
UPDATE S.chunk c SET node = CASE p.node WHEN 0 THEN $1 ELSE p.node END, outbox = false FROM picked p
WHERE c.part = p.part AND c.id = p.id
RETURNING ` + rowColumns + `, p.node, p.outbox`

// A chunk is a row that was read into memory. Usually this node has claimed it.
type chunk struct {
	id      int64
	queue   queueKey
	waiting int    // how many deliveries are not done, according to the row
	items   []item // all readable deliveries, done or not
	size    int64
	used    time.Time // when it was claimed, or a claim of one of its deliveries last began or ended
	// inHand is how many items have the state inHand or storing. A damaged chunk counts as one more.
	// So it stays claimed until this node ends, and other nodes do not claim it again and again.
	inHand int
}

// An item is a delivery of a chunk.
type item struct {
	chunk  *chunk
	index  int   // in the chunk
	due    int64 // in microseconds
	claim  uint64
	state  itemState
	body   int // size of the body in bytes
	record []byte
}

type itemState uint8

const (
	free    itemState = iota // in its queue
	inHand                   // claimed by the caller
	storing                  // claimed, and its outcome is being stored
	done                     // its outcome is stored
)

// itemOrder is the order of the items of a queue.
func itemOrder(x, y *item) int {
	return cmp.Or(cmp.Compare(x.due, y.due), cmp.Compare(x.chunk.id, y.chunk.id), cmp.Compare(x.index, y.index))
}

// delivery decodes the record of the item.
func (it *item) delivery() (d webhook.Delivery, err error) {
	err = d.UnmarshalBinary(it.record)
	d.Claim = it.claim
	return d, err
}

// appendItem appends a delivery to a chunk: the lengths of its record and its body, its due time,
// and the record.
func appendItem(b []byte, due int64, body int, record []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(record)))
	b = binary.AppendUvarint(b, uint64(body))
	b = binary.AppendVarint(b, due)
	return append(b, record...)
}

var errDamaged = errors.New("pgqueue: a damaged chunk")

// readChunk decodes the chunk in a row. If it returns an error, the chunk has only the deliveries
// that could be read.
func readChunk(r *row) (*chunk, error) {
	c := &chunk{id: r.id, queue: r.queue, waiting: r.waiting}
	left := 0
	for data := r.items; len(data) > 0; {
		size, a := binary.Uvarint(data)
		body, b := binary.Uvarint(data[max(a, 0):])
		due, n := binary.Varint(data[max(a, 0)+max(b, 0):])
		head := a + b + n
		if a <= 0 || b <= 0 || n <= 0 || size > uint64(len(data)-head) || body > size {
			return c, errDamaged
		}
		end := head + int(size)
		it := item{chunk: c, index: len(c.items), due: due, body: int(body), record: data[head:end:end]}
		if isSet(r.done, it.index) {
			it.state = done
		} else {
			left++
		}
		c.items = append(c.items, it)
		data = data[end:]
	}
	c.size = int64(len(r.items) + len(c.items)*itemBytes)
	if left != c.waiting {
		return c, errDamaged
	}
	return c, nil
}

func isSet(bits string, i int) bool { return i < len(bits) && bits[i] == '1' }

// doneBits returns a bit for each item: set if it is done, or its outcome is being stored.
func (c *chunk) doneBits() string {
	bits := make([]byte, len(c.items))
	for i := range c.items {
		bits[i] = '0'
		if state := c.items[i].state; state == done || state == storing {
			bits[i] = '1'
		}
	}
	return string(bits)
}

// due returns the earliest due time of the deliveries that are not done. If all are done, it
// returns the constant never.
func (c *chunk) due() int64 {
	due := int64(never)
	for i := range c.items {
		if it := &c.items[i]; it.state != done {
			due = min(due, it.due)
		}
	}
	return due
}
