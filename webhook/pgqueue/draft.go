package pgqueue

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/storekit"
)

// An entry is a delivery to be stored. It shares no memory with the caller.
type entry struct {
	key    storekit.Key
	queue  queueKey
	due    int64
	body   int
	record []byte
	reason string // why the last attempt failed
	dedup  bool   // the delivery is left out if its key is known; otherwise the key is remembered
	known  bool   // the key was known
	keep   bool   // the caller wants to claim it
	claim  uint64 // the caller's claim
	put    *put
}

// newEntry returns the entry of d, or the error of d.Check.
func newEntry(d *webhook.Delivery, dedup bool) (e entry, err error) {
	if err := d.Check(); err != nil {
		return e, err
	}
	record, err := d.AppendBinary(make([]byte, 0, len(d.Body)+256))
	if err != nil {
		return e, err
	}
	e = entry{queue: queueKey{d.Destination, !d.Expires.IsZero()}, due: d.Due.UnixMicro(), body: len(d.Body), record: record, dedup: dedup}
	if dedup {
		e.key = storekit.KeyOf(d.Destination, d.ID)
	}
	if n := len(d.Attempts); n > 0 {
		e.reason = string(d.Attempts[n-1].Reason)
	}
	return e, nil
}

// entriesOf returns the entries of ds. With dedup it leaves out deliveries that repeat an earlier
// one in ds.
func entriesOf(ds []webhook.Delivery, dedup bool) (all []*entry, err error) {
	first := make(map[storekit.Key]bool)
	for i := range ds {
		e, err := newEntry(&ds[i], dedup)
		if err != nil {
			return nil, fmt.Errorf("delivery %d: %w", i, err)
		}
		if !first[e.key] {
			first[e.key] = dedup
			all = append(all, &e)
		}
	}
	return all, nil
}

// A draft is a chunk that is about to be stored.
type draft struct {
	queue   queueKey
	due     int64 // of the first entry
	data    []byte
	entries []*entry
	mine    bool // this node claims the chunk when it stores it
}

// tolerance returns by how much the deliveries of a chunk may differ in their due times. d is the
// time until the first of them is due. Both are in microseconds. The result is small, because the
// node that claims the chunk for its first delivery keeps all others in memory until they are
// due.
func tolerance(d int64) int64 { return max(time.Second.Microseconds(), d/32) }

// draftsOf groups entries into chunks.
func draftsOf(all []*entry, now time.Time) (drafts []*draft) {
	slices.SortStableFunc(all, func(x, y *entry) int { return cmp.Compare(x.due, y.due) })
	open := make(map[queueKey]*draft) // the last of each queue
	for _, e := range all {
		d := open[e.queue]
		if d == nil || len(d.entries) == chunkItems || len(d.data)+len(e.record) > chunkBytes || e.due-d.due > tolerance(d.due-now.UnixMicro()) {
			d = &draft{queue: e.queue, due: e.due}
			open[e.queue] = d
			drafts = append(drafts, d)
		}
		d.data = appendItem(d.data, e.due, e.body, e.record)
		d.entries = append(d.entries, e)
	}
	return drafts
}
