package pgqueue

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// The most that a chunk holds. A single delivery may have more bytes.
const (
	chunkItems = 256
	chunkBytes = 256 << 10
)

// itemBytes is about what a delivery in memory costs beside its record.
const itemBytes = 128

// A chunk is a row of deliveries that this node has claimed.
type chunk struct {
	key  chunkKey
	line lineKey
	held int    // deliveries that are not done
	done string // a '1' for each that is; empty if none is
	n    int    // deliveries, done or not
	over bool   // the node has lost it
	// broken: a delivery of it cannot be read. It stays claimed until the node ends, out of
	// the way of others.
	broken bool
	size   int64
	// used is when something of it was handed out or settled, or it was claimed.
	used   time.Time
	inHand int    // items that are claimed
	items  []item // those that were not done when it was claimed
}

type chunkKey struct {
	shelf int16
	id    int64
}

// An item is a delivery of a chunk that this node has claimed.
type item struct {
	chunk  *chunk
	index  int
	due    int64 // in microseconds
	claim  uint64
	state  itemState
	body   int // the bytes of the body
	record []byte
}

type itemState uint8

const (
	free    itemState = iota // in its line
	inHand                   // claimed by the caller
	settled                  // done, or damaged
)

// before reports whether it comes before another in a line.
func (it *item) before(other *item) bool {
	return cmp.Or(cmp.Compare(it.due, other.due), cmp.Compare(it.chunk.key.id, other.chunk.key.id), cmp.Compare(it.index, other.index)) < 0
}

// delivery reads the record.
func (it *item) delivery() (d webhook.Delivery, err error) {
	err = d.UnmarshalBinary(it.record)
	d.Claim = it.claim
	return d, err
}

// appendItem appends a delivery of a chunk: the lengths of the record and the body, when it is
// due, and the record.
func appendItem(b []byte, due int64, body int, record []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(record)))
	b = binary.AppendUvarint(b, uint64(body))
	b = binary.AppendVarint(b, due)
	return append(b, record...)
}

var errChunk = errors.New("pgqueue: a damaged chunk")

// parse returns the deliveries of a chunk that are not done, and how many it has in all.
// With an error it returns those before the damage.
func parse(data []byte, done string) (items []item, n int, err error) {
	for ; len(data) > 0; n++ {
		size, a := binary.Uvarint(data)
		body, b := binary.Uvarint(data[max(a, 0):])
		due, c := binary.Varint(data[max(a, 0)+max(b, 0):])
		head := a + b + c
		if a <= 0 || b <= 0 || c <= 0 || size > uint64(len(data)-head) || body > size {
			return items, n, errChunk
		}
		end := head + int(size)
		if !isSet(done, n) {
			items = append(items, item{index: n, due: due, body: int(body), record: data[head:end:end]})
		}
		data = data[end:]
	}
	return items, n, nil
}

func isSet(bits string, i int) bool { return i < len(bits) && bits[i] == '1' }

// withSet returns n bits with those of set.
func withSet(bits string, n int, set []int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = '0'
	}
	copy(b, bits)
	for _, i := range set {
		b[i] = '1'
	}
	return string(b)
}

// A fresh is a delivery to be stored. It shares no memory with the caller's.
type fresh struct {
	key        storekit.Key
	line       lineKey
	due        int64
	body       int
	record     []byte
	why        string
	keep       bool   // the caller wants to claim it
	remembered bool   // by its key, in what was put before
	known      bool   // it was put before
	claim      uint64 // the caller's
	put        *put
}

// freshOf makes all of ds ready to be stored. If they are remembered, it leaves out repetitions.
func freshOf(ds []webhook.Delivery, remembered bool) (all []*fresh, err error) {
	seen := make(map[storekit.Key]bool)
	for i := range ds {
		f, _, err := newFresh(&ds[i], remembered, nil)
		if err != nil {
			return nil, fmt.Errorf("delivery %d: %w", i, err)
		}
		if !seen[f.key] {
			seen[f.key] = remembered
			all = append(all, &f)
		}
	}
	return all, nil
}

// newFresh returns d with its record, which is appended to buf.
func newFresh(d *webhook.Delivery, remembered bool, buf []byte) (f fresh, _ []byte, err error) {
	if err := d.Check(); err != nil {
		return f, buf, err
	}
	from := len(buf)
	if buf, err = d.AppendBinary(buf); err != nil {
		return f, buf, err
	}
	f = fresh{
		line: lineKey{d.Destination, !d.Expires.IsZero()}, due: d.Due.UnixMicro(), body: len(d.Body), record: buf[from:len(buf):len(buf)],
		remembered: remembered,
	}
	if remembered {
		f.key = storekit.KeyOf(d.Destination, d.ID)
	}
	if n := len(d.Attempts); n > 0 {
		f.why = string(d.Attempts[n-1].Reason)
	}
	return f, buf, nil
}

// A draft is a chunk to be inserted.
type draft struct {
	line  lineKey
	due   int64 // of the first that was not put before
	data  []byte
	items []*fresh
	mine  bool // this node claims it from the start
}

// tolerance is how far the deliveries of a chunk may be apart that are due in d
// microseconds: as long may one be kept in memory before its time.
func tolerance(d int64) int64 { return max(time.Second.Microseconds(), d/32) }

// draftsOf makes chunks of deliveries.
func draftsOf(all []*fresh, now time.Time) (drafts []*draft) {
	slices.SortStableFunc(all, func(x, y *fresh) int { return cmp.Compare(x.due, y.due) })
	open := make(map[lineKey]*draft) // the last of each line
	for _, f := range all {
		d := open[f.line]
		if d == nil || len(d.items) == chunkItems || len(d.data)+len(f.record) > chunkBytes || f.due-d.due > tolerance(d.due-now.UnixMicro()) {
			d = &draft{line: f.line, due: f.due}
			open[f.line] = d
			drafts = append(drafts, d)
		}
		d.data = appendItem(d.data, f.due, f.body, f.record)
		d.items = append(d.items, f)
	}
	return drafts
}

// due returns when the first delivery of c is due that is not settled.
func (c *chunk) due() int64 {
	due := int64(never)
	for i := range c.items {
		if it := &c.items[i]; it.state != settled {
			due = min(due, it.due)
		}
	}
	return due
}

// settle marks the delivery with this index.
func (c *chunk) settle(index int) {
	for i := range c.items {
		if c.items[i].index == index {
			c.items[i].state = settled
		}
	}
}
