package pgqueue

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/hookferry/analytics/webhook/internal/lanes"
	"github.com/hookferry/analytics/webhook/storekit"
)

// The most that a chunk holds.
const (
	chunkItems = 256
	chunkBytes = 1 << 20
)

// A chunk is a row of deliveries to one destination that this node has claimed.
type chunk struct {
	key  chunkKey
	node int64 // whose claim it is
	lane *lanes.Lane
	held int    // deliveries that are not done
	done []byte // a bit for each that is; nil if none is
	n    int    // deliveries, done or not
	over bool   // it is finished, or another's: found out late, by verify
	size int64  // bytes of its items
	// used is when something of it was handed out or settled, or it was claimed.
	used time.Time
	// items are those that are in memory. One that is settled is nil.
	items []*lanes.Item
}

// readable reports whether the deliveries of c are known. A chunk that cannot be read
// stays claimed until the node ends, out of the way of others.
func (c *chunk) readable() bool { return c.n > 0 }

type chunkKey struct {
	shelf int16
	id    int64
}

// orderOf returns the place of item i of the chunk id.
func orderOf(due time.Time, id int64, i int) lanes.Order {
	return lanes.Order{At: due.UnixMicro(), Seq: uint64(id)<<8 | uint64(i)}
}

// A draft is a chunk to be inserted.
type draft struct {
	destination string
	id          int64
	shelf       int16
	due         int64 // of the first
	claim       bool  // this node holds it from the start
	data        []byte
	n           int // deliveries in it
}

// tolerance is how far the deliveries of a chunk may be apart that are due in d:
// as long may one be kept in memory before its time.
func tolerance(d time.Duration) time.Duration {
	return max(time.Second, d/32)
}

// A drafter makes drafts of deliveries.
type drafter struct {
	drafts []*draft
	open   map[string]*draft // the last of each destination
	now    time.Time
}

// addUnknown adds the first of news with each key that is in unknown, which it
// takes out of there. It returns how many.
func (w *drafter) addUnknown(news []fresh, unknown map[storekit.Key]bool) (n int) {
	for i := range news {
		f := &news[i]
		if f.added = unknown[f.key]; f.added {
			delete(unknown, f.key)
			w.add(f.destination, f.due, f.record)
			n++
		}
	}
	return n
}

// add adds the delivery that record is of.
func (w *drafter) add(destination string, at time.Time, record []byte) {
	due := at.UnixMicro()
	c := w.open[destination]
	if c == nil || c.n == chunkItems || len(c.data)+len(record) > chunkBytes ||
		due < c.due || due-c.due > tolerance(at.Sub(w.now)).Microseconds() {
		if w.open == nil {
			w.open = make(map[string]*draft)
		}
		c = &draft{destination: destination, due: due}
		w.open[destination] = c
		w.drafts = append(w.drafts, c)
	}
	c.data = binary.AppendUvarint(c.data, uint64(len(record)))
	c.data = append(c.data, record...)
	c.n++
}

var errChunk = errors.New("pgqueue: a chunk that cannot be read")

// decode returns the deliveries of a chunk that are not done, by their index; the others are nil.
func decode(lane *lanes.Lane, id int64, data, done []byte) ([]*lanes.Item, error) {
	var items []*lanes.Item
	for len(data) > 0 {
		n, k := binary.Uvarint(data)
		if k <= 0 || n > uint64(len(data)-k) {
			return items, errChunk
		}
		record := data[k : k+int(n)]
		data = data[k+int(n):]
		i := len(items)
		if isSet(done, i) {
			items = append(items, nil)
			continue
		}
		it := &lanes.Item{Index: i}
		if err := it.UnmarshalBinary(record); err != nil {
			return items, err
		}
		it.Destination = lane.Name
		it.Order = orderOf(it.Due, id, i)
		it.Size = int64(n) + itemBytes
		items = append(items, it)
	}
	return items, nil
}

// itemBytes is about what a delivery in memory costs beside its record.
const itemBytes = 256

func isSet(bits []byte, i int) bool {
	return i/8 < len(bits) && bits[i/8]&(1<<(i%8)) != 0
}

// withSet returns bits with those of set.
func withSet(bits []byte, n int, set []int) []byte {
	b := make([]byte, (n+7)/8)
	copy(b, bits)
	for _, i := range set {
		b[i/8] |= 1 << (i % 8)
	}
	return b
}
